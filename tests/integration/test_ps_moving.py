"""Buckets move between real servers under load: every push is applied exactly once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from elastane.core.owners import ServerId
from tests.integration.ps_driver import Cluster, ServerProcess, cluster, pulled, random_of, workers

Record = Callable[[str, object], None]

BUCKETS = 16
N_IDS = 4000


def move_at_random(made: Cluster, seed: int, moves: int) -> None:
    """Hand buckets over, some at a time, each to a server that does not have it."""
    random = random_of(seed)
    left = moves
    while left:
        for bucket in random.sample(range(BUCKETS), min(left, random.randint(1, 6))):
            owner = made.owner(bucket)
            to = random.choice([number for number in made.living if number != owner])
            source = made.servers[owner]
            seen = len(source.events)
            assert made.hand_over(bucket, to) is source
            made.wait_for_end([(bucket, source, seen)])
            left -= 1
            made.hear()
        made.merge_all()
        made.spread_the_word()


def moved_under_load(seed: int, *, backups: bool) -> float:
    with cluster(BUCKETS, owners=2, spare=2) as made:
        if backups:
            made.back_up_all()
        with workers(made, 2, N_IDS, seed) as counting:
            move_at_random(made, seed, moves=40)
            done = [worker.stop() for worker in counting]
        assert [one.wrong for one in done] == [[], []]
        assert all(one.operations > 10 for one in done)
        made.merge_all()
        assert np.array_equal(pulled(made.map, N_IDS), done[0].pushed + done[1].pushed)
        if backups:
            check_backups(made)
        return max(one.worst_s for one in done)


def check_backups(made: Cluster) -> None:
    for bucket, entry in enumerate(made.map.entries):
        assert entry.owner is not None
        assert entry.backup is not None
        assert made.servers[entry.owner].ask("digest", bucket) == made.servers[entry.backup].ask("digest", bucket)


@pytest.mark.parametrize("backups", [False, True])
def test_every_push_is_applied_once_while_buckets_move(backups: bool, record_property: Record) -> None:
    record_property("worst_operation_s", moved_under_load(1, backups=backups))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_push_is_applied_once_in_random_schedules(seed: int, record_property: Record) -> None:
    record_property("worst_operation_s", moved_under_load(100 + seed, backups=seed % 2 == 1))


def killed_while_moving(seed: int) -> None:
    """Kill one server at a random moment of moves, with backups; then go on with the others."""
    random = random_of(seed)
    with cluster(BUCKETS, owners=3, spare=1) as made:
        made.back_up_all()
        with workers(made, 2, N_IDS, seed) as counting:
            moves = []
            for bucket in random.sample(range(BUCKETS), BUCKETS):
                seen = len(made.servers[made.owner(bucket)].events)
                source = made.hand_over(bucket, random.choice(sorted(made.living)))
                if source is not None:
                    moves.append((bucket, source, seen))
            if random.random() < 0.8:  # Somewhere in the middle; else while they begin.
                some = moves[random.randrange(len(moves))]
                made.wait_for_end([some])
            victim = random.choice(sorted(made.living))
            made.servers[victim].kill()
            assert made.recover(victim) == []
            made.wait_for_end(moves)
            made.back_up_all()
            move_at_random(made, seed, moves=6)
            done = [worker.stop() for worker in counting]
        assert [one.wrong for one in done] == [[], []]
        made.merge_all()
        assert np.array_equal(pulled(made.map, N_IDS), done[0].pushed + done[1].pushed)
        assert all(entry.owner in made.living for entry in made.map.entries)
        check_backups(made)


@pytest.mark.parametrize("seed", range(2))
def test_no_acknowledged_push_is_lost_when_a_server_is_killed_in_a_move(seed: int) -> None:
    killed_while_moving(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_acknowledged_push_is_lost_in_random_kills(seed: int) -> None:
    killed_while_moving(100 + seed)


def test_a_bucket_is_served_until_its_taker_has_all_of_it() -> None:
    def hand_over(bucket: int, to: ServerId) -> tuple[int, ServerProcess, int]:
        owner = made.servers[made.owner(bucket)]
        seen = len(owner.events)
        owner.ask("hand_over", bucket, to)
        return bucket, owner, seen

    with cluster(BUCKETS, owners=2, spare=1) as made:
        giver, taker = made.servers[ServerId(0)], made.servers[ServerId(2)]
        for to in (taker.id, giver.id):  # There is a link between them after that.
            made.wait_for_end([hand_over(0, to)])
            made.hear()
        taker.pause()
        under_way = hand_over(0, taker.id)
        pulled(made.map.without_server(taker.id), N_IDS)
        assert giver.ask("owned").entries[0].owner == giver.id
        taker.go_on()
        made.wait_for_end([under_way])
        made.hear()
        assert made.map.entries[0].owner == taker.id


def test_an_old_owner_that_wakes_up_steps_down() -> None:
    with cluster(BUCKETS, owners=2, spare=1) as made:
        made.back_up_all()
        with workers(made, 2, N_IDS, 5) as counting:
            made.servers[ServerId(0)].pause()
            asleep = made.servers.pop(ServerId(0))  # The master takes it for dead.
            assert made.recover(ServerId(0)) == []
            asleep.go_on()
            asleep.wait_for(lambda events: sum(type(event).__name__ == "SteppedDown" for event in events) == 8)
            done = [worker.stop() for worker in counting]
        assert [one.wrong for one in done] == [[], []]
        assert np.array_equal(pulled(made.map, N_IDS), done[0].pushed + done[1].pushed)
        asleep.end()
