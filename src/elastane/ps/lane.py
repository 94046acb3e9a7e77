"""A client's connections to all servers: send to each, then receive from each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from elastane.core.owners import OwnerMap, ServerAddress, ServerId
from elastane.model import errors
from elastane.model.errors import ElastaneError, MalformedMessage
from elastane.model.ps import TableSpec
from elastane.ps.frames import Flag, Header, Hello, Op, Parts
from elastane.ps.sockets import FrameSocket, connect
from elastane.ps.table_wire import write_table

_CONNECT_S = 2.0
_LOOK_S = 0.2
"""How often one who waits for an answer looks whether it still should."""
_DEFINED_AT_ONCE = 64
_PATIENCE_S = 1.0
"""After so long without an answer, a server that others have replaced is not waited for."""
_ERRORS: dict[str, type[ElastaneError]] = {
    kind.__name__: kind
    for kind in (
        errors.TableMismatch,
        errors.TableUnknown,
        errors.ServerFull,
        errors.InvalidInput,
        errors.RequestRefused,
    )
}


@dataclass(frozen=True)
class Request:
    """One frame to one server."""

    op: Op
    pieces: Parts
    flags: Flag = Flag.NONE


Answer = tuple[Header, memoryview]


@dataclass(frozen=True)
class Sent:
    """Requests that are to be answered."""

    owner_map: OwnerMap
    to: list[tuple[ServerId, FrameSocket]]


class Lane:
    """One connection to each server, opened when it is needed. For one thread at a time: it has a lock for that.

    `greet` is called with every new connection, before anything else is sent on it.
    """

    def __init__(
        self,
        hello: Hello,
        token: str,
        current: Callable[[], OwnerMap],
        specs: Callable[[], Iterable[TableSpec]],
        most_body: int,
    ) -> None:
        self.lock = threading.RLock()
        self._hello = hello
        self._token = token
        self._current = current
        self._most_body = most_body
        self._open: dict[ServerId, tuple[ServerAddress, FrameSocket]] = {}
        self.closed = False
        self._specs = specs
        self.greet: Callable[[ServerId, FrameSocket], None] = _say_nothing

    def ask(self, requests: Mapping[ServerId, Request], timeout_s: float) -> dict[ServerId, Answer]:
        """Send each server its request, then take the answers, as `receive` does."""
        return self.receive(self.send(requests), timeout_s)

    def send(self, requests: Mapping[ServerId, Request]) -> Sent:
        """Send each server its request. Raises the error of a server that has another table of a name."""
        sent = Sent(self._current(), [])
        begin = time.monotonic()
        for server, request in requests.items():
            connection = self._connection(server)
            if connection is None:
                continue
            try:
                connection.send(
                    request.op, 0, request.pieces, request.flags, partial(self._go_on, server, sent.owner_map, begin)
                )
                sent.to.append((server, connection))
            except OSError:
                self._drop(server)
        return sent

    def receive(
        self, sent: Sent, timeout_s: float, into: npt.NDArray[np.float32] | None = None
    ) -> dict[ServerId, Answer]:
        """Take the answers. Who gave none in this time, or was replaced by others, is not among them.

        They are good until the next call. Rows that fill `into` are received there. Raises the error that a server
        answered with, after all have answered.
        """
        answers: dict[ServerId, Answer] = {}
        failed: ElastaneError | None = None
        begin = time.monotonic()
        for server, connection in sent.to:
            try:
                go_on = partial(self._go_on, server, sent.owner_map, begin, timeout_s)
                header, body = connection.receive(self._most_body, go_on, into)
            except (OSError, MalformedMessage):
                self._drop(server)
                continue
            if header.op is Op.ERROR:
                failed = read_error(body)
            else:
                answers[server] = (header, body)
        if failed is not None:
            raise failed
        return answers

    def _go_on(self, server: ServerId, sent_map: OwnerMap, begin: float, timeout_s: float = 30.0) -> bool:
        waited_s = time.monotonic() - begin
        if self.closed or waited_s > timeout_s:
            return False
        return waited_s < _PATIENCE_S or not _replaced(server, sent_map, self._current())

    def say(self, server: ServerId, request: Request) -> bool:
        """Send what is not answered. False: the server could not be reached."""
        connection = self._connection(server)
        if connection is None:
            return False
        try:
            connection.send(request.op, 0, request.pieces, request.flags, lambda: False)
        except OSError:
            self._drop(server)
            return False
        return True

    def is_open(self, server: ServerId) -> bool:
        """Whether there is a connection to the server as it is now known."""
        known = self._open.get(server)
        return known is not None and known[0] == self._current().servers.get(server)

    def reach(self, server: ServerId) -> bool:
        """Open a connection where there is none. False: the server is away."""
        return self._connection(server) is not None

    def close(self) -> None:
        self.closed = True
        for _, connection in list(self._open.values()):
            connection.shut()
        with self.lock:
            for server in list(self._open):
                self._drop(server)

    def _connection(self, server: ServerId) -> FrameSocket | None:
        address = self._current().servers.get(server)
        known = self._open.get(server)
        if known is not None and (address is None or known[0] == address):
            return known[1]
        self._drop(server)
        if address is None or self.closed:
            return None
        try:
            connection = connect(server, address, self._hello, self._token, _CONNECT_S)
        except (OSError, MalformedMessage):
            return None
        self._open[server] = (address, connection)
        deadline = time.monotonic() + _CONNECT_S
        connection.wait_at_most(_LOOK_S)
        try:
            specs = list(self._specs())
            for first in range(0, len(specs), _DEFINED_AT_ONCE):
                # Many at once: the first request to a new server, in the middle of a move, waits for this.
                some = specs[first : first + _DEFINED_AT_ONCE]
                for spec in some:
                    connection.send(Op.DEFINE, 0, [write_table(spec)])
                for _ in some:
                    header, body = connection.receive(
                        self._most_body, lambda: not self.closed and time.monotonic() < deadline
                    )
                    if header.op is Op.ERROR:
                        raise read_error(body)
            self.greet(server, connection)
        except OSError:
            self._drop(server)
            return None
        except ElastaneError:
            self._drop(server)
            raise
        return connection

    def _drop(self, server: ServerId) -> None:
        known = self._open.pop(server, None)
        if known is not None:
            known[1].close()


def _say_nothing(server: ServerId, connection: FrameSocket) -> None:
    del server, connection


def read_error(body: memoryview) -> ElastaneError:
    """The error in an answer."""
    name, _, text = bytes(body[:10_000]).decode(errors="replace").partition("\n")
    return _ERRORS.get(name, errors.RequestRefused)(text)


def _replaced(server: ServerId, before: OwnerMap, now: OwnerMap) -> bool:
    if before is now:
        return False
    return any(
        old.owner == server != new.owner for old, new in zip(before.entries, now.entries, strict=True)
    ) or before.servers.get(server) != now.servers.get(server)
