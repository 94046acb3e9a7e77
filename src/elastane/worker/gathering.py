"""GatheringMember: the place in the world of a member that moves when its own code says so.

Frameworks that stop to form a group anew (torchrun, and others with a rendezvous of their own) need a barrier: `gather`
returns, on every member of a world, once all of them have called it. Between two calls nobody is moved; `changing`
tells that somebody came or left, and that the others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic

from elastane.model.errors import RequestRefused
from elastane.model.world import Place
from elastane.worker.link import WorldLink

STORE_TIMEOUT_S = 5.0
"""What was put into a world's store before all were ready is there at once, or the world has passed."""

Prepare = Callable[[Place], Mapping[str, bytes]]
"""Called with the place to come, before it is certain: what the other members are to find in the world's store."""


class RendezvousClosed(RequestRefused):
    """The group is done: no world will be formed any more."""


class GatheringMember:
    """Follows the worlds. The master's words come on the link's thread; the methods are for one other thread."""

    def __init__(self, link: WorldLink, *, min_size: int = 0, max_size: int = 0) -> None:
        self._link = link
        self._limits = (min_size, max_size)
        self._joined = False
        self._place: Place | None = None
        self._next: Place | None = None
        self._void = False
        self._over = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()

    @property
    def changing(self) -> bool:
        """Whether the world that the last `gather` returned is no longer the one to work in."""
        with self._changed:
            return self._place is not None and (self._next is not None or self._void or self._over)

    @property
    def over(self) -> bool:
        """Whether the group is done, so that `gather` would raise."""
        with self._changed:
            return self._over

    def gather(self, prepare: Prepare, timeout_s: float) -> Place:
        """Wait until all members of the next world have called this; the answer is this one's place in it.

        If nothing is to change, this asks for a new world of the same members. Raises RendezvousClosed when the group
        is done, TimeoutError, or what ended the link.
        """
        deadline = monotonic() + timeout_s
        self._ask()
        prepared: Place | None = None
        while True:
            place = self._await_news(prepared, deadline)
            if place == prepared:
                self._link.world_moved(place.version, 0, "")
                return place
            for key, value in prepare(place).items():
                self._link.store_set(place.version, key, value)
            # Said after the values, and heard in that order: when all are ready, all values are there.
            self._link.world_ready(place.version)
            prepared = place

    def find(self, place: Place, key: str) -> bytes:
        """What a member of this world put into its store. Raises TimeoutError if the world has passed."""
        return self._link.store_get(place.version, key, STORE_TIMEOUT_S)

    def _ask(self) -> None:
        with self._changed:
            place, nothing_new = self._place, self._next is None and not self._void and not self._over
        if not self._joined:
            self._joined = True
            self._link.join_world(self, min_size=self._limits[0], max_size=self._limits[1])
        elif place is not None and nothing_new:
            self._link.world_broken(place.version)

    def _await_news(self, prepared: Place | None, deadline: float) -> Place:
        """The next place once there is another than the prepared one, or that one once all are ready for it."""
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if prepared is not None and self._place == prepared:
                    return prepared  # Whatever has come since: all of them called `gather`, and all are told so.
                if self._over:
                    raise RendezvousClosed("the group is done, and its rendezvous is closed")
                if self._next is not None and self._next != prepared:
                    return self._next
                if not self._changed.wait(deadline - monotonic()):
                    raise TimeoutError("the other members of the world did not come in time")

    def rejoin(self) -> None:
        with self._changed:
            self._next = None
            self._void = True
            self._changed.notify_all()

    def next_world(self, place: Place, *, recover: bool, over: bool) -> None:  # noqa: ARG002  # it stops either way
        with self._changed:
            if not over and not self._void and self._place is not None and place.version <= self._place.version:
                return  # A master that came after another tells it once more.
            self._over = self._over or over
            self._next = None if over else place
            self._changed.notify_all()

    def go(self, version: int) -> None:
        with self._changed:
            if self._next is not None and self._next.version == version:
                self._place, self._next, self._void = self._next, None, False
                self._changed.notify_all()

    def settled(self, version: int) -> None:
        """That all have moved is known: all of them called `gather`."""

    def failed(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
