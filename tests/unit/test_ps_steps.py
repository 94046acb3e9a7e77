"""Clocks and holds: when a step is whole, and what becomes of the pushes that waited for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from elastane.ps.clocks import LAST_VERSION, Clocks
from elastane.ps.frames import Keys, Push
from elastane.ps.holds import Holds


def push(client: int, step: int, rows: dict[int, float], weight: float = 1.0, table: int = 5) -> Push:
    keys = Keys(np.array([table], np.uint32), np.array([len(rows)], np.uint32), np.array(list(rows), np.int64))
    values = np.repeat(np.array(list(rows.values()), np.float32), 2)
    return Push(client, 1, step, weight, keys, np.array([0.5], np.float32), values)


def holds() -> Holds:
    return Holds(lambda tables: np.full(len(tables), 2, np.int64))


def chosen(*buckets: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(4), buckets)


def rows_of(taken: Push | None) -> dict[int, float]:
    assert taken is not None
    return dict(zip(taken.keys.ids.tolist(), taken.values[::2].tolist(), strict=True))


def test_without_members_nobody_is_waited_for() -> None:
    clocks = Clocks()
    assert clocks.floor() == -1
    assert clocks.wait(7, 0)
    clocks.tick(1, 3, 1.0)
    assert clocks.floor() == 3


def test_the_floor_is_that_of_the_slowest_member() -> None:
    clocks = Clocks()
    clocks.heed({1: (1, 0), 2: (1, 0)})
    clocks.tick(1, 4, 1.0)
    assert clocks.floor() == -1
    clocks.tick(2, 2, 1.0)
    assert clocks.floor() == 2
    assert not clocks.wait(2, 0), "it is whole, but not applied"
    clocks.applied(2)
    assert clocks.wait(2, 0)
    assert not clocks.wait(3, 0)


def test_one_who_joins_counts_from_the_first_step_that_nobody_has_pushed() -> None:
    clocks = Clocks()
    clocks.heed({1: (1, 0)})
    clocks.tick(1, 6, 1.0)
    assert clocks.propose(2, 1) == 7
    assert clocks.floor() == 6
    clocks.tick(1, 7, 1.0)
    assert clocks.floor() == 6


def test_what_a_client_said_first_does_not_undo_what_it_said_later() -> None:
    clocks = Clocks()
    clocks.heed({1: (1, 0), 2: (4, 0)})
    clocks.heed({2: (5, -1)})
    clocks.heed({2: (4, 0)})
    clocks.tick(1, 3, 1.0)
    assert clocks.floor() == 3
    clocks.heed({1: (LAST_VERSION, -1)})
    clocks.heed({1: (9, 0)})
    assert clocks.members()[1] == (LAST_VERSION, -1)


def test_shares_are_by_weight_and_equal_without_any() -> None:
    clocks = Clocks()
    clocks.tick(2, 0, 3.0)
    clocks.tick(1, 0, 1.0)
    assert clocks.shares(0) == {1: 0.25, 2: 0.75}
    clocks.tick(1, 1, 0.0)
    clocks.tick(2, 1, 0.0)
    assert clocks.shares(1) == {1: 0.5, 2: 0.5}
    assert clocks.shares(9) == {}


def test_one_is_behind_by_the_lead_of_the_foremost_other() -> None:
    clocks = Clocks()
    clocks.tick(1, 5, 1.0)
    clocks.tick(2, 2, 1.0)
    assert (clocks.lead(1), clocks.lead(2)) == (0, 3)


def test_what_is_held_of_a_step_is_added_up_by_shares_and_taken_once() -> None:
    held = holds()
    held.add(push(2, 0, {10: 4.0, 11: 8.0}), np.array([0, 1], np.uint32))
    held.add(push(1, 0, {10: 2.0}), np.array([0], np.uint32))
    held.add(push(1, 1, {10: 100.0}), np.array([0], np.uint32))
    assert held.steps(0) == [0]
    assert rows_of(held.take(0, chosen(0, 1), {1: 0.5, 2: 0.25})) == {10: 2.0, 11: 2.0}
    assert held.take(0, chosen(0, 1), {1: 0.5, 2: 0.25}) is None
    assert held.steps(5) == [1]


def test_only_chosen_buckets_are_taken_and_one_can_be_forgotten() -> None:
    held = holds()
    held.add(push(1, 0, {10: 1.0, 11: 2.0, 12: 3.0}), np.array([0, 1, 2], np.uint32))
    assert [one.keys.ids.tolist() for one in held.of_bucket(1)] == [[11]]
    held.forget(2)
    assert rows_of(held.take(0, chosen(0), {1: 1.0})) == {10: 1.0}
    assert rows_of(held.take(0, chosen(1, 2), {1: 1.0})) == {11: 2.0}
    assert not held


def test_a_client_that_did_not_push_all_of_the_step_does_not_count() -> None:
    held = holds()
    held.add(push(1, 0, {10: 1.0}), np.array([0], np.uint32))
    held.add(push(2, 0, {10: 7.0}), np.array([0], np.uint32))
    assert rows_of(held.take(0, chosen(0), {1: 1.0})) == {10: 1.0}
    assert not held


def test_shares_can_be_had_from_what_is_held() -> None:
    held = holds()
    held.add(push(1, 0, {10: 1.0}, weight=1.0), np.array([0], np.uint32))
    held.add(push(2, 0, {10: 1.0}, weight=3.0), np.array([0], np.uint32))
    assert held.shares(0) == pytest.approx({1: 0.25, 2: 0.75})
