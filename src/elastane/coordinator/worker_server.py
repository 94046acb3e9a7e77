"""A worker server: runs the closures of authenticated coordinators, one at a time for each.

It holds nothing that must not be lost: a coordinator whose connection ends runs what was under way elsewhere.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from elastane.coordinator import pickling, wire
from elastane.coordinator.running import RunningClosure, run_as
from elastane.coordinator.wire import Connection, Kind
from elastane.model.errors import MalformedMessage, PlatformError, RequestRefused

_log = logging.getLogger("elastane.coordinator")


class WorkerServer:
    """Listens for coordinators that hold the token."""

    def __init__(self, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """Raises PlatformError if it cannot listen there."""
        self._token = token
        self._stopping = False
        self._lock = threading.Lock()
        self._sessions: dict[threading.Thread, _Session] = {}
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise PlatformError(f"cannot listen at {host}:{port}: {error.strerror}") from None
        self.address = f"{host}:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Take coordinators until `stop`, and return when the closures under way are done."""
        while not self._stopping:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                break
            thread = threading.Thread(target=self._attend, args=(sock, peer[0]), name="closures", daemon=True)
            thread.start()
        with self._lock:
            waiting = list(self._sessions)
        for thread in waiting:
            thread.join()

    def stop(self) -> None:
        """Take no more closures, and let those under way come to their end."""
        self._stopping = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            _log.debug("the listener was closed already")
        self._listener.close()
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()

    def stop_soon(self) -> None:
        """Have `stop` called, by another thread: a signal handler must not wait for the closures under way."""
        threading.Thread(target=self.stop, name="stop", daemon=True).start()

    def _attend(self, sock: socket.socket, peer: str) -> None:
        with sock:
            try:
                connection = wire.accepted(sock, self._token)
            except (RequestRefused, MalformedMessage, OSError) as error:
                _log.warning("a coordinator at %s is refused: %s", peer, error)
                return
            session = _Session(connection)
            with self._lock:
                if self._stopping:
                    return
                self._sessions[threading.current_thread()] = session
            try:
                session.serve()
            except MalformedMessage as error:
                _log.warning("a coordinator at %s is refused: %s", peer, error)
            except OSError as error:
                _log.info("the coordinator at %s is gone: %s", peer, error)
            finally:
                connection.close()
                with self._lock:
                    del self._sessions[threading.current_thread()]


class _Session:
    """One coordinator's closures, and the values that this worker has its own of for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._index = 0
        self._makers: dict[int, bytes] = {}
        self._values: dict[int, Any] = {}
        self._busy = threading.Lock()
        self._stopping = False

    def serve(self) -> None:
        while True:
            kind, body = self._connection.receive()
            match kind:
                case Kind.RUN:
                    run = wire.read_run(body)
                    with self._busy:
                        if self._stopping:
                            return
                        self._run(run)
                case Kind.DEFINE:
                    number, make = wire.read_define(body)
                    self._makers[number] = make
                case Kind.INTRODUCE:
                    self._index = wire.read_introduction(body)
                    self._connection.send(Kind.DONE)
                case _:
                    raise MalformedMessage(f"a frame of kind {kind.name} from a coordinator")

    def stop(self) -> None:
        """End the connection, after the closure under way."""
        self._stopping = True
        with self._busy:
            self._connection.shut()

    def _run(self, run: wire.Run) -> None:
        try:
            with run_as(RunningClosure(self._index, run.identity)):
                function, args, kwargs = pickling.loaded(run.payload, self._own_value)
                result = function(*args, **kwargs)
            if result is None or not run.wants_result:
                answer = (Kind.DONE, b"")
            else:
                answer = (Kind.RESULT, pickling.dumped((result,))[0])
        except BaseException as error:  # noqa: BLE001  # whatever the user's function raises is the coordinator's to tell
            answer = (Kind.ERROR, pickling.dump_error(error))
        self._connection.send(*answer)

    def _own_value(self, number: int) -> Any:
        if number not in self._values:
            if number not in self._makers:
                raise MalformedMessage(f"a closure uses per-worker value {number}, which was not defined here")
            make: tuple[Callable[[], Any]] = pickling.loaded(self._makers[number], self._own_value)
            self._values[number] = make[0]()
        return self._values[number]
