"""A worker server as the coordinator uses it."""

from __future__ import annotations

import secrets
import socket
import weakref
from typing import Any

from elastane.coordinator import pickling, wire
from elastane.coordinator.cluster import split_address
from elastane.coordinator.running import MOST_PUSHES
from elastane.coordinator.values import PerWorkerReference, RemoteValue
from elastane.coordinator.wire import Connection, Identity, Kind, Run
from elastane.model.errors import MalformedMessage, RequestRefused, WorkerLost, WorkerUnreachable

_CONNECT_TIMEOUT_S = 2.0


class PythonClosure:
    """A function with its arguments, as they were when it was scheduled."""

    __slots__ = ("_value", "identity", "payload", "references")

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.payload, self.references = pickling.dumped((function, args, kwargs))
        self.identity: Identity | None = None
        """Given by the first worker that runs it, and kept: its pushes are known by it wherever it is run again."""
        self._value: weakref.ref[RemoteValue] | None = None

    def result(self) -> RemoteValue:
        """The value that this closure will bring. It does not travel once nobody holds it."""
        value = RemoteValue()
        self._value = weakref.ref(value)
        return value

    @property
    def held(self) -> RemoteValue | None:
        return None if self._value is None else self._value()

    def failed(self, error: BaseException) -> None:
        if (value := self.held) is not None:
            value.set_error(error)

    def cancelled(self) -> None:
        if (value := self.held) is not None:
            value.cancel()


class PythonRemote:
    """The connection to one worker server."""

    def __init__(self, index: int, connection: Connection) -> None:
        self._index = index
        self._connection = connection
        self._lane = secrets.randbits(63)
        self._closures = 0

    def run(self, closure: PythonClosure) -> None:
        """Run a closure. Raises WorkerLost, or the error of the user's function."""
        if closure.identity is None:
            self._closures += 1
            closure.identity = Identity(self._lane, self._closures * MOST_PUSHES)
        value = closure.held
        run = Run(closure.identity, value is not None, closure.payload)
        try:
            for reference in closure.references:
                self._define(reference)
            self._connection.send(Kind.RUN, *wire.write_run(run))
            kind, body = self._connection.receive()
        except (OSError, ValueError, MalformedMessage) as error:
            raise WorkerLost(str(error)) from error
        match kind:
            case Kind.DONE:
                result = None
            case Kind.RESULT:
                (result,) = pickling.loaded(body, _nobodys)
            case Kind.ERROR:
                raise pickling.load_error(body)
            case _:
                raise WorkerLost(f"it answered a closure with {kind.name}")
        if value is not None:
            value.set(result)

    def answers(self) -> bool:
        """Whether the server of this connection is there."""
        try:
            self._introduce()
        except (OSError, ValueError, MalformedMessage):
            return False
        return True

    def close(self) -> None:
        self._connection.close()

    def _introduce(self) -> None:
        self._connection.send(Kind.INTRODUCE, wire.write_introduction(self._index))
        self._connection.receive()

    def _define(self, reference: PerWorkerReference) -> None:
        if not reference.told(self._index, self):
            self._connection.send(Kind.DEFINE, *wire.write_define(reference.number, reference.pickled))


class PythonConnector:
    """Connects worker servers that hold the same token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def connect(self, index: int, address: str) -> PythonRemote:
        """Raises WorkerUnreachable."""
        try:
            sock = socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S)
        except OSError as error:
            raise WorkerUnreachable(
                f"worker {address} does not answer ({error}); start it before it is added"
            ) from None
        try:
            remote = PythonRemote(index, wire.opened(sock, self._token))
            remote._introduce()
        except (OSError, RequestRefused, MalformedMessage) as error:
            sock.close()
            raise WorkerUnreachable(f"worker {address} cannot be used: {error}") from None
        return remote

    def forget(self, index: int) -> None:
        """There is nothing to forget: the connection went with its worker."""


def _nobodys(number: int) -> Any:
    raise MalformedMessage(f"a result refers to per-worker value {number}")
