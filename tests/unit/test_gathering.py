"""The barrier of members that move when their own code says so, where the master's words come thick and fast."""

from __future__ import annotations

import pytest

from elastane.model.world import Place
from elastane.worker.gathering import GatheringMember, RendezvousClosed
from elastane.worker.link import WorldFollower

FIRST, SECOND = Place(1, 0, 2), Place(2, 0, 1)


class HastyMaster:
    """A link whose master tells of all that follows before the member's own thread comes to run again."""

    host = ""
    check_replicas = False

    def __init__(self, *, over: bool) -> None:
        self._over = over
        self.moved: list[int] = []

    def join_world(self, follower: WorldFollower, *, min_size: int = 0, max_size: int = 0) -> None:
        assert (min_size, max_size) == (0, 0)
        self._follower = follower
        follower.next_world(FIRST, recover=False, over=False)

    def world_ready(self, version: int) -> None:
        self._follower.go(version)
        if version == FIRST.version:
            self._follower.next_world(SECOND, recover=True, over=self._over)

    def world_moved(self, version: int, rounds: int, checksum: str) -> None:
        assert (rounds, checksum) == (0, "")
        self.moved.append(version)

    def world_broken(self, version: int) -> None:
        raise AssertionError(f"world {version} is no less than it was")

    def give_notice(self) -> None: ...

    def store_set(self, version: int, key: str, value: bytes) -> None: ...

    def store_get(self, version: int, key: str, timeout_s: float) -> bytes:
        raise TimeoutError(key, version, timeout_s)


def test_a_world_that_all_were_ready_for_is_told_to_all_though_one_has_left_it_already() -> None:
    link = HastyMaster(over=False)
    member = GatheringMember(link)
    assert member.gather(lambda _: {}, 1.0) == FIRST
    assert member.changing
    assert member.gather(lambda _: {}, 1.0) == SECOND
    assert not member.changing
    assert link.moved == [1, 2]


def test_a_world_that_all_were_ready_for_is_told_to_all_though_the_group_is_done() -> None:
    member = GatheringMember(HastyMaster(over=True))
    assert member.gather(lambda _: {}, 1.0) == FIRST
    assert member.over
    with pytest.raises(RendezvousClosed):
        member.gather(lambda _: {}, 1.0)
