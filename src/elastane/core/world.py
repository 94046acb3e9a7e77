"""The rules of membership: which workers form the world, and when all may move to the next one.

A World is one generation of the worker group: a version and its members by rank. `Rendezvous` keeps the current world
and, when membership changes, the next one, through three phases:

    STABLE     every member is in the current world; nothing is to change
    BUILDING   the next world is published; its members build it in the background, and the current one works on
    SWITCHING  all members of the next world are ready; the current world's members vote, and move together

Who comes or gives notice while a next world is on its way waits for the one after it. A member that is lost before all
were ready is left out of a new next world, with a higher version. Once all are ready the next world is fixed, so that
no member can move to a world that another will not enter. A loss that breaks a world in use leads to a next world that
is marked `recover`: its members stop at once, and move to it as soon as all are ready, without a vote.

A message about a version that is not the next world's changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elastane.model.errors import RequestRefused
from elastane.model.ids import NodeName
from elastane.model.world import World


class Phase(enum.StrEnum):
    STABLE = "stable"
    BUILDING = "building"
    SWITCHING = "switching"


@dataclass(frozen=True)
class NextWorld:
    """Build this world. With `recover` the one in use is broken: stop, and move as soon as all are ready."""

    world: World
    recover: bool


@dataclass(frozen=True)
class Go:
    """Every member of this world is ready: the voters, who are in the present one, vote to move to it."""

    world: World
    voters: tuple[NodeName, ...]


@dataclass(frozen=True)
class Settled:
    """Every member has moved: this world is the current one, and who is not in it may leave."""

    world: World
    states: dict[NodeName, str] = field(default_factory=dict, compare=False)
    """What the members said of their training states."""


Decision = NextWorld | Go | Settled


class Rendezvous:
    """Who is here, and which world they form.

    The world has at most `max_size` members, and there is none below `min_size`. Joins are gathered for `settle_s`, but
    not longer than until `target` members are here. Every method answers with what is to be told, in order.
    """

    def __init__(self, *, min_size: int, max_size: int, target: int, settle_s: float) -> None:
        self.current = World(0, ())
        self.next: NextWorld | None = None
        self.phase = Phase.STABLE
        self.over = False
        """Whether a worker is done, and has left: once all have, who comes later finds nothing to do."""
        self.closed = False
        self._min_size = min_size
        self._max_size = max_size
        self._target = target
        self._settle_s = settle_s
        self._version = 0
        self._here: dict[NodeName, None] = {}
        self._leaving: set[NodeName] = set()
        self._ready: set[NodeName] = set()
        self._moved: dict[NodeName, str] = {}
        self._broken = False
        self._change_since: float | None = None
        self._reports: dict[int, float] = {}
        """The worlds that a member said are broken, and when it said so. Two may be: the current one and the next."""

    def join(self, node: NodeName, now: float) -> list[Decision]:
        """A node is here and wants to be a member."""
        self._here.setdefault(node)
        return self._advance(now)

    def leave(self, node: NodeName, now: float) -> list[Decision]:
        """A node gives notice: a member works on until a world without it is settled, any other may go at once."""
        if node in self._here:
            self._leaving.add(node)
        return self._advance(now)

    def lost(self, node: NodeName, now: float) -> list[Decision]:
        """A node is gone, with or without a word."""
        if node not in self._here:
            return []
        del self._here[node]
        self._leaving.discard(node)
        decisions: list[Decision] = []
        if self._in_use(node):
            self._broken = True
            self._change_since = None
            decisions += [] if self.closed else self._recover()
        elif self.next is not None and node in self.next.world.ranks:
            # Nobody has moved to it yet: gather anew, without the lost one.
            self._drop_next()
        return decisions + self._advance(now)

    def broken(self, node: NodeName, version: int, now: float) -> list[Decision]:
        """A member lost a connection in this world, or could not build it.

        Soon one is heard to be lost, and that decides; if none is, the same members start over.
        """
        if self._can_break(node, version):
            self._reports.setdefault(version, now)
        return self._advance(now)

    def ready(self, node: NodeName, version: int, now: float) -> list[Decision]:
        """A member has built the next world, and could move to it."""
        if self.phase is Phase.BUILDING and self._is_next(node, version):
            self._ready.add(node)
        return self._advance(now)

    def moved(self, node: NodeName, version: int, now: float, state: str = "") -> list[Decision]:
        """A member has moved to the next world, with a training state that it describes, or does not."""
        if self.phase is Phase.SWITCHING and self._is_next(node, version):
            self._moved[node] = state
        return self._advance(now)

    def completed(self) -> None:
        """A worker is done, and has left."""
        self.over = True

    @property
    def here(self) -> tuple[NodeName, ...]:
        """Those who are members, or want to be."""
        return tuple(self._here)

    def close(self) -> None:
        """The group is done: no world is formed any more."""
        self.closed = True

    def narrow(self, min_size: int, max_size: int) -> None:
        """Keep to these limits too, for good; 0 is no limit. Raises RequestRefused if no size fits all limits."""
        smallest, largest = max(self._min_size, min_size), min(self._max_size, max_size or self._max_size)
        if smallest > largest:
            raise RequestRefused(
                f"a world of {min_size} to {max_size or 'any number of'} members does not fit the limits "
                f"{self._min_size} to {self._max_size}"
            )
        if max_size:
            self._target = largest  # Who gives a maximum waits a moment for that many.
        self._min_size, self._max_size = smallest, largest

    def set_target(self, target: int, now: float) -> list[Decision]:
        """The job is to have so many workers: when they are here, nobody is waited for."""
        self._target = target
        return self._advance(now)

    def tick(self, now: float) -> list[Decision]:
        """Time has passed."""
        return self._advance(now)

    def next_tick(self) -> float | None:
        """When `tick` may have something to do."""
        waits = [since for since in (self._change_since, *self._reports.values()) if since is not None]
        return min(waits) + self._settle_s if waits and not self.closed else None

    def resume(self, now: float) -> list[Decision]:
        """Whoever asked these rules died, and all messages on their way with it.

        A world that is being built is given up, for its store is lost; one that members may have moved to stands.
        """
        decisions: list[Decision] = []
        if self.next is not None and self.phase is Phase.BUILDING:
            if self.next.recover:
                # Some of its members may be in a world that never settled: nobody but this one knows of them.
                decisions += self._recover()
            else:
                self._drop_next()
        self._reports.clear()
        return decisions + self._advance(now)

    def retold(self, node: NodeName) -> list[Decision]:
        """What a node may not have heard, because it or the server was away."""
        decisions: list[Decision] = [Settled(self.current)] if self.current.version else []
        if self.next is not None and node in self.next.world.ranks:
            decisions.append(self.next)
        if self.next is not None and self.phase is Phase.SWITCHING:
            decisions.append(Go(self.next.world, self.current.members))
        return decisions

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        coming = None if self.next is None else [self.next.world.version, self.next.world.members, self.next.recover]
        return {
            "current": [self.current.version, self.current.members],
            "next": coming,
            "phase": self.phase,
            "over": self.over,
            "closed": self.closed,
            "sizes": [self._min_size, self._max_size],
            "target": self._target,
            "version": self._version,
            "here": list(self._here),
            "leaving": sorted(self._leaving),
            "ready": sorted(self._ready),
            "moved": self._moved,
            "broken": self._broken,
            "change_since": self._change_since,
            "reports": list(self._reports.items()),
        }

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # its times are the job's own
        """Take the state of a snapshot."""
        version, members = state["current"]
        self.current = World(version, tuple(members))
        self.next = None
        if state["next"] is not None:
            version, members, recover = state["next"]
            self.next = NextWorld(World(version, tuple(members)), recover)
        self.phase = Phase(state["phase"])
        self.over = state["over"]
        self.closed = state["closed"]
        self._min_size, self._max_size = state["sizes"]
        self._target = state["target"]
        self._version = state["version"]
        self._here = dict.fromkeys(state["here"])
        self._leaving = set(state["leaving"])
        self._ready = set(state["ready"])
        self._moved = dict(state["moved"])
        self._broken = state["broken"]
        self._change_since = state["change_since"]
        self._reports = dict(state["reports"])

    def _advance(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        if self.closed:
            return decisions
        for version in [version for version, since in self._reports.items() if now >= since + self._settle_s]:
            del self._reports[version]
            decisions += self._start_over(version)
        while step := self._advance_once(now):
            decisions += step
        return decisions

    def _advance_once(self, now: float) -> list[Decision]:
        if self.next is None:
            return self._recover() if self._broken else self._gather(now)
        world = self.next.world
        if self.phase is Phase.BUILDING:
            if len(self._ready) < len(world):
                return []
            self.phase = Phase.SWITCHING
            return [Go(world, self.current.members)]
        if len(self._moved) < len(world):
            return []
        self.current = world
        self._broken = False
        states = {node: state for node, state in self._moved.items() if state}
        self._drop_next()
        return [Settled(world, states)]

    def _gather(self, now: float) -> list[Decision]:
        """Publish the next world if membership is to change and nobody is waited for any more."""
        # Counted, not listed: with many members a list for each of them would cost its square.
        leavers = sum(node in self.current.ranks for node in self._leaving)
        newcomers = len(self._here) - len(self._leaving) - (len(self.current) - leavers)
        size = min(self._max_size, len(self.current) - leavers + newcomers)
        changes = leavers > 0 or (newcomers > 0 and len(self.current) < self._max_size)
        everyone_leaves = size == 0 and leavers > 0
        if not changes or (size < self._min_size and not everyone_leaves):
            self._change_since = None
            return []
        if self._change_since is None:
            self._change_since = now
        if 0 < size < self._target and now < self._change_since + self._settle_s:
            return []
        self._change_since = None
        return self._publish(_ranked(self.current, self._members_to_be()), recover=False)

    def _recover(self) -> list[Decision]:
        """Publish a world of those who were in the broken one; who gave notice stays until it is whole again."""
        used = list(self.current.members)
        if self.next is not None and self._may_have_moved():
            used += [node for node in self.next.world.members if node not in self.current.ranks]
        survivors = [node for node in used if node in self._here]
        if len(survivors) < self._min_size:
            # Too few are left to go on: with newcomers, who start from what the survivors have.
            survivors = self._members_to_be()
        if len(survivors) < self._min_size:
            self._drop_next()
            return []
        return self._publish(_ranked(self.current, survivors), recover=True)

    def _start_over(self, version: int) -> list[Decision]:
        """Nobody was lost since a world was said to be broken: the same members form a new one."""
        if self.next is not None and version == self.next.world.version and not self._may_have_moved():
            self._drop_next()
            return []
        if not self._can_break(None, version):
            return []
        self._broken = True
        return self._recover()

    def _can_break(self, node: NodeName | None, version: int) -> bool:
        """Whether a member's word that this world is broken means anything (any more)."""
        if self.next is not None and version == self.next.world.version:
            return node is None or node in self.next.world.ranks
        return version == self.current.version and not self._broken and (node is None or node in self.current.ranks)

    def _publish(self, members: tuple[NodeName, ...], *, recover: bool) -> list[Decision]:
        self._drop_next()
        self._version += 1
        self.phase = Phase.BUILDING
        self.next = NextWorld(World(self._version, members), recover)
        return [self.next]

    def _drop_next(self) -> None:
        self.next = None
        self.phase = Phase.STABLE
        self._ready.clear()
        self._moved.clear()

    def _in_use(self, node: NodeName) -> bool:
        """Whether the loss of this node breaks a world that somebody may be working in."""
        if node in self.current.ranks:
            return True
        return self.next is not None and node in self.next.world.ranks and self._may_have_moved()

    def _may_have_moved(self) -> bool:
        """Whether members of the next world are in it by now, or have stopped in order to move to it."""
        return self.phase is Phase.SWITCHING or (self.next is not None and self.next.recover)

    def _is_next(self, node: NodeName, version: int) -> bool:
        return self.next is not None and self.next.world.version == version and node in self.next.world.ranks

    def _members_to_be(self) -> list[NodeName]:
        """Those who are here and stay, members before newcomers, no more than the largest world has.

        When only newcomers stay, one of the members that leave is with them for one world more: they must get from it
        what the members have.
        """
        staying = [node for node in self._here if node not in self._leaving]
        staying.sort(key=lambda node: node not in self.current.ranks)
        staying = staying[: self._max_size]
        if staying and staying[0] not in self.current.ranks:
            staying[:0] = [node for node in self.current.members if node in self._here][:1]
        return staying


def _ranked(before: World, members: Sequence[NodeName]) -> tuple[NodeName, ...]:
    """The members by rank: who had a rank that still exists keeps it, the others fill the gaps in their order."""
    kept = {rank: node for node in members if (rank := before.ranks.get(node, len(members))) < len(members)}
    others = iter([node for node in members if before.ranks.get(node, len(members)) >= len(members)])
    return tuple(kept[rank] if rank in kept else next(others) for rank in range(len(members)))
