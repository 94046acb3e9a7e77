"""Parameter servers under every interleaving: nothing acknowledged is lost, and every change ends well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from elastane.core import rebalance
from elastane.core.ps_cluster import PSCluster, _Server
from elastane.core.ps_orders import Change, Decision, Order, OrderKind, Still
from tests.property.ps_machine import PSMachine

RUNS = settings(max_examples=100, stateful_step_count=40, deadline=None)
LONG = settings(max_examples=1500, stateful_step_count=60, deadline=None)
HUNT = settings(RUNS, max_examples=4000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_servers_come_move_die_and_leave_and_every_change_ends_well() -> None:
    run_state_machine_as_test(PSMachine, settings=RUNS)


@pytest.mark.slow
def test_servers_end_well_however_long_it_takes() -> None:
    run_state_machine_as_test(PSMachine, settings=LONG)


class RemovesTooEarly(PSCluster):
    """A planted bug: a server goes before the workers have confirmed that they do not count on it."""

    def _may_go(self, server: int, known: _Server) -> bool:
        return not any(server in (entry.owner, entry.backup) for entry in self.entries)


class ForgetsItsOrders(PSCluster):
    """A planted bug: a server that comes back is not told again what it was to do."""

    def here(self, server: int, changes: list[Change], now: float) -> list[Decision]:
        again = set(self._orders.values())
        return [decision for decision in super().here(server, changes, now) if decision not in again]


class ForgetsTheBackup(PSCluster):
    """A planted bug: a dead server's buckets are made anew, though another has a copy."""

    def _claims(self) -> Iterator[Order]:
        for order in super()._claims():
            home = self.homes.owners[order.bucket]
            yield order if home is None else order._replace(kind=OrderKind.OWN, server=home)


class BelievesTheLastWord(PSCluster):
    """A planted bug: what is said last counts, whatever its epoch."""

    def _merge(self, speaker: int, changes: Iterable[Change]) -> None:
        told = list(changes)
        for bucket, *_ in told:
            self.entries[bucket] = self.entries[bucket]._replace(epoch=0)
        super()._merge(speaker, told)


class SavesInTheMiddle(PSCluster):
    """A planted bug: the servers save while buckets are on their way."""

    def hold(self, now: float) -> list[Decision]:
        return [*super().hold(now), Still()]


PLANTED = [RemovesTooEarly, ForgetsItsOrders, ForgetsTheBackup, BelievesTheLastWord, SavesInTheMiddle]


@pytest.mark.slow
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


def test_of_two_words_on_one_epoch_the_owners_counts() -> None:
    cluster = PSCluster(1)
    cluster.roster([(0, False), (1, False)], 0.0)
    cluster.here(0, [], 0.0)
    cluster.here(1, [], 0.0)
    epoch = 1 << 20
    cluster.learned(0, [(0, epoch, 0, None)], 0.0)
    cluster.here(0, [(0, epoch + 1, 1, 0)], 0.0)
    assert tuple(cluster.entries[0]) == (epoch + 1, 1, 0), "it has given the bucket away, and still has a copy"
    cluster.learned(1, [(0, epoch + 1, 1, None)], 0.0)
    assert cluster.entries[0].backup is None
    cluster.here(0, [(0, epoch + 1, 1, 0)], 0.0)
    assert cluster.entries[0].backup is None
