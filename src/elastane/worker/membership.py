"""PlainMember: the place in the world of a worker that shares no step with others."""

from __future__ import annotations

import threading

from elastane.model.errors import MasterUnreachable
from elastane.model.world import Place
from elastane.worker.link import WorldLink

FIRST_WORLD_TIMEOUT_S = 60.0


class PlainMember:
    """Follows the worlds, and moves as soon as all are ready: workers that share no step need no common moment.

    The master's words come on the link's thread; the place is read from any.
    """

    def __init__(self, link: WorldLink) -> None:
        self._link = link
        self._place: Place | None = None
        self._next: Place | None = None
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        link.join_world(self)

    @property
    def place(self) -> Place:
        """The present place; waits for the first. Raises what ended the stream, or MasterUnreachable."""
        with self._changed:
            known = self._changed.wait_for(lambda: self._place or self._failure, FIRST_WORLD_TIMEOUT_S)
            if self._place is not None:
                return self._place
            if known:
                raise self._failure or AssertionError
            raise MasterUnreachable(f"no world in {FIRST_WORLD_TIMEOUT_S:g} s")

    def rejoin(self) -> None:
        self._next = None

    def next_world(self, place: Place, *, recover: bool, over: bool) -> None:  # noqa: ARG002  # nothing is shared
        self._next = place
        self._link.world_ready(place.version)

    def go(self, version: int) -> None:
        if self._next is not None and self._next.version == version:
            with self._changed:
                self._place = self._next
                self._changed.notify_all()
            self._link.world_moved(version, 0, "")

    def settled(self, version: int) -> None:
        """That all have moved means nothing to a worker that waits for nobody."""

    def failed(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
