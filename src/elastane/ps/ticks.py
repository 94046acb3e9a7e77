"""What a client tells every server of itself: that it has joined, and which steps it has pushed."""

from __future__ import annotations

import threading

from elastane.core.owners import ServerId
from elastane.ps import frames
from elastane.ps.calls import Directory
from elastane.ps.frames import Op, Parts
from elastane.ps.lane import Lane, Request
from elastane.ps.sockets import FrameSocket

_RETRY_S = 0.1
_KEPT = 64


class Ticks:
    """Tells the servers that are connected at once, and the others, in the background, as soon as they can be reached.

    All but `close` is called with the lane's lock.
    """

    def __init__(self, lane: Lane, directory: Directory) -> None:
        self._lane = lane
        self._directory = directory
        self._weights: dict[int, float] = {}
        self._heard: dict[ServerId, int] = {}
        self._version = 0
        self._from_step = -1
        self._behind = threading.Event()
        self._closed = threading.Event()
        lane.greet = self._greet
        directory.on_change = self._behind.set
        self._thread = threading.Thread(target=self._catch_up, name="ticks", daemon=True)
        self._thread.start()

    def next_version(self) -> int:
        """The version of what the client says of itself next."""
        self._version += 1
        return self._version

    def joined(self, step: int) -> None:
        """The client counts from this step on (-1: it does not)."""
        self._from_step = step
        self._version += 1

    def membership(self) -> Parts:
        """What the client says of itself."""
        return frames.write_join(self._version, self._from_step)

    def tick(self, step: int, weight: float) -> None:
        """All of a step has been pushed."""
        self._weights[step] = weight
        while len(self._weights) > _KEPT:
            del self._weights[min(self._weights)]
        told = [self._lane.is_open(server) and self._tell(server) for server in self._directory.map.servers]
        if not all(told):
            self._behind.set()

    def close(self) -> None:
        self._closed.set()
        self._behind.set()
        self._thread.join()

    def _greet(self, server: ServerId, connection: FrameSocket) -> None:
        if self._version:
            op = Op.JOIN if self._from_step >= 0 else Op.LEAVE
            connection.send(op, 0, self.membership())
            connection.receive(frames.MAX_BODY_BEFORE_HELLO, lambda: not self._closed.is_set())
        for step, weight in sorted(self._weights.items()):
            connection.send(Op.TICK, 0, frames.write_tick(step, weight))
        self._heard[server] = max(self._weights, default=-1)

    def _tell(self, server: ServerId) -> bool:
        if not self._lane.reach(server):  # If this opens a connection, it greets.
            return False
        heard = self._heard.get(server, -1)
        for step in sorted(step for step in self._weights if step > heard):
            if not self._lane.say(server, Request(Op.TICK, frames.write_tick(step, self._weights[step]))):
                return False
            self._heard[server] = step
        return True

    def _catch_up(self) -> None:
        while not self._closed.is_set():
            self._behind.wait()
            self._behind.clear()
            with self._lane.lock:
                told = not self._closed.is_set() and [self._tell(server) for server in self._directory.map.servers]
            if told and not all(told) and not self._closed.wait(_RETRY_S):
                self._behind.set()
