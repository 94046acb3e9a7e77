"""A node's life under every interleaving: relaunched as its exit asks for, never more, and the job ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from elastane.core.nodes import ExitPolicy, NodeGroup
from elastane.model.ids import NodeName
from elastane.model.node import ExitReason, Node, NodeExit, NodeResource
from elastane.model.plan import ScalePlan
from tests.property.node_machine import NodeMachine

RUNS = settings(max_examples=400, stateful_step_count=40, deadline=None)
HUNT = settings(RUNS, max_examples=3000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_nodes_are_relaunched_by_the_rules_and_the_job_ends() -> None:
    run_state_machine_as_test(NodeMachine, settings=RUNS)


class RelaunchesTheReleased(NodeGroup):
    """A planted bug: a node that was asked to leave is replaced when it does."""

    def exited(self, name: NodeName, exit: NodeExit, now: float) -> ScalePlan:
        self._nodes[name] = replace(self._nodes[name], is_released=False, relaunchable=True)
        return super().exited(name, exit, now)


class CountsPreemptions(NodeGroup):
    """A planted bug: a preemption uses up a restart."""

    def _follow(self, node: Node, policy: ExitPolicy, reason: ExitReason, now: float) -> ScalePlan:
        return super()._follow(node, replace(policy, counts=True), reason, now)


class ForgetsTheChief(NodeGroup):
    """A planted bug: scaling in removes the oldest first."""

    def scale_to(self, count: int, now: float, resource: NodeResource | None = None) -> ScalePlan:
        wanted = self._wanted()
        plan = super().scale_to(count, now, resource)
        if not plan.remove_nodes:
            return plan
        for node in plan.remove_nodes:
            self._nodes[node.name] = replace(node, is_released=False, relaunchable=True)
        return self._release(wanted[: len(plan.remove_nodes)])


@pytest.mark.parametrize("planted", [RelaunchesTheReleased, CountsPreemptions, ForgetsTheChief])
def test_a_planted_bug_is_found(planted: type[NodeGroup]) -> None:
    class Machine(NodeMachine):
        group_class = planted

    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(Machine, settings=HUNT)
