"""Moments of a world change that chance reaches too seldom."""

from __future__ import annotations

import pytest

from elastane.core.world import Go, NextWorld, Phase, Rendezvous, Settled
from elastane.model.errors import RequestRefused
from elastane.model.ids import NodeName
from elastane.model.world import World

A, B, C = (NodeName(f"job-worker-{number}") for number in range(3))


def settled_world_of_two() -> Rendezvous:
    rules = Rendezvous(min_size=1, max_size=4, target=2, settle_s=1.0)
    assert rules.join(A, 0.0) == []
    world = World(1, (A, B))
    assert rules.join(B, 0.0) == [NextWorld(world, recover=False)]
    rules.ready(A, 1, 0.0)
    assert rules.ready(B, 1, 0.0) == [Go(world, ())]
    rules.moved(A, 1, 0.0)
    assert rules.moved(B, 1, 0.0) == [Settled(world)]
    return rules


def test_a_loss_during_the_switch_recovers_with_the_newcomer_that_may_have_moved() -> None:
    rules = settled_world_of_two()
    assert rules.join(C, 10.0) == [NextWorld(World(2, (A, B, C)), recover=False)]
    for node in (A, B, C):
        rules.ready(node, 2, 10.0)
    assert rules.phase is Phase.SWITCHING
    assert rules.lost(A, 10.0) == [NextWorld(World(3, (C, B)), recover=True)]


def test_a_loss_while_the_next_world_is_built_recovers_without_the_newcomer() -> None:
    rules = settled_world_of_two()
    rules.join(C, 10.0)
    assert rules.lost(A, 10.0) == [NextWorld(World(3, (B,)), recover=True)]


def test_a_newcomer_lost_before_all_were_ready_stops_nobody() -> None:
    rules = settled_world_of_two()
    rules.join(C, 10.0)
    assert rules.lost(C, 10.0) == []
    assert rules.phase is Phase.STABLE
    assert rules.current == World(1, (A, B))


def test_a_word_about_an_older_world_changes_nothing() -> None:
    rules = settled_world_of_two()
    rules.join(C, 10.0)
    rules.lost(A, 10.0)
    assert rules.ready(B, 2, 10.0) == []
    assert rules.phase is Phase.BUILDING
    assert rules.ready(B, 3, 10.0) == [Go(World(3, (B,)), (A, B))]
    assert rules.moved(B, 2, 10.0) == []
    assert Settled(World(3, (B,))) in rules.moved(B, 3, 10.0)


def test_a_world_that_breaks_right_after_the_one_before_is_replaced_too() -> None:
    rules = settled_world_of_two()
    rules.broken(A, 1, 10.0)
    assert rules.tick(11.0) == [NextWorld(World(2, (A, B)), recover=True)]
    rules.broken(B, 1, 11.0)
    rules.broken(A, 2, 11.5)
    assert rules.tick(12.5) == [NextWorld(World(3, (A, B)), recover=True)]


def test_a_loss_does_not_hide_that_the_world_after_it_is_broken() -> None:
    rules = settled_world_of_two()
    rules.join(C, 10.0)
    rules.broken(A, 1, 10.0)
    assert rules.lost(B, 10.0) == [NextWorld(World(3, (A,)), recover=True)]
    rules.broken(A, 3, 10.5)
    rules.tick(11.0)
    assert rules.tick(11.5) == [NextWorld(World(4, (A,)), recover=True)]


def test_a_next_world_that_cannot_be_built_does_not_hide_that_the_current_one_is_broken() -> None:
    rules = settled_world_of_two()
    rules.join(C, 10.0)
    rules.broken(C, 2, 11.0)
    rules.broken(A, 1, 11.0)
    assert NextWorld(World(3, (A, B)), recover=True) in rules.tick(12.0)


def test_a_next_world_that_could_not_be_built_is_tried_again() -> None:
    rules = settled_world_of_two()
    rules.join(C, 10.0)
    rules.broken(C, 2, 11.0)
    assert rules.tick(12.0) == [NextWorld(World(3, (A, B, C)), recover=False)]


def test_when_all_leave_nobody_is_waited_for() -> None:
    rules = settled_world_of_two()
    rules.leave(A, 10.0)
    assert rules.leave(B, 10.0) == [
        NextWorld(World(2, ()), recover=False),
        Go(World(2, ()), (A, B)),
        Settled(World(2, ())),
    ]


def test_when_only_newcomers_stay_one_leaver_waits_until_they_have_its_state() -> None:
    rules = settled_world_of_two()
    rules.set_target(5, 10.0)
    assert rules.join(C, 10.0) == rules.leave(A, 10.0) == rules.leave(B, 10.0) == []
    both = World(2, (A, C))
    assert rules.tick(11.0) == [NextWorld(both, recover=False)]
    rules.ready(A, 2, 11.0)
    assert rules.ready(C, 2, 11.0) == [Go(both, (A, B))]
    rules.moved(A, 2, 11.0)
    assert rules.moved(C, 2, 11.0) == [Settled(both)]
    assert rules.tick(13.0) == [NextWorld(World(3, (C,)), recover=False)]


def test_limits_of_members_narrow_those_of_the_job() -> None:
    rules = Rendezvous(min_size=1, max_size=10, target=1, settle_s=1.0)
    rules.narrow(2, 3)
    assert rules.join(A, 0.0) == []
    assert rules.join(B, 0.0) == []  # A third may come.
    assert rules.tick(1.0) == [NextWorld(World(1, (A, B)), recover=False)]
    with pytest.raises(RequestRefused, match="a world of 4 to any number of members does not fit the limits 2 to 3"):
        rules.narrow(4, 0)


def test_a_closed_rendezvous_forms_no_world() -> None:
    rules = settled_world_of_two()
    rules.broken(A, 1, 0.0)
    rules.close()
    assert rules.lost(A, 0.0) == []
    assert rules.join(C, 0.0) == []
    assert rules.tick(2.0) == []
    assert rules.next_tick() is None
    assert rules.here == (B, C)
