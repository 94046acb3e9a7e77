"""The connection between a coordinator and a worker server: both prove that they hold the token, then frames pass.

The server sends a random number, the client answers with its own and with a code of both that only a holder of the
token can make, and the server answers with such a code too. Nothing of a peer is read before that but those few bytes,
and nothing is unpickled. A frame is a kind (one byte), a length (four, little-endian) and that many bytes.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

from elastane.model.errors import MalformedMessage, RequestRefused

MAX_BODY = 256 << 20
HANDSHAKE_TIMEOUT_S = 5.0

_MAGIC = b"elastane closures 1\n"
_NONCE_BYTES = 32
_CODE_BYTES = 32
_FRAME = struct.Struct("<BI")
_RUN = struct.Struct("<QqB")
_DEFINE = struct.Struct("<Q")
_INTRODUCE = struct.Struct("<I")


class Kind(enum.IntEnum):
    """What a frame is."""

    INTRODUCE = 1
    """To the server: which worker it is to this coordinator."""
    DEFINE = 2
    """To the server: how a value that it is to have its own of is made. Not answered."""
    RUN = 3
    """To the server: a closure, and by what name its pushes are known."""
    DONE = 4
    """The closure is done; its result is None, or nobody wants it."""
    RESULT = 5
    ERROR = 6


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True)
class Identity:
    """By what name the effects of a closure are known to parameter servers, however often it is run.

    Its pushes are those of client `lane`, with the sequence numbers that follow `sequence`.
    """

    lane: int
    sequence: int


@dataclass(frozen=True)
class Run:
    """A closure on its way to a server."""

    identity: Identity
    wants_result: bool
    payload: bytes


class Connection:
    """Frames over a socket, after both sides have proven themselves. Closed by either side, it raises OSError."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._input = sock.makefile("rb", buffering=64 * 1024)

    def send(self, kind: Kind, *parts: bytes) -> None:
        length = sum(map(len, parts))
        if length > MAX_BODY:
            raise RequestRefused(f"{length} bytes are more than a closure or its result may have ({MAX_BODY})")
        self._socket.sendall(b"".join((_FRAME.pack(kind, length), *parts)))

    def receive(self) -> tuple[Kind, bytes]:
        """The next frame. Raises MalformedMessage, or ConnectionError when the other side has gone."""
        kind, length = _FRAME.unpack(self._exactly(_FRAME.size))
        if length > MAX_BODY:
            raise MalformedMessage(f"a frame of {length} bytes; {MAX_BODY} are the most")
        if kind not in _KINDS:
            raise MalformedMessage(f"a frame of kind {kind}")
        return _KINDS[kind], self._exactly(length)

    def shut(self) -> None:
        """End it under whoever is waiting in `receive`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It has ended already.

    def close(self) -> None:
        self._input.close()
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = self._input.read(count) if count else b""
        if len(data) < count:
            raise ConnectionResetError("the other side has closed the connection")
        return data


def write_run(run: Run) -> tuple[bytes, bytes]:
    return _RUN.pack(run.identity.lane, run.identity.sequence, run.wants_result), run.payload


def read_run(body: bytes) -> Run:
    """Raises MalformedMessage."""
    if len(body) < _RUN.size:
        raise MalformedMessage(f"a closure in {len(body)} bytes")
    lane, sequence, wants_result = _RUN.unpack_from(body)
    if sequence < 0:
        raise MalformedMessage(f"a closure with sequence {sequence}")
    return Run(Identity(lane, sequence), bool(wants_result), body[_RUN.size :])


def write_define(number: int, make: bytes) -> tuple[bytes, bytes]:
    return _DEFINE.pack(number), make


def read_define(body: bytes) -> tuple[int, bytes]:
    """Raises MalformedMessage."""
    if len(body) < _DEFINE.size:
        raise MalformedMessage(f"a definition in {len(body)} bytes")
    return int(_DEFINE.unpack_from(body)[0]), body[_DEFINE.size :]


def write_introduction(index: int) -> bytes:
    return _INTRODUCE.pack(index)


def read_introduction(body: bytes) -> int:
    """Raises MalformedMessage."""
    if len(body) != _INTRODUCE.size:
        raise MalformedMessage(f"an introduction in {len(body)} bytes")
    return int(_INTRODUCE.unpack(body)[0])


def accepted(sock: socket.socket, token: str) -> Connection:
    """The server's side of the beginning. Raises RequestRefused for who has no token, MalformedMessage, OSError."""
    own = secrets.token_bytes(_NONCE_BYTES)
    _prepare(sock)
    sock.sendall(_MAGIC + own)
    answer = _read(sock, _NONCE_BYTES + _CODE_BYTES)
    theirs, code = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(code, _code(token, b"client", own, theirs)):
        raise RequestRefused("wrong or missing token")
    sock.sendall(_code(token, b"server", own, theirs))
    sock.settimeout(None)
    return Connection(sock)


def opened(sock: socket.socket, token: str) -> Connection:
    """The client's side of the beginning. Raises RequestRefused, MalformedMessage, OSError."""
    _prepare(sock)
    greeting = _read(sock, len(_MAGIC) + _NONCE_BYTES)
    if not greeting.startswith(_MAGIC):
        raise MalformedMessage("what answers there is no worker server of this version")
    theirs, own = greeting[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(own + _code(token, b"client", theirs, own))
    try:
        proof = _read(sock, _CODE_BYTES)
    except ConnectionError:
        raise RequestRefused("it does not accept this token") from None
    if not hmac.compare_digest(proof, _code(token, b"server", theirs, own)):
        raise RequestRefused("it does not hold the same token")
    sock.settimeout(None)
    return Connection(sock)


def _prepare(sock: socket.socket) -> None:
    sock.settimeout(HANDSHAKE_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanishes sends nothing more: the connection then ends within half a minute.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _code(token: str, side: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(token.encode(), side + server + client, hashlib.sha256)


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the other side has closed the connection")
        data += piece
    return data
