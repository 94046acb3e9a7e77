"""The one way from a server to another: frames in order, each acknowledged when it is applied."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from elastane.core.owners import ServerAddress, ServerId
from elastane.model.errors import ElastaneError, MalformedMessage
from elastane.ps import frames
from elastane.ps.frames import Buffer, Flag, Hello, Op
from elastane.ps.sockets import FrameSocket, connect

_CONNECT_S = 2.0
_MOST_QUEUED = 64 << 20
_COPY_WINDOW = 1 << 20
"""Bytes of pages that may be under way: what a push waits behind, so it is small."""


class Link:
    """Sends frames to one peer. `send` never waits; a frame's number is its place in the order, from 1."""

    def __init__(
        self,
        peer: ServerId,
        address: ServerAddress,
        hello: Hello,
        token: str,
        on_refused: Callable[[bytes], None],
        on_lost: Callable[[Link, str], None],
    ) -> None:
        self.peer = peer
        self._address = address
        self._hello = hello
        self._token = token
        self._on_refused = on_refused
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._queue: deque[tuple[Op, list[Buffer], Flag]] = deque()
        self._sizes: deque[int] = deque()
        self._sent = 0
        self._acked = 0
        self._refused: set[int] = set()
        self._bytes = 0
        self._lost = ""
        self._connection: FrameSocket | None = None
        self._thread = threading.Thread(target=self._run, name=f"link-{peer}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        return bool(self._lost)

    @property
    def last(self) -> int:
        """The number of the last frame."""
        return self._sent

    def send(self, op: Op, pieces: list[Buffer], flags: Flag = Flag.NONE) -> int:
        """Put a frame at the end of the queue; its pieces must not change any more. The answer is its number."""
        size = sum(map(len, pieces))
        with self._changed:
            self._sent += 1
            if not self._lost:
                self._queue.append((op, pieces, flags))
                self._sizes.append(size)
                self._bytes += size
                self._changed.notify_all()
            return self._sent

    def wait(self, number: int, needless: Callable[[], bool]) -> bool:
        """Wait until the peer has applied this frame. False: it refused some of it, or it need not be waited for."""
        with self._changed:
            while self._acked < number:
                if needless():
                    return False
                self._changed.wait(1.0)
            return number not in self._refused

    def wait_for_room(self, *, copying: bool) -> bool:
        """Wait until little enough is under way. False: the link is lost."""
        most = _COPY_WINDOW if copying else _MOST_QUEUED
        with self._changed:
            while self._bytes > most and not self._lost:
                self._changed.wait(1.0)
            return not self._lost

    def nudge(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, reason: str = "closed") -> None:
        """End the link; what has not been sent never will be."""
        with self._changed:
            first = not self._lost
            self._lost = self._lost or reason
            self._queue.clear()
            if self._connection is not None:
                self._connection.shut()
            self._changed.notify_all()
        if first:
            self._on_lost(self, reason)

    def _run(self) -> None:
        try:
            connection = self._connect()
        except (OSError, MalformedMessage) as error:
            self.close(f"cannot reach server {self.peer}: {error}")
            return
        receiver = threading.Thread(
            target=self._receive, args=(connection,), name=f"link-{self.peer}-answers", daemon=True
        )
        receiver.start()
        try:
            while (item := self._next()) is not None:
                op, pieces, flags = item
                connection.send(op, 0, pieces, flags)
        except OSError as error:
            self.close(str(error))
        receiver.join()
        connection.close()

    def _connect(self) -> FrameSocket:
        deadline = time.monotonic() + _CONNECT_S
        while True:
            try:
                connection = connect(self.peer, self._address, self._hello, self._token, _CONNECT_S)
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self._lost:
                    raise
                time.sleep(0.02)  # It may be about to listen.
                continue
            with self._changed:
                self._connection = connection
                if self._lost:
                    connection.shut()
            return connection

    def _next(self) -> tuple[Op, list[Buffer], Flag] | None:
        with self._changed:
            while not self._queue and not self._lost:
                self._changed.wait()
            return None if self._lost else self._queue.popleft()

    def _receive(self, connection: FrameSocket) -> None:
        try:
            while True:
                header, body = connection.receive(frames.MAX_BODY)
                if header.op is Op.ERROR:
                    raise MalformedMessage(bytes(body[:500]).decode(errors="replace"))
                if header.op is not Op.ACK:
                    raise MalformedMessage(f"{header.op.name} on a link between servers")
                if header.flags & Flag.REFUSED:
                    self._on_refused(bytes(body))
                with self._changed:
                    self._acked += 1
                    if header.flags & Flag.REFUSED:
                        self._refused.add(self._acked)
                    self._bytes -= self._sizes.popleft()
                    self._changed.notify_all()
        except (OSError, ElastaneError, IndexError) as error:
            self.close(str(error) or "the link broke")
