"""JobResourceOptimizer: has a job sized, stage by stage, and carries out what its ResourceOptimizer plans.

It asks whenever a window of the job's work is complete and no change is under way. What it asked for, what came of it
and what it cost is written into a SizingRecord, so that a master which comes after this one goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastane.core.sizing_record import OptimizerStage, SizingRecord
from elastane.master.event_log import EventLog
from elastane.master.job_manager import JobManager
from elastane.master.ps_manager import PSManager
from elastane.master.resource_optimizer import (
    LocalOptimizer,
    OptimizerConfig,
    ResourceOptimizer,
    ServerMemory,
    memory_moves,
)
from elastane.master.stats_reporter import StatsReporter
from elastane.master.task_manager import TaskManager
from elastane.model.errors import RequestRefused
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob
from elastane.model.node import ExitReason, Node, NodeExit, NodeType
from elastane.model.plan import ResourcePlan
from elastane.model.sizing import Budget, Change, JobKind, JobSize, Reading, Window
from elastane.platform.base import Room

LOOK_EVERY_S = 0.5
STABLE_WINDOWS = 3
"""After so many at one size the rules have had their chance to find a better one."""
PATIENCE_S = 120.0
"""How long a change may take to come about before the job is taken as it is."""
MEMORY_EVERY_S = 2.0
"""How often the growth of the servers' memory is looked at."""
MEMORY_SHARE = 0.8
"""How much of the memory that is left new nodes may take."""

_NEXT = {
    OptimizerStage.CREATE: OptimizerStage.WORKER_INITIAL,
    OptimizerStage.WORKER_INITIAL: OptimizerStage.PS_INITIAL,
    OptimizerStage.PS_INITIAL: OptimizerStage.RUNNING,
    OptimizerStage.RUNNING: OptimizerStage.RUNNING,
}


def kind_of(job: ElasticJob) -> JobKind:
    """How a job is sized."""
    return JobKind.ALLREDUCE if job.spec.ps is None else JobKind.PARAMETER_SERVER


class JobResourceOptimizer:
    """Sizes one job. Without `autoscale` it only observes, so that people can ask what it would do."""

    def __init__(
        self,
        job: ElasticJob,
        record: SizingRecord,
        optimizer: ResourceOptimizer,
        local: LocalOptimizer,
        stats: StatsReporter,
        node_manager: JobManager,
        ps_manager: PSManager | None,
        task_manager: TaskManager | None,
        events: EventLog,
        clock: Callable[[], float],
        room: Callable[[], Room | None],
    ) -> None:
        self.record = record
        self.optimizer = optimizer
        self.local = local
        """Answers what would be done. Another may remember what it was asked."""
        self.stats = stats
        self.acts = job.spec.autoscale is not None
        self._job = job
        self._node_manager = node_manager
        self._ps_manager = ps_manager
        self._task_manager = task_manager
        self._events = events
        self._clock = clock
        self._room = room
        self.on_observed: list[Callable[[Window], None]] = []
        self.on_change: list[Callable[[int, Change], None]] = []
        """Called with the number and what is known of a change, when it is through and with each window after."""
        self._fresh = False
        self._told_realised = len(record.changes)
        self._killed: list[Node] = []
        self._failed = False
        self._memory_looked_at = 0.0
        stats.on_reading.append(self._on_reading)
        stats.on_window.append(self._on_window)
        node_manager.on_node_end.append(self._on_node_end)

    @property
    def kind(self) -> JobKind:
        return kind_of(self._job)

    def config(self, wanted: JobSize | None = None) -> OptimizerConfig:
        """What holds for the job right now."""
        workers = self._node_manager.workers.group
        return OptimizerConfig(
            kind=self.kind,
            budget=self._budget(),
            now_s=self._clock(),
            remaining_samples=self._remaining_samples(),
            samples_done=self.samples_done(),
            samples_per_s=0.0 if self.stats.last is None else self.stats.last.samples_per_s,
            worker=workers.resource,
            ps=self._node_manager.servers.resource,
            peaks=self.stats.peaks,
            servers=self._servers(),
            wanted=wanted,
        )

    def samples_done(self) -> float:
        """Samples of all data sets that are committed."""
        return 0.0 if self._task_manager is None else float(self._task_manager.samples_done)

    def present_size(self) -> JobSize:
        """The size that the job is to have now."""
        workers, servers = self._node_manager.workers.group, self._node_manager.servers
        count = 0 if self._ps_manager is None else servers.target
        return JobSize(max(1, workers.target), count, workers.resource.cpu, servers.resource.cpu if count else None)

    async def would_do(self) -> str:
        """What it would do next, or why nothing, in one line."""
        if self._node_manager.outcome is not None:
            return "nothing, the job has ended"
        if self.record.pending is not None:
            return f"waits for the change to {self.record.pending.decision.size}"
        if self.record.paused:
            return "nothing, it was told to keep its size"
        if not self.record.windows:
            return "nothing is known yet: there is no window of the job's work"
        stage = self.record.stage if self.acts else OptimizerStage.RUNNING
        return (await self.local.generate_opt_plan(stage, self.config())).reason

    def pause(self, paused: bool) -> None:
        """Keep the size, or go on sizing. Raises RequestRefused if the job does not size itself."""
        if not self.acts:
            raise RequestRefused(f'job "{self._job.name}" does not size itself; it was started without --autoscale')
        if paused == self.record.paused:
            return
        self.record.pause(paused)
        if paused:
            self._events.emit("sizing_paused")
        else:
            self._events.emit("sizing_resumed")

    async def create(self) -> None:
        """Before anything is launched: the job's first size, from its configuration and from like jobs."""
        if not self.acts:
            return
        plan = await self.optimizer.generate_opt_plan(OptimizerStage.CREATE, self.config())
        workers = plan.node_group_resources.get(NodeType.WORKER)
        if workers is not None:
            self._node_manager.first_count = workers.count
        servers = plan.node_group_resources.get(NodeType.PS)
        if servers is not None and self._ps_manager is not None:
            self._ps_manager.first_count = servers.count
        if plan:
            self._say(plan.reason, workers=self._node_manager.first_count)
        self.record.entered(OptimizerStage.WORKER_INITIAL)

    async def run(self) -> None:
        """Look at the job from time to time; never returns."""
        if self.record.stage is OptimizerStage.CREATE:
            self._advance()  # A master before this one died before it had come to this.
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._node_manager.outcome is not None or self._node_manager.stopping or self._failed:
                continue
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  # whatever it is, the training must not end with it
                self._failed = True
                self._events.emit("sizing_failed", reason=f"{type(error).__name__}: {error}")

    async def look(self) -> None:
        """Do what is to be done now, if anything is."""
        killed, self._killed = self._killed, []
        if killed:
            plan = await self.optimizer.generate_oom_recovery_plan(killed, self.record.stage, self.config())
            self._carry_out(plan)
        if not self.acts:
            return
        if self._ps_manager is not None and self._clock() >= self._memory_looked_at + MEMORY_EVERY_S:
            self._memory_looked_at = self._clock()
            if moves := memory_moves(self.config()):
                self._carry_out(moves)
        if self._fresh and self.record.pending is None and not self.record.paused:
            self._fresh = False
            await self._size()

    async def _size(self) -> None:
        stage = self.record.stage
        plan = await self.optimizer.generate_opt_plan(stage, self.config())
        decision = plan.decision
        if decision is None or not self._carry_out(plan):
            if self._windows_here() >= STABLE_WINDOWS:
                self._advance()
            return
        self.record.began(decision, self._clock(), self.samples_done())
        self.stats.changing()

    def _windows_here(self) -> int:
        """How many windows there are of the present size, since the last change."""
        size = self.record.size
        since = self.record.changes[-1].at_s if self.record.changes else 0.0
        return sum(window.size == size and window.at_s > since for window in self.record.windows)

    def _advance(self) -> None:
        stage = _NEXT[self.record.stage]
        if stage is OptimizerStage.PS_INITIAL and self.kind is not JobKind.PARAMETER_SERVER:
            stage = OptimizerStage.RUNNING
        if stage is not self.record.stage:
            self.record.entered(stage)
            self._fresh = True

    def _carry_out(self, plan: ResourcePlan) -> bool:
        """Have the managers carry a plan out; false if they refuse it."""
        try:
            if self._ps_manager is not None:
                self._ps_manager.apply(plan)
            self._node_manager.apply(plan)
        except RequestRefused as error:
            self._events.emit("plan_refused", reason=str(error), line=plan.reason)
            return False
        self._say(plan.reason, workers=self._node_manager.target)
        if plan.decision is None:
            self.record.said(self._clock(), plan.reason)
        return True

    def _say(self, line: str, workers: int) -> None:
        servers = 0 if self._ps_manager is None else self._node_manager.servers.target or self._ps_manager.first_count
        self._events.emit("sizing_decided", line=line, stage=self.record.stage, workers=workers, ps=servers)

    # What is observed.

    def _on_reading(self, reading: Reading) -> None:
        pending = self.record.pending
        if pending is None:
            return
        late = reading.at_s > pending.at_s + PATIENCE_S
        if reading.size == pending.decision.size or late:
            self.record.settled(reading.size, reading.at_s, self.samples_done())
            change = self.record.changes[-1]
            self._events.emit(
                "sizing_settled", workers=change.after.workers, ps=change.after.ps, cost_s=round(change.cost_s, 3)
            )
            self._tell_change()
            self._advance()

    def _on_window(self, window: Window) -> None:
        if self.record.pending is not None:
            return  # It ends what was before the change.
        if self.record.size is not None and window.size != self.record.size:
            self.record.changed_by_others(window.size, window.at_s - window.duration_s, f"{window.size}, not by a plan")
            self._told_realised = len(self.record.changes)
        self.record.observed(window)
        self._fresh = True
        for callback in self.on_observed:
            callback(window)
        self._tell_change()
        changes = self.record.changes
        if len(changes) > self._told_realised and self._windows_here() >= STABLE_WINDOWS:
            self._told_realised = len(changes)
            change = changes[-1]
            self._events.emit(
                "sizing_realised",
                predicted=round(change.predicted.samples_per_s, 3),
                realised=round(change.realised_samples_per_s or 0.0, 3),
                workers=change.after.workers,
                ps=change.after.ps,
            )

    def _tell_change(self) -> None:
        for callback in self.on_change if self.record.changes else ():
            callback(len(self.record.changes), self.record.changes[-1])

    def _on_node_end(self, node: Node, exit: NodeExit) -> None:
        if exit.reason is ExitReason.OOM:
            self.record.killed_for_memory()
            self._killed.append(node)

    # What the job may have.

    def _remaining_samples(self) -> float | None:
        tasks = self._task_manager
        if tasks is None or not tasks.all_ledgers or any(ledger.spec.endless for ledger in tasks.all_ledgers):
            return None
        return float(tasks.remaining_samples)

    def _budget(self) -> Budget:
        spec = self._job.spec
        workers, servers = self._node_manager.workers.group, self._node_manager.servers
        return Budget(
            max_workers=self._most(spec.worker.max_replicas, workers.target, NodeType.WORKER),
            min_workers=spec.worker.min_replicas,
            max_ps=0 if spec.ps is None else self._most(spec.ps.max_replicas, servers.target, NodeType.PS),
            min_ps=0 if spec.ps is None else spec.ps.least,
            cpu=None if spec.autoscale is None else spec.autoscale.cpu,
        )

    def _most(self, allowed: int, present: int, role: NodeType) -> int:
        """How many nodes of a role there may be, by the memory that is left and by the cores that each really uses."""
        room, memory = self._room(), self.stats.peaks.get(role, 0)
        if room is None or not memory or not self.record.windows:
            return allowed
        by_memory = present + int(MEMORY_SHARE * room.free_memory.bytes / memory)
        newest = self.record.windows[-1]
        cpu = (newest.worker_cpu_used if role is NodeType.WORKER else newest.ps_cpu_used) or 0.0
        by_cpu = round(room.cpu / cpu) if cpu else allowed
        return max(present, min(allowed, by_memory, by_cpu))

    def _servers(self) -> dict[NodeName, ServerMemory]:
        """The servers that stay, with how their memory grew."""
        if self._ps_manager is None or not self._ps_manager.rules.settled:
            return {}
        staying = (node for node in self._node_manager.servers.nodes if not node.status.final and node.relaunchable)
        return {node.name: ServerMemory(node.resource, tuple(self.stats.memory.get(node.name, ()))) for node in staying}
