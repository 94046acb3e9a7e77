"""The connections of a server: listening, the hello, and a thread for each that serves a client or a peer."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elastane.core.owners import ServerId
from elastane.model.errors import ElastaneError, MalformedMessage
from elastane.ps import frames
from elastane.ps.clocks import LAST_VERSION
from elastane.ps.engine import Engine, Refused
from elastane.ps.frames import Flag, Hello, Keys, Op, Parts, Peer
from elastane.ps.ownership import Ownership
from elastane.ps.receiving import Receiver
from elastane.ps.server_events import PeerRefused
from elastane.ps.sockets import FrameSocket
from elastane.ps.table_wire import read_table

_HELLO_S = 5.0
_MOST_CONNECTIONS = 2048
_KEPT_NUMBERS = 2 << 20


class Connections:
    """Listens on a port and on a Unix socket, until it is stopped."""

    def __init__(self, engine: Engine, ownership: Ownership, token: str, life: int, most_body: int) -> None:
        self._engine = engine
        self._ownership = ownership
        self._token = token
        self._life = life
        self._most_body = most_body
        self._lock = threading.Lock()
        self._open: dict[FrameSocket, threading.Thread] = {}
        self._receivers: set[Receiver] = set()
        self._listeners: list[socket.socket] = []
        self._acceptors: list[threading.Thread] = []
        self._folder: Path | None = None
        self._stopped = False

    def start(self, host: str, port: int) -> tuple[str, int, str]:
        """Listen; the answer is the host, the port, and the path of the Unix socket."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        by_port = socket.create_server((host, port), family=family, backlog=256)
        self._folder = Path(tempfile.mkdtemp(prefix="elastane-ps-"))
        path = str(self._folder / f"{self._engine.ledger.me}.sock")
        by_path = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        by_path.bind(path)
        by_path.listen(256)
        self._listeners = [by_port, by_path]
        for listener in self._listeners:
            acceptor = threading.Thread(target=self._accept, args=(listener,), name="accept", daemon=True)
            self._acceptors.append(acceptor)
            acceptor.start()
        host, port = by_port.getsockname()[:2]
        return host, port, path

    def stop(self) -> None:
        """Close everything, and wait for the threads."""
        with self._lock:
            self._stopped = True
            connections = dict(self._open)
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for acceptor in self._acceptors:
            acceptor.join()
        for listener in self._listeners:
            listener.close()
        for connection in connections:
            connection.shut()
        for thread in connections.values():
            thread.join()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                for left in self._folder.iterdir():
                    left.unlink()
                self._folder.rmdir()

    def cut(self, peer: ServerId) -> None:
        """Apply nothing more that a peer has sent so far. The caller has the engine's lock."""
        with self._lock:
            receivers = [receiver for receiver in self._receivers if receiver.peer == peer]
        for receiver in receivers:
            receiver.ended()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self._stopped:
                    return
                continue  # This one went away again.
            with self._lock:
                if self._stopped or len(self._open) >= _MOST_CONNECTIONS:
                    sock.close()
                    continue
                connection = FrameSocket(sock)
                name = _name(sock)
                thread = threading.Thread(target=self._serve, args=(connection, name), name=f"of-{name}", daemon=True)
                self._open[connection] = thread
            thread.start()

    def _serve(self, connection: FrameSocket, name: str) -> None:
        try:
            hello = self._greet(connection)
            if hello.kind is Peer.SERVER:
                self._serve_peer(connection, ServerId(hello.number))
            else:
                _ClientConnection(self._engine, connection, hello, self._most_body).serve()
        except MalformedMessage as error:
            self._engine.tell(PeerRefused(name, str(error)))
        except TimeoutError:
            self._engine.tell(PeerRefused(name, f"no hello in {_HELLO_S:g} s"))
        except OSError:
            pass  # It went away, as connections do.
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _greet(self, connection: FrameSocket) -> Hello:
        connection.wait_at_most(_HELLO_S)
        header, body = connection.receive(frames.MAX_BODY_BEFORE_HELLO, lambda: False)
        if header.op is not Op.HELLO:
            raise MalformedMessage(f"{header.op.name} before a hello")
        hello = frames.read_hello(body, self._token)
        if hello.n_buckets != self._engine.ledger.n_buckets:
            raise MalformedMessage(f"a hello of {hello.n_buckets} buckets to {self._engine.ledger.n_buckets}")
        if hello.kind is Peer.SERVER and hello.number >= 0xFFFF:
            raise MalformedMessage(f"a server of number {hello.number}")
        connection.wait_at_most(0)
        connection.send(Op.DONE, header.request, frames.write_welcome(self._engine.ledger.me, self._life))
        return hello

    def _serve_peer(self, connection: FrameSocket, peer: ServerId) -> None:
        receiver = Receiver(self._engine, self._ownership, peer)
        with self._engine.order:
            self.cut(peer)  # A peer has one link; what an earlier one left behind must not come after this one.
            with self._lock:
                self._receivers.add(receiver)
        try:
            while True:
                header, body = connection.receive(self._most_body)
                try:
                    applied = receiver.handle(header, body)
                except MalformedMessage:
                    raise
                except ElastaneError as error:
                    connection.send(Op.ERROR, header.request, [str(error).encode()])
                    return
                refusal: Parts = [] if applied else [self._engine.ledger.map_bytes()]
                connection.send(Op.ACK, header.request, refusal, Flag.NONE if applied else Flag.REFUSED)
        finally:
            receiver.ended()
            with self._lock:
                self._receivers.discard(receiver)


class _ClientConnection:
    """Serves the requests of one client on one connection, one after another."""

    def __init__(self, engine: Engine, connection: FrameSocket, hello: Hello, most_body: int) -> None:
        self._engine = engine
        self._connection = connection
        self._client = hello.number
        self._most_body = most_body
        self._numbers: npt.NDArray[np.float32] = np.empty(1 << 14, np.float32)

    def serve(self) -> None:
        while True:
            header, body = self._connection.receive(self._most_body)
            if header.op is Op.TICK:
                self._engine.tick(self._client, *frames.read_tick(body))
                continue
            flags = Flag.NONE
            answer: Parts
            op = Op.DONE
            try:
                if header.op is Op.PULL:
                    op = Op.ROWS
                    answer, flags = self._pull(body)
                elif header.op in {Op.PUSH, Op.ASSIGN}:
                    kind = Flag.VALUES if header.op is Op.ASSIGN else Flag.NONE
                    answer, flags = self._push(body, (header.flags & ~Flag.VALUES) | kind)
                elif header.op is Op.DEFINE:
                    self._engine.define(read_table(body))
                    answer = []
                elif header.op is Op.JOIN:
                    answer = frames.write_join(*self._join(*frames.read_join(body)))
                elif header.op is Op.LEAVE:
                    version, _ = frames.read_join(body)
                    self._engine.heed({self._client: (version, -1)})
                    answer = []
                elif header.op is Op.MAP:
                    answer = [self._engine.ledger.map_bytes()]
                else:
                    raise MalformedMessage(f"{header.op.name} from a client")
            except MalformedMessage:
                raise
            except ElastaneError as error:
                op, answer = Op.ERROR, [f"{type(error).__name__}\n{error}".encode()]
            self._connection.send(op, header.request, answer, flags)

    def _join(self, version: int, step: int) -> tuple[int, int]:
        if not 0 <= version < LAST_VERSION or step < -1:
            raise MalformedMessage(f"a join of version {version} from step {step}")
        if step < 0:
            return version, self._engine.clocks.propose(self._client, version)
        self._engine.heed({self._client: (version, step)})
        return version, step

    def _pull(self, body: memoryview) -> tuple[Parts, Flag]:
        pull = frames.read_pull(body)
        rows, refused = self._engine.pull(pull, self._room)
        content = rows.view(np.uint8).data
        if not len(refused):
            return [content], Flag.NONE
        return [*self._refusal(pull.keys, refused), content], Flag.REFUSED

    def _push(self, body: memoryview, flags: Flag) -> tuple[Parts, Flag]:
        push = frames.read_push(body)
        if push.client != self._client:
            raise MalformedMessage("a push in the name of another client")
        refused = self._engine.push(push, flags)
        return (self._refusal(push.keys, refused), Flag.REFUSED) if len(refused) else ([], Flag.NONE)

    def _refusal(self, keys: Keys, refused: Refused) -> Parts:
        """Which rows, and what is known of their buckets: less than the whole map, for it is made in every move."""
        buckets = self._engine.store.buckets_of(keys.tables, keys.counts, keys.ids)[refused]
        changes = self._engine.ledger.map.part(np.unique(buckets).tolist())
        return frames.write_refusal(refused, changes.to_bytes())

    def _room(self, count: int) -> npt.NDArray[np.float32]:
        if count * 4 > self._most_body:
            raise MalformedMessage(f"a pull of {count} numbers is above the limit of {self._most_body} bytes")
        if count > len(self._numbers) or len(self._numbers) > max(count, _KEPT_NUMBERS):
            self._numbers = np.empty(max(count, 1 << 14), np.float32)
        return self._numbers[:count]


def _name(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{os.path.basename(sock.getsockname())}"
    host, port = sock.getpeername()[:2]
    return f"{host}:{port}"
