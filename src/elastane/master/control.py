"""Control: what a person may ask of the job, and what the job looks like from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from elastane.core.lockstep import StepLedger
from elastane.core.shards import ShardLedger
from elastane.master import sizing_view
from elastane.master.attendance import Attendance
from elastane.master.event_log import EventLog
from elastane.master.job_history import SAMPLE_EVERY_S, JobHistory
from elastane.master.job_manager import JobManager
from elastane.master.job_resource_optimizer import JobResourceOptimizer
from elastane.master.node_manager import NodeManager
from elastane.master.ps_manager import PSManager
from elastane.master.rendezvous_server import RendezvousServer
from elastane.master.requested_plan import requested_plan
from elastane.master.stats_reporter import NodeUse
from elastane.master.task_manager import TaskManager
from elastane.master.training_service import TrainingService
from elastane.model.errors import MalformedMessage, RequestRefused
from elastane.model.job_spec import ElasticJob
from elastane.model.node import Node, NodeType
from elastane.model.quantity import Memory
from elastane.rpc.protos import control_pb2 as pb

NO_USE = NodeUse()
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.05, 60.0


class Control:
    """The `Control` service."""

    def __init__(
        self,
        job: ElasticJob,
        node_manager: NodeManager,
        task_manager: TaskManager | None,
        rendezvous: RendezvousServer | None,
        training_service: TrainingService | None,
        ps_manager: PSManager | None,
        optimizer: JobResourceOptimizer | None,
        attendance: Attendance,
        events: EventLog,
        clock: Callable[[], float],
    ) -> None:
        self._job = job
        self._node_manager = node_manager
        self._task_manager = task_manager
        self._rendezvous = rendezvous
        self._training_service = training_service
        self._ps_manager_or_none = ps_manager
        self._optimizer_or_none = optimizer
        self._attendance = attendance
        self._events = events
        self._clock = clock
        self._ended = asyncio.Event()
        self.history = JobHistory()

    def end(self) -> None:
        """Let the watchers have the last events and go."""
        self._ended.set()

    async def remember(self) -> None:
        """Take samples of the job for its history; never returns."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            tasks, optimizer = self._task_manager, self._optimizer_or_none
            self.history.sample(
                time.time(),
                workers=self._workers_here(),
                samples_per_s=0.0 if tasks is None else tasks.rate.per_second(self._clock()),
                steps=0 if tasks is None else tasks.steps,
                loss=None if optimizer is None else optimizer.stats.loss,
            )

    def _workers_here(self) -> int:
        """The members of the world or, where workers form none, those who are here."""
        if self._rendezvous is not None and self._rendezvous.world.version:
            return len(self._rendezvous.world)
        workers = (node for node in self._node_manager.nodes if node.type is NodeType.WORKER)
        return sum(self._attendance.attends(node.name) for node in workers)

    async def get_history(self, _: pb.GetHistoryRequest) -> pb.HistoryView:
        return self.history.view()

    async def get_status(self, _: pb.GetStatusRequest) -> pb.JobStatus:
        return self.status()

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchUpdate]:
        if not _LEAST_INTERVAL_S <= request.status_interval_s <= _MOST_INTERVAL_S:
            raise MalformedMessage(
                f"status_interval_s {request.status_interval_s} is not from {_LEAST_INTERVAL_S} to {_MOST_INTERVAL_S}"
            )
        with self._events.watch() as queue:
            while True:
                last = self._ended.is_set()
                lines = [queue.get_nowait() for _ in range(queue.qsize())]
                yield pb.WatchUpdate(status=self.status(), event=[pb.EventRecord(json=line) for line in lines])
                if last:
                    return
                try:
                    await asyncio.wait_for(self._ended.wait(), request.status_interval_s)
                except TimeoutError:
                    continue

    async def scale(self, request: pb.ScaleRequest) -> pb.Done:
        if not request.HasField("workers") and not request.HasField("servers"):
            raise MalformedMessage("a request to scale nothing")
        if request.HasField("servers"):
            self._ps_manager.scale(request.servers)
        if request.HasField("workers"):
            self._node_manager.scale(request.workers)
        return pb.Done()

    async def apply(self, request: pb.ApplyRequest) -> pb.Done:
        manager = self._node_manager
        if not isinstance(manager, JobManager):
            raise RequestRefused(f'job "{self._job.name}" launches no nodes')
        plan = requested_plan(request, manager)
        roles = {*plan.node_group_resources, *(manager.node(name).type for name in plan.node_resources)}
        if NodeType.PS in roles:
            self._ps_manager.apply(plan)
        manager.apply(plan)
        self._events.emit("plan_applied", reason=plan.reason)
        return pb.Done()

    async def migrate(self, request: pb.MigrateRequest) -> pb.Done:
        resource = self._ps_manager.group.node(request.node).resource
        if request.HasField("memory_bytes"):
            resource = replace(resource, memory=Memory(request.memory_bytes))
        if request.HasField("cpu"):
            resource = replace(resource, cpu=request.cpu)
        self._ps_manager.migrate(request.node, resource)
        return pb.Done()

    async def save(self, _: pb.SaveRequest) -> pb.Done:
        self._ps_manager.save()
        return pb.Done()

    async def explain(self, _: pb.ExplainRequest) -> pb.SizingView:
        return await sizing_view.explain(self._job.name, self._optimizer)

    async def predict(self, request: pb.PredictRequest) -> pb.SizePoint:
        workers = request.workers if request.HasField("workers") else None
        servers = request.servers if request.HasField("servers") else None
        return await sizing_view.predict(self._optimizer, workers, servers)

    async def pause_autoscaling(self, request: pb.PauseAutoscalingRequest) -> pb.Done:
        self._optimizer.pause(request.paused)
        return pb.Done()

    @property
    def _optimizer(self) -> JobResourceOptimizer:
        if self._optimizer_or_none is None:
            raise RequestRefused(f'job "{self._job.name}" launches no nodes, so nothing is known of its size')
        return self._optimizer_or_none

    @property
    def _ps_manager(self) -> PSManager:
        if self._ps_manager_or_none is None:
            raise RequestRefused(f'job "{self._job.name}" has no parameter servers; it was started without --ps')
        return self._ps_manager_or_none

    async def drain(self, request: pb.DrainRequest) -> pb.Done:
        self._node_manager.drain(request.node)
        return pb.Done()

    async def stop(self, request: pb.StopRequest) -> pb.Done:
        self._node_manager.stop(at_once=request.at_once)
        return pb.Done()

    def status(self) -> pb.JobStatus:
        """The job as it is now."""
        outcome = self._node_manager.outcome
        status = pb.JobStatus(
            job=self._job.name,
            state=outcome.end if outcome else "stopping" if self._node_manager.stopping else "running",
            reason=outcome.reason if outcome else "",
            elapsed_s=self._clock(),
            workers_wanted=self._node_manager.target,
            node=[self._node_view(node) for node in self._node_manager.nodes],
        )
        if self._task_manager is not None:
            status.dataset.extend(_dataset_view(ledger) for ledger in self._task_manager.all_ledgers)
            status.samples_per_s = self._task_manager.rate.per_second(self._clock())
            status.steps = self._task_manager.steps
        if self._rendezvous is not None:
            status.world_version = self._rendezvous.world.version
            status.world_size = len(self._rendezvous.world)
        if self._training_service is not None and (view := self._training_service.view()) is not None:
            status.evaluation.CopyFrom(view)
        if self._ps_manager_or_none is not None:
            status.servers.CopyFrom(self._ps_manager_or_none.view())
        if self._optimizer_or_none is not None:
            status.autoscaled = self._optimizer_or_none.acts
            status.autoscaling_paused = self._optimizer_or_none.record.paused
            if (loss := self._optimizer_or_none.stats.loss) is not None:
                status.loss = loss
        return status

    def _node_view(self, node: Node) -> pb.NodeView:
        stats = None if self._optimizer_or_none is None else self._optimizer_or_none.stats
        use = NO_USE if stats is None else stats.use.get(node.name, NO_USE)
        return pb.NodeView(
            name=node.name,
            type=node.type,
            id=node.id,
            slot=node.slot,
            status=node.status,
            pid=0 if node.status.final else self._node_manager.pids.get(node.name, 0),
            restarts=node.restarts,
            attending=self._attendance.attends(node.name),
            leaving=node.is_released and not node.status.final,
            exit_reason=node.exit.reason if node.exit else "",
            committed_samples=self._task_manager.committed_by.get(node.name, 0) if self._task_manager else 0,
            rank=self._rendezvous.world.ranks.get(node.name) if self._rendezvous else None,
            cpu=use.cpu,
            memory_bytes=use.memory_bytes,
            cpu_limit=node.resource.cpu or 0.0,
            memory_limit_bytes=node.resource.memory.bytes if node.resource.memory else 0,
        )


def _dataset_view(ledger: ShardLedger | StepLedger) -> pb.DatasetView:
    spec = ledger.spec
    return pb.DatasetView(
        name=spec.name,
        endless=spec.endless,
        epoch_size=spec.epoch_size or 0,
        epochs=spec.epochs,
        epoch=ledger.epoch,
        epoch_committed=ledger.committed_in_epoch(ledger.epoch),
        committed=ledger.committed_samples,
        leased_shards=ledger.leased_shards,
        finished=ledger.finished,
        retried_shards=ledger.retried_shards,
    )
