"""A model of the nodes' life: what each slot is owed, counted by hand."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.core.nodes import EXIT_POLICIES, GroupLimits, JobEnd, NodeGroup
from elastane.model.errors import RequestRefused
from elastane.model.ids import JobName, NodeName
from elastane.model.node import ExitReason, Node, NodeExit, NodeResource, NodeStatus, NodeType
from elastane.model.plan import ScalePlan
from elastane.model.quantity import Memory
from tests.property.restarting_journal import RestartingJournal

FAILURES = [reason for reason in ExitReason if reason is not ExitReason.DONE]


class NodeMachine(RuleBasedStateMachine):
    """A platform that launches what it is told to, and nodes that end in every way there is."""

    group_class: type[NodeGroup] = NodeGroup

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.alive: dict[NodeName, Node] = {}
        self.asked_to_leave: set[NodeName] = set()
        self.succeeded: set[NodeName] = set()
        self.counted_failures: dict[int, int] = {}
        self.names_used: set[NodeName] = set()

    @initialize(
        low=st.integers(1, 3),
        more=st.integers(0, 4),
        restarts=st.integers(0, 3),
        critical=st.sampled_from([frozenset[int](), frozenset({0}), None]),
    )
    def start(self, low: int, more: int, restarts: int, critical: frozenset[int] | None) -> None:
        self.limits = GroupLimits(low, low + more, restarts, critical)
        self.journal = RestartingJournal()
        self.group = self.journal.watch(self._make())
        self._carry_out(self.group.scale_to(low, self.now))

    @rule()
    def the_master_dies(self) -> None:
        self.group = self.journal.restart(self.group, self._make())

    def _make(self) -> NodeGroup:
        return self.group_class(JobName("job"), NodeType.WORKER, NodeResource(memory=Memory.mib(100)), self.limits)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def runs(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.group.running(name)
        assert self.group.node(name).status is NodeStatus.RUNNING
        plan = self.group.relieve()
        gone = {node.name for node in plan.remove_nodes}
        if gone:
            assert all(node.status is NodeStatus.RUNNING for node in self._wanted()), "one left too soon"
        assert gone <= self.succeeded
        self._carry_out(plan)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), reason=st.sampled_from([ExitReason.DONE, *FAILURES]))
    def ends(self, data: st.DataObject, reason: ExitReason) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        node = self.alive.pop(name)
        released = not self.group.node(name).relaunchable
        ended_before = self.group.outcome is not None
        policy = EXIT_POLICIES[reason]
        before = len(self.group.nodes)
        plan = self.group.exited(name, NodeExit(reason), self.now)
        fresh = self.group.nodes[before:]
        if released or ended_before or not policy.relaunch:
            assert not fresh, "nobody asked for this node"
        elif policy.counts and node.restarts >= self.limits.restart_count:
            assert not fresh, "no restart was left"
        else:
            assert len(fresh) == 1, "a restart was left"
            (replacement,) = fresh
            assert replacement.slot == node.slot
            assert replacement.restarts == node.restarts + policy.counts
            assert replacement.relaunches == node.relaunches + 1
            factor = 2 if policy.more_memory else 1
            assert node.resource.memory is not None
            assert replacement.resource.memory == node.resource.memory * factor
        if reason is ExitReason.ERROR and not released:
            self.counted_failures[node.slot] = self.counted_failures.get(node.slot, 0) + 1
        assert not self.group.exited(name, NodeExit(reason), self.now), "a second word changes nothing"
        self._carry_out(plan)

    @rule(count=st.integers(0, 9))
    def scale(self, count: int) -> None:
        nodes = self.group.nodes
        try:
            plan = self.group.scale_to(count, self.now)
        except RequestRefused:
            assert self.group.nodes == nodes, "a refused request changed something"
            stopping = self.group.outcome is not None or self.stopped
            assert stopping or not self.limits.min_count <= count <= self.limits.max_count
            return
        assert self.limits.min_count <= count <= self.limits.max_count
        chief = [node for node in plan.remove_nodes if node.slot == 0]
        assert not chief, "the chief is never removed by scaling"
        self._carry_out(plan)
        assert len(self._wanted()) == count

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        wanted = len(self._wanted())
        try:
            plan = self.group.drain(name)
        except RequestRefused:
            leaves = name in self.asked_to_leave | self.succeeded
            assert self.stopped or self.group.outcome or leaves or wanted <= self.limits.min_count
            return
        assert [node.name for node in plan.remove_nodes] == [name]
        assert not plan.launch_nodes
        self._carry_out(plan)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        wanted = len(self._wanted())
        resource = NodeResource(memory=Memory.mib(300))
        try:
            plan = self.group.succeed(name, resource, self.now)
        except RequestRefused:
            assert self.stopped or self.group.outcome or not self.group.node(name).relaunchable
            return
        self.succeeded.add(name)
        assert not plan.remove_nodes, "the successor does not run yet"
        assert any((node.slot, node.resource) == (self.alive[name].slot, resource) for node in plan.launch_nodes)
        self._carry_out(plan)
        assert len(self._wanted()) == wanted

    @rule(seconds=st.sampled_from([0.1, 1.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        due = self.group.next_due()
        self.now += seconds
        plan = self.group.launch_due(self.now)
        assert bool(plan.launch_nodes) == (due is not None and due <= self.now)
        self._carry_out(plan)

    stopped = False

    @rule()
    def stop(self) -> None:
        self.stopped = True
        self._carry_out(self.group.stop())

    @invariant()
    def the_group_agrees_with_the_platform(self) -> None:
        if not hasattr(self, "group"):
            return
        statuses = {node.name: node.status for node in self.group.nodes}
        living = {name for name, s in statuses.items() if s in (NodeStatus.PENDING, NodeStatus.RUNNING)}
        assert living == set(self.alive)
        assert all(failures <= self.limits.restart_count + 1 for failures in self.counted_failures.values())
        if self.group.outcome is None:
            waiting = [name for name, status in statuses.items() if status is NodeStatus.INITIAL]
            assert living or waiting, "nothing lives, nothing is to come, and the job goes on"
            assert bool(waiting) == (self.group.next_due() is not None)
        else:
            assert not self._wanted(), "the job has ended, and its nodes were not told"
        if self.group.outcome is not None and self.group.outcome.end is JobEnd.SUCCEEDED:
            assert NodeStatus.SUCCEEDED in statuses.values()

    def teardown(self) -> None:
        """Whatever happened, once every node does its work the job ends by itself."""
        if not hasattr(self, "group"):
            return
        while self.alive or self.group.next_due() is not None:
            self.now = max(self.now, self.group.next_due() or 0.0)
            self._carry_out(self.group.launch_due(self.now))
            for name in sorted(self.alive):
                del self.alive[name]
                self._carry_out(self.group.exited(name, NodeExit(ExitReason.DONE), self.now))
        assert self.group.ended

    def _wanted(self) -> list[Node]:
        return [node for node in self.group.nodes if not node.status.final and node.relaunchable]

    def _carry_out(self, plan: ScalePlan) -> None:
        for node in plan.launch_nodes:
            assert node.name not in self.names_used, "a name was used twice"
            assert node.status is NodeStatus.PENDING
            self.names_used.add(node.name)
            self.alive[node.name] = node
        for node in plan.remove_nodes:
            assert node.name in self.alive
            assert node.is_released
            assert not node.relaunchable
            self.asked_to_leave.add(node.name)
