"""Membership under every interleaving: one current world, everyone ends in it, and nobody moves alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from elastane.core.world import Decision, Rendezvous
from elastane.model.ids import NodeName
from tests.property.world_machine import WorldMachine

RUNS = settings(
    max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
HUNT = settings(RUNS, max_examples=2000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_everyone_ends_in_the_one_current_world() -> None:
    run_state_machine_as_test(WorldMachine, settings=RUNS)


class GoesTooEarly(Rendezvous):
    """A planted bug: the vote is called before the last member is ready."""

    def ready(self, node: NodeName, version: int, now: float) -> list[Decision]:
        if self.next is not None and self.next.world.version == version:
            self._ready.update(self.next.world.members)
        return super().ready(node, version, now)


class ForgetsTheJoiner(Rendezvous):
    """A planted bug: a loss during the switch recovers with the members of the old world only."""

    def lost(self, node: NodeName, now: float) -> list[Decision]:
        newcomers = set() if self.next is None else set(self.next.world.members) - set(self.current.members)
        decisions = super().lost(node, now)
        for newcomer in newcomers:
            self._here.pop(newcomer, None)
        return decisions


@pytest.mark.parametrize("planted", [GoesTooEarly, ForgetsTheJoiner])
def test_a_planted_bug_is_found(planted: type[Rendezvous]) -> None:
    class Machine(WorldMachine):
        rendezvous_class = planted

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=HUNT)
