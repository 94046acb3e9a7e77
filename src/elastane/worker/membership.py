"""Membership: this worker's place in the world, as the master tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from elastane.model.errors import MasterUnreachable
from elastane.model.world import Place
from elastane.rpc.protos import node_pb2 as pb

FIRST_WORLD_TIMEOUT_S = 60.0


class Membership:
    """Follows the worlds, and moves as soon as all are ready: workers that share no step need no common moment.

    The master's messages come on the stream's thread; the place is read from any.
    """

    def __init__(self, say: Callable[[pb.NodeMessage], None]) -> None:
        self._say = say
        self._place: Place | None = None
        self._next: Place | None = None
        self._failure: Exception | None = None
        self._changed = threading.Condition()

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

    def attend(self) -> None:
        """On every new stream: be a member, whatever was before."""
        self._next = None
        self._say(pb.NodeMessage(join_world=pb.JoinWorld()))

    def take(self, message: pb.MasterMessage) -> None:
        """Follow a word of the master about worlds."""
        match message.WhichOneof("body"):
            case "next_world":
                told = message.next_world
                self._next = Place(told.version, told.rank, told.size)
                self._say(pb.NodeMessage(world_ready=pb.WorldReady(version=told.version)))
            case "go_to_world":
                if self._next is not None and self._next.version == message.go_to_world.version:
                    with self._changed:
                        self._place = self._next
                        self._changed.notify_all()
                    self._say(pb.NodeMessage(world_moved=pb.WorldMoved(version=self._next.version)))

    def failed(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
