"""MasterMetrics: what a master knows of its job, for Prometheus. All but a few counts is read when it is asked for."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from prometheus_client.metrics_core import Metric as Family

from elastane import __version__
from elastane.core.nodes import JobEnd
from elastane.core.sizing_record import OptimizerStage
from elastane.core.world_changes import WorldCause, WorldChanges
from elastane.master.components import Components
from elastane.master.event_log import EventLog
from elastane.master.job_resource_optimizer import JobResourceOptimizer
from elastane.master.journal import Journal
from elastane.model.ids import DatasetName, NodeName
from elastane.model.job_spec import ElasticJob
from elastane.model.node import ExitReason, Node, NodeExit, NodeStatus, NodeType
from elastane.prometheus import of_master as m
from elastane.prometheus.declared import Distribution
from elastane.prometheus.scrape import Scrape
from elastane.rpc.protos import control_pb2 as pb

MOST_DATASETS = 50
"""Data sets that are shown, the newest: a script may make thousands, and each is a label."""

STATES = ("running", "stopping", *JobEnd)
ROLES = (NodeType.WORKER, NodeType.EVALUATOR, NodeType.PS)

_PLAN_OUTCOMES = {
    "sizing_decided": "decided",
    "sizing_settled": "settled",
    "plan_refused": "refused",
    "plan_applied": "applied",
}


class MasterMetrics:
    """The metrics of one job's master. What is counted here begins with this master; the rest is what the job knows."""

    def __init__(self, job: ElasticJob, components: Components, events: EventLog, journal: Journal) -> None:
        self._job = job
        self._components = components
        self._journal = journal
        nodes = components.node_manager.nodes
        self._exits = Counter((node.type, node.exit.reason) for node in nodes if node.exit is not None)
        self._events: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._saved_at: float | None = None
        rendezvous = components.rendezvous
        self._worlds = WorldChanges(() if rendezvous is None else rendezvous.world.members)
        self._causes: deque[tuple[object, WorldCause]] = deque(maxlen=8)
        """Of the last worlds, by their versions: what a change cost is known a while after it."""
        self._changes = {cause: Distribution(m.WORLD_CHANGE) for cause in WorldCause}
        self._stalls = {cause: Distribution(m.WORLD_STALL) for cause in WorldCause}
        events.on_event.append(self._happened)
        components.node_manager.on_node_end.append(self._ended)

    def collect(self) -> Sequence[Family]:
        """All metrics, as they are now."""
        scrape = Scrape(m.MASTER, job=self._job.name)
        status = self._components.control.status()
        self._put_job(scrape, status)
        self._put_worlds(scrape, status)
        self._put_data(scrape, status)
        self._put_nodes(scrape, status)
        if status.HasField("evaluation"):
            _put_evaluation(scrape, status.evaluation)
        if status.HasField("servers"):
            self._put_servers(scrape, status.servers)
        if self._components.optimizer is not None:
            self._put_sizing(scrape, self._components.optimizer)
        return scrape.families()

    # What is counted.

    def _happened(self, kind: str, fields: Mapping[str, object]) -> None:
        self._events[kind] += 1
        match kind:
            case "world_next":
                self._worlds.published(self._journal.clock(), recover=bool(fields["recover"]))
            case "world_settled":
                members = [NodeName(str(name)) for name in _list(fields["members"])]
                change = self._worlds.settled(members, self._journal.clock())
                self._changes[change.cause].observe(change.seconds)
                self._causes.append((fields["version"], change.cause))
            case "world_cost":
                causes = (cause for version, cause in self._causes if version == fields["first"])
                for cause in causes:
                    self._stalls[cause].observe(float(str(fields["stall_ms"])) / 1000)
            case "shard_returned":
                self._returned["given_back" if fields["error"] is None else "failed"] += 1
            case "servers_saved":
                self._saved_at = time.time()

    def _ended(self, node: Node, exit: NodeExit) -> None:
        self._exits[node.type, exit.reason] += 1

    # What is read.

    def _put_job(self, scrape: Scrape, status: pb.JobStatus) -> None:
        scrape.put(m.JOB_INFO, 1, self._job.spec.distribution_strategy, __version__)
        scrape.put_state(m.JOB_STATE, STATES, status.state)
        scrape.put(m.JOB_ELAPSED, status.elapsed_s)
        scrape.put(m.WORKERS_WANTED, status.workers_wanted)
        if (written := self._journal.written()) is not None:
            scrape.put(m.JOURNAL_BYTES, written.st_size)
            scrape.put(m.JOURNAL_WRITTEN_AT, written.st_mtime)
        for kind, count in sorted(self._events.items()):
            scrape.put(m.EVENTS, count, kind)

    def _put_worlds(self, scrape: Scrape, status: pb.JobStatus) -> None:
        if self._components.rendezvous is None:
            return
        scrape.put(m.WORLD_SIZE, status.world_size)
        scrape.put(m.WORLD_VERSION, status.world_version)
        for cause in WorldCause:
            scrape.put_distribution(m.WORLD_CHANGE, self._changes[cause], cause)
            if cause is not WorldCause.START:  # Nobody made steps before it.
                scrape.put_distribution(m.WORLD_STALL, self._stalls[cause], cause)

    def _put_data(self, scrape: Scrape, status: pb.JobStatus) -> None:
        tasks = self._components.task_manager
        if tasks is None:
            return
        scrape.put(m.STEPS, status.steps)
        if status.HasField("loss"):
            scrape.put(m.LOSS, status.loss)
        scrape.put(m.SAMPLES_PER_SECOND, status.samples_per_s)
        for reason in ("given_back", "failed"):
            scrape.put(m.SHARDS_RETURNED, self._returned[reason], reason)
        leased = {ledger.spec.name: ledger.tasks_leased for ledger in tasks.all_ledgers}
        for view in status.dataset[-MOST_DATASETS:]:
            scrape.put(m.SAMPLES, view.committed, view.name)
            scrape.put(m.DATASET_EPOCH, view.epoch, view.name)
            scrape.put(m.DATASET_EPOCHS, 0 if view.endless else view.epochs, view.name)
            scrape.put(m.DATASET_EPOCH_SAMPLES, view.epoch_size, view.name)
            scrape.put(m.DATASET_EPOCH_COMMITTED, view.epoch_committed, view.name)
            scrape.put_flag(m.DATASET_FINISHED, view.finished, view.name)
            scrape.put(m.SHARDS_LEASED, view.leased_shards, view.name)
            scrape.put(m.TASKS_LEASED, leased[DatasetName(view.name)], view.name)

    def _put_nodes(self, scrape: Scrape, status: pb.JobStatus) -> None:
        nodes = {node.name: node for node in self._components.node_manager.nodes}
        counted = Counter((node.type, node.status) for node in nodes.values())
        relaunched = Counter(node.type for node in nodes.values() if node.relaunches)
        for role in ROLES:
            for state in NodeStatus:
                scrape.put(m.NODES, counted[role, state], role, state)
            for reason in ExitReason:
                scrape.put(m.NODE_EXITS, self._exits[role, reason], role, reason)
            scrape.put(m.NODE_RELAUNCHES, relaunched[role], role)
        optimizer = self._components.optimizer
        uses = {} if optimizer is None else optimizer.stats.use
        for view in status.node:
            node = nodes[NodeName(view.name)]
            if node.status.final:
                continue  # Over time they are many, and say nothing new.
            name, role = node.short_name, node.type
            scrape.put(m.NODE_RESTARTS, view.restarts, name, role)
            scrape.put_flag(m.NODE_ATTENDING, view.attending, name, role)
            scrape.put(m.NODE_SAMPLES, view.committed_samples, name, role)
            if view.HasField("rank"):
                scrape.put(m.NODE_RANK, view.rank, name, role)
            if node.resource.cpu is not None:
                scrape.put(m.NODE_CPU_LIMIT, node.resource.cpu, name, role)
            if node.resource.memory is not None:
                scrape.put(m.NODE_MEMORY_LIMIT, node.resource.memory.bytes, name, role)
            if (use := uses.get(node.name)) is not None:
                scrape.put(m.NODE_CPU, use.cpu, name, role)
                scrape.put(m.NODE_MEMORY, use.memory_bytes, name, role)
                scrape.put(m.NODE_GPU_MEMORY, use.gpu_memory_bytes, name, role)

    def _put_servers(self, scrape: Scrape, view: pb.ServersView) -> None:
        scrape.put(m.SERVERS_WANTED, view.wanted)
        scrape.put(m.SERVERS_VERSION, view.version)
        scrape.put_flag(m.SERVERS_SETTLED, view.settled)
        scrape.put(m.BUCKETS, view.buckets)
        scrape.put(m.BUCKETS_MOVING, view.moving)
        if self._saved_at is not None:
            scrape.put(m.SERVERS_SAVED_AT, self._saved_at)
        for server in view.server:
            name = server.node.removeprefix(f"{self._job.name}-")
            scrape.put(m.SERVER_BUCKETS, server.buckets, name)
            scrape.put(m.SERVER_BACKUPS, server.backups, name)
            scrape.put(m.SERVER_ROWS_PER_SECOND, server.rows_per_s, name)
            scrape.put(m.SERVER_MEMORY, server.memory_bytes, name)
            scrape.put_flag(m.SERVER_LEAVING, server.leaving, name)
        for table in view.table:
            scrape.put(m.TABLE_ROWS, table.rows, table.name)
            scrape.put(m.TABLE_BYTES, table.bytes, table.name)

    def _put_sizing(self, scrape: Scrape, optimizer: JobResourceOptimizer) -> None:
        record = optimizer.record
        scrape.put_flag(m.AUTOSCALE, optimizer.acts)
        scrape.put_state(m.SIZING_STAGE, OptimizerStage, record.stage)
        for kind, outcome in _PLAN_OUTCOMES.items():
            scrape.put(m.PLANS, self._events[kind], outcome)
        scrape.put(m.PLANS, sum(change.rolled_back for change in record.changes), "rolled_back")
        scrape.put_flag(m.PLAN_PENDING, record.pending is not None)
        scrape.put(m.OOM_KILLS, record.oom_kills)
        if record.changes:
            change = record.changes[-1]
            predicted = change.predicted
            scrape.put(m.PLAN_PREDICTED, predicted.samples_per_s, "expected")
            scrape.put(m.PLAN_PREDICTED, predicted.low, "low")
            scrape.put(m.PLAN_PREDICTED, predicted.high, "high")
            scrape.put(m.PLAN_COST, change.cost_s)
            if change.realised_samples_per_s is not None:
                scrape.put(m.PLAN_REALISED, change.realised_samples_per_s)
        if (reading := optimizer.stats.last) is not None:
            parts = {
                "whole": reading.step_s,
                "input": reading.input_wait_s,
                "pull": reading.pull_s,
                "push": reading.push_s,
                "sync": reading.sync_s,
            }
            for part, seconds in parts.items():
                scrape.put(m.STEP_SECONDS, seconds, part)


def _put_evaluation(scrape: Scrape, view: pb.EvaluationView) -> None:
    scrape.put_flag(m.EVALUATION_RUNNING, view.HasField("running"))
    scrape.put(m.EVALUATION_SAMPLES, view.size)
    scrape.put(m.EVALUATION_DONE, view.committed)
    for version, result in (("last", view.last), ("best", view.best)):
        if view.HasField("last" if version == "last" else "best"):
            scrape.put(m.EVALUATION_STEP, result.step, version)
            for name, value in sorted(result.metrics.items()):
                scrape.put(m.EVALUATION_METRIC, value, name, version)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
