"""JobManager: the owner of the job's nodes. It applies scale plans to the platform and follows what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from elastane.core.nodes import JobEnd, NodeGroup, Outcome
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.node_manager import OnNodeEnd
from elastane.master.worker_manager import WorkerManager, evaluator_group, server_group
from elastane.model.errors import PlatformError
from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob
from elastane.model.node import ExitReason, Node, NodeExit, NodeGroupResource, NodeStatus, NodeType
from elastane.model.plan import ResourcePlan, ScalePlan
from elastane.platform.base import Platform
from elastane.rpc.protos import node_pb2 as pb

_TRACEBACK = "Traceback (most recent call last)"
_ERROR_TAIL = 4000

LAST_PLAN_S = 1.0
"""How long the platform has, at the job's end, to take what it was told before."""


class JobManager:
    """A NodeManager for nodes that it launches on a platform, from their launch to their end."""

    def __init__(self, job: ElasticJob, platform: Platform, events: EventLog, journal: Journal) -> None:
        self.workers = WorkerManager(job.name, job.spec.worker, journal)
        self.first_count = job.spec.worker.replicas
        """How many workers to launch at the job's start."""
        self.evaluators = evaluator_group(job.name, job.spec.evaluator, journal)
        self.servers = server_group(job.name, job.spec.ps, journal)
        self.on_start: list[Callable[[], None]] = []
        self.on_drain_server: Callable[[str], None] | None = None
        self.servers_may_leave: Callable[[], bool] = lambda: True
        """Asked when the workers have ended, until it is true; whoever it depends on calls `take`."""
        self.on_node_end: list[OnNodeEnd] = []
        self.on_target: list[Callable[[int], None]] = []
        self.pids: dict[NodeName, int] = {}
        self._job = job
        self._platform = platform
        self._events = events
        self._clock = journal.clock
        self._resumed = journal.resumed
        self._plans: asyncio.Queue[tuple[ScalePlan, bool]] = asyncio.Queue()
        self._changed = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self.workers.group.stopping

    @property
    def outcome(self) -> Outcome | None:
        return self.workers.group.outcome

    @property
    def target(self) -> int:
        return self.workers.group.target

    def error_of(self, outcome: Outcome) -> str:
        """What the node at fault printed last, from its last traceback on."""
        if outcome.node is None:
            return ""
        node_exit = self.node(outcome.node).exit
        tail = node_exit.log_tail if node_exit else ""
        return tail[max(0, tail.rfind(_TRACEBACK)) :].strip()

    def expects(self, name: str) -> bool:
        """Whether a node of this name is to attend: it was launched, and has not ended."""
        nodes = {node.name: node for node in self.nodes}
        return name in nodes and not nodes[NodeName(name)].status.final

    @property
    def nodes(self) -> Sequence[Node]:
        """Every node so far, the ended ones too: the workers, then the evaluators and the parameter servers."""
        return self.workers.group.nodes + self.evaluators.nodes + self.servers.nodes

    def node(self, name: str) -> Node:
        """The node of a full or short name; raise RequestRefused if there is none."""
        return self._group_of(name).node(name)

    def is_evaluator(self, name: NodeName) -> bool:
        return self.node(name).type is NodeType.EVALUATOR

    def is_server(self, name: NodeName) -> bool:
        return self.node(name).type is NodeType.PS

    @property
    def evaluators_expected(self) -> bool:
        """Whether an evaluator lives, or is to be launched."""
        return any(not node.status.final for node in self.evaluators.nodes)

    async def run(self) -> Outcome:
        """Launch the workers and follow them to the job's end. Raises PlatformError if the platform is gone."""
        if self._resumed:
            await self._resume()
        else:
            self.scale(self.first_count)
            if self._job.spec.evaluator is not None:
                self.take(self.evaluators.scale_to(self._job.spec.evaluator.replicas, self._clock()))
            for callback in self.on_start:
                callback()
        tasks = {asyncio.create_task(self._apply_plans()), asyncio.create_task(self._follow_platform())}
        try:
            while not (self.workers.group.ended and self._others_ended()):
                changed = asyncio.create_task(self._changed.wait())
                groups = (self.workers.group, self.evaluators, self.servers)
                due = min((due for group in groups if (due := group.next_due()) is not None), default=None)
                timeout = None if due is None else max(0.0, due - self._clock())
                done, _ = await asyncio.wait({changed, *tasks}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                for task in done & tasks:
                    task.result()  # They end only by an error.
                self._changed.clear()
                for group in groups:
                    due = group.next_due()
                    if due is not None and due <= self._clock():
                        self._hand_out(group.launch_due(self._clock()))
            with contextlib.suppress(TimeoutError):
                # The last plan may be to kill a lost node: let it go out.
                await asyncio.wait_for(self._plans.join(), LAST_PLAN_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert self.outcome is not None
        return self.outcome

    def scale(self, workers: int) -> None:
        """Grow or shrink to so many workers. Raises RequestRefused outside the job's limits."""
        self.apply(ResourcePlan({NodeType.WORKER: NodeGroupResource(workers, self.workers.group.resource)}))

    def apply(self, plan: ResourcePlan) -> None:
        """Carry a resource plan out, but for the servers. Raises RequestRefused outside the job's limits."""
        group = self.workers.group
        before = group.target
        scale_plan = self.workers.scale_plan(plan, self._clock())
        if NodeType.WORKER in plan.node_group_resources and (plan.decision is None or group.target != before):
            self._events.emit("scaled", role=group.type, workers=group.target, before=before)
        evaluators = plan.node_group_resources.get(NodeType.EVALUATOR)
        if evaluators is not None:
            resource = evaluators.node_resource
            scale_plan = scale_plan.joined(self.evaluators.scale_to(evaluators.count, self._clock(), resource))
        self.take(scale_plan)

    def drain(self, name: str) -> None:
        """Let one node leave without a replacement. Raises RequestRefused."""
        group = self._group_of(name)
        if group is self.servers and self.on_drain_server is not None:
            self.on_drain_server(name)
        else:
            self.take(group.drain(name))

    def stop(self, *, at_once: bool) -> None:
        """End the job: every node leaves."""
        leaving = self.workers.group.stop().remove_nodes + self.evaluators.stop().remove_nodes
        if at_once:
            self.servers.stop()
            leaving = tuple(node for node in self.nodes if not node.status.final)
        self.take(ScalePlan(remove_nodes=leaving), at_once=at_once)

    def fail(self, reason: str) -> None:
        """End the job as failed, for a reason found elsewhere."""
        self.take(self.workers.group.fail(reason))

    def abandon(self, reason: str) -> Outcome:
        """End the job as failed because the platform is gone, and all nodes with it."""
        group = self.workers.group
        group.fail(reason)
        self.evaluators.stop()
        self.servers.stop()
        for node in self.nodes:
            if not node.status.final:
                self._group_of(node.name).exited(node.name, NodeExit(ExitReason.KILLED), self._clock())
        assert group.outcome is not None
        return group.outcome

    def left(self, name: NodeName, goodbye: pb.Goodbye) -> None:
        """A node said goodbye. If that is because it was told to leave, its coming exit is no completion."""
        if goodbye.preempted:
            self._group_of(name).preempted(name)

    def lost(self, name: NodeName, why: str) -> None:
        """A node is silent or stuck: give it up, wherever it is, and replace it."""
        self._events.emit("node_lost", node=name, reason=why)
        self._node_ended(name, NodeExit(ExitReason.LOST, log_tail=why))
        self.take(ScalePlan(remove_nodes=(self.node(name),)), at_once=True)

    async def _resume(self) -> None:
        """Go on in the place of a master that died: hear what became of the nodes, and say again what may be lost."""
        # Of those alone it is not known whether the platform was told: who takes the place of another comes after that.
        asked_for = [node.name for node in self.nodes if node.status is NodeStatus.PENDING]
        known: set[NodeName] = set()
        for event in await self._platform.known():
            if not self._knows(event.node):
                continue
            known.add(event.node)
            self._on_event(event)
            if event.exit is None and self.node(event.node).status.final:
                # It was given up, but the word to kill it did not arrive.
                self._plans.put_nowait((ScalePlan(remove_nodes=(self.node(event.node),)), True))
        for node in self.nodes:
            if node.status is NodeStatus.PENDING and node.name in asked_for and node.name not in known:
                self._plans.put_nowait((ScalePlan(launch_nodes=(node,)), False))
            if node.is_released and not node.status.final:
                self._plans.put_nowait((ScalePlan(remove_nodes=(node,)), False))

    async def _apply_plans(self) -> None:
        while True:
            plan, at_once = await self._plans.get()
            await self._platform.scale(plan, at_once=at_once)
            self._plans.task_done()

    async def _follow_platform(self) -> None:
        async for event in self._platform.events():
            if self._knows(event.node):
                self._on_event(event)
        raise PlatformError("the platform reports no more")

    def _knows(self, name: NodeName) -> bool:
        """False of a node whose launch a lost journal took along: the next of its name finds it there already."""
        return any(node.name == name for node in self.nodes)

    def _on_event(self, event: NodeEvent) -> None:
        if event.exit is not None:
            self._node_ended(event.node, event.exit)
        elif event.status is NodeStatus.RUNNING:
            if event.pid is not None:
                self.pids[event.node] = event.pid
            if self.node(event.node).status is NodeStatus.PENDING:
                self._group_of(event.node).running(event.node)
                self._events.emit("node_running", node=event.node, pid=event.pid)
                self.take(self.workers.group.relieve())
        elif event.note:
            self._events.emit("node_waits", node=event.node, reason=event.note)

    def _node_ended(self, name: NodeName, node_exit: NodeExit) -> None:
        group = self._group_of(name)
        node = group.node(name)
        if node.status.final:
            return  # It was given up before; this is its end at last.
        plan = group.exited(name, node_exit, self._clock())
        node = group.node(name)
        node_exit = node.exit or node_exit
        error = node_exit.log_tail[-_ERROR_TAIL:] if node_exit.reason in (ExitReason.ERROR, ExitReason.OOM) else None
        self._events.emit(
            "node_ended",
            node=name,
            status=node.status,
            reason=node_exit.reason,
            code=node_exit.code,
            released=node.is_released,
            error=error,
        )
        # The plan goes out first: a callback may end the job, and what is launched must then be known to be removed.
        self.take(plan)
        if group is not self.workers.group and group.outcome is not None and group.outcome.end is JobEnd.FAILED:
            self.take(self.workers.group.fail(group.outcome.reason, group.outcome.node))
        for callback in self.on_node_end:
            callback(node, node_exit)

    def _group_of(self, name: str) -> NodeGroup:
        """The group of a node; of a name that no node has, the workers', which say so."""
        for group in (self.evaluators, self.servers):
            if any(name in (node.name, node.short_name) for node in group.nodes):
                return group
        return self.workers.group

    def _others_ended(self) -> bool:
        """Whether no other node lives. Once the workers have ended, those that do are told to leave.

        The parameter servers may have something to write before.
        """
        self._hand_out(self.evaluators.stop())
        failed = self.outcome is not None and self.outcome.end is JobEnd.FAILED
        if failed or not self.servers.nodes or self.servers.stopping or self.servers_may_leave():
            self._hand_out(self.servers.stop())
        return not self.evaluators_expected and all(node.status.final for node in self.servers.nodes)

    def take(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        """Follow a change: hand out what was decided, and let `run` look at what it means for the job."""
        self._hand_out(plan, at_once=at_once)
        for callback in self.on_target:
            callback(self.workers.group.target)
        self._changed.set()

    def _hand_out(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        """Write a plan down and hand it to the platform."""
        for node in plan.launch_nodes:
            self._events.emit(
                "node_launched",
                node=node.name,
                slot=node.slot,
                restarts=node.restarts,
                memory=None if node.resource.memory is None else str(node.resource.memory),
            )
        for node in plan.remove_nodes:
            self._events.emit("node_leaving", node=node.name, at_once=at_once)
        if plan:
            self._plans.put_nowait((plan, at_once))
