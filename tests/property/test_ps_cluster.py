"""Parameter servers under every interleaving: nothing acknowledged is lost, and every change ends well."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from elastane.core import rebalance
from elastane.core.owners import Entry
from elastane.core.ps_cluster import PSCluster, _Server
from elastane.core.ps_orders import Decision
from tests.property.ps_machine import PSMachine

RUNS = settings(max_examples=250, stateful_step_count=50, deadline=None)
HUNT = settings(RUNS, max_examples=4000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_servers_come_move_die_and_leave_and_every_change_ends_well() -> None:
    run_state_machine_as_test(PSMachine, settings=RUNS)


class RemovesTooEarly(PSCluster):
    """A planted bug: a server goes before the workers have confirmed that they do not count on it."""

    def _may_go(self, server: int, known: _Server) -> bool:
        return not any(server in (entry.owner, entry.backup) for entry in self.entries)


class BuriesNobody(PSCluster):
    """A planted bug: what a dead server had is given out before the others have said what they have of it."""

    def _ended(self, server: int) -> list[Decision]:
        super()._ended(server)
        self._burials.clear()
        return []


class ForgetsItsOrders(PSCluster):
    """A planted bug: a server that comes back is not told again what it was to do."""

    def here(self, server: int, changes: list[tuple[int, int, int | None, int | None]], now: float) -> list[Decision]:
        again = set(self._orders.values())
        return [decision for decision in super().here(server, changes, now) if decision not in again]


class TrustsAnOldEpoch(PSCluster):
    """A planted bug: a backup is promoted with an epoch that the dead owner may have given out."""

    def _claims(self) -> list[object]:  # type: ignore[override]
        return [order._replace(value=self.entries[order.bucket].epoch + 1) for order in super()._claims()]


class MovesAllAtOnce(PSCluster):
    """A planted bug: nobody counts the moves."""

    def _moves(self) -> list[object]:  # type: ignore[override]
        self._most_moves = 1000
        return list(super()._moves())


class GivesUpBackupsTooSoon(PSCluster):
    """A planted bug: an owner goes on without its backup while the bucket is on its way to another."""

    def _drop_backups(self) -> bool:
        orders, self._orders = self._orders, {}
        dropped = super()._drop_backups()
        self._orders = orders
        return dropped


PLANTED = [
    RemovesTooEarly,
    BuriesNobody,
    ForgetsItsOrders,
    MovesAllAtOnce,
    GivesUpBackupsTooSoon,
]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_found(planted: type[PSCluster]) -> None:
    class Machine(PSMachine):
        rules_class = planted

    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(Machine, settings=HUNT)


placements = st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=60)
servers = st.sets(st.integers(0, 6), min_size=1).map(sorted)


@given(placements, servers)
def test_buckets_are_spread_evenly_and_as_few_as_possible_move(placement: list[int | None], chosen: list[int]) -> None:
    placed = rebalance.even(placement, chosen)
    counts = Counter(placed)
    low, more = divmod(len(placement), len(chosen))
    assert sorted((counts[server] for server in chosen), reverse=True) == [low + 1] * more + [low] * (
        len(chosen) - more
    )
    stayed = sum(old == new for old, new in zip(placement, placed, strict=True))
    held = sorted((Counter(placement)[server] for server in chosen), reverse=True)
    assert stayed == sum(min(count, low + (place < more)) for place, count in enumerate(held))


@given(placements, servers, st.data())
def test_a_hot_server_gives_buckets_away_and_none_becomes_hotter(
    placement: list[int | None], chosen: list[int], data: st.DataObject
) -> None:
    even = rebalance.even(placement, chosen)
    loads = data.draw(st.lists(st.floats(0, 1000), min_size=len(even), max_size=len(even)))
    placed = rebalance.by_load(even, chosen, loads)

    def hottest(where: list[int]) -> float:
        return max(sum(load for load, server in zip(loads, where, strict=True) if server == one) for one in chosen)

    assert hottest(placed) <= hottest(even) + 1e-6
    mean = sum(loads) / len(chosen)
    if hottest(even) <= mean * (1 + rebalance.TOLERANCE):
        assert placed == even, "nobody was hot"


@given(placements, servers, st.data())
def test_a_backup_is_on_another_server_and_none_has_too_many(
    placement: list[int | None], chosen: list[int], data: st.DataObject
) -> None:
    even = rebalance.even(placement, chosen)
    present = data.draw(st.lists(st.none() | st.integers(0, 6), min_size=len(even), max_size=len(even)))
    placed = rebalance.backups(even, present, chosen)
    if len(chosen) == 1:
        assert placed == [None] * len(even)
        return
    assert all(backup in chosen and backup != owner for backup, owner in zip(placed, even, strict=True))
    assert rebalance.backups(even, placed, chosen) == placed or max(Counter(placed).values()) > 1


def test_the_second_worker_of_one_epoch_does_not_exist() -> None:
    """What two servers say of one epoch: the owner's word on its backup counts, whichever comes last."""
    cluster = PSCluster(1)
    cluster.roster([(0, False), (1, False)], 0.0)
    cluster.here(0, [], 0.0)
    cluster.here(1, [], 0.0)
    epoch = 1 << 20
    cluster.learned(0, [(0, epoch, 0, None)], 0.0)
    cluster.away(0, 0.0)
    cluster.here(0, [(0, epoch + 1, 1, 0)], 0.0)
    cluster.learned(1, [(0, epoch + 1, 1, None)], 0.0)
    assert cluster.entries[0].owner == 1
    assert cluster.entries[0] in (Entry(epoch + 1, 1), Entry(epoch + 1, 1, None))  # type: ignore[arg-type]
