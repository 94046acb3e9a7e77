"""Connections that carry frames: blocking sockets, one buffer for every body, pieces sent without joining them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from elastane.core.owners import OwnerMap, ServerAddress, ServerId
from elastane.model.errors import MalformedMessage
from elastane.ps import frames
from elastane.ps.frames import Buffer, Flag, Header, Hello, Op

_MOST_PIECES = 512
_KEPT_BUFFER = 8 << 20
_ASK_S = 2.0
_SOCKET_BUFFER = 4 << 20


GoOn = Callable[[], bool]
"""Whether to wait on."""


class ConnectionEnded(OSError):
    """The other side closed the connection, or it broke."""


class FrameSocket:
    """One connection. `receive` and `send` may be used by two threads, one each.

    The body that `receive` answers is good until the next call of it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._header = bytearray(frames.HEADER_BYTES)
        self._buffer = _room(1 << 16)
        sock.setblocking(True)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_at_most(self, seconds: float) -> None:
        """Let a send or receive that gets nowhere for so long ask its `go_on`; 0: wait for ever."""
        pause = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, pause)

    def receive(
        self, most: int, go_on: GoOn | None = None, into: npt.NDArray[np.float32] | None = None
    ) -> tuple[Header, memoryview]:
        """The next frame; if it is all the rows that fill `into`, its body is received there.

        Raises MalformedMessage, ConnectionEnded, or TimeoutError if `go_on` says no.
        """
        self._fill(memoryview(self._header), go_on)
        header = frames.read_header(self._header, most)
        if into is not None and header.op is Op.ROWS and not header.flags and header.length == into.nbytes:
            body = into.view(np.uint8).data
            self._fill(body, go_on)
            return header, body
        if header.length > len(self._buffer) or len(self._buffer) > max(header.length, _KEPT_BUFFER):
            self._buffer = _room(max(header.length, 1 << 16))
        body = self._buffer[: header.length]
        self._fill(body, go_on)
        return header, body

    def send(
        self,
        op: Op,
        request: int,
        pieces: Sequence[Buffer] = (),
        flags: Flag = Flag.NONE,
        go_on: GoOn | None = None,
    ) -> None:
        """Send one frame, in as many pieces as it takes. Raises ConnectionEnded, or TimeoutError if `go_on` says no."""
        length = sum(map(len, pieces))
        left: list[memoryview] = [memoryview(frames.pack_header(op, request, length, flags))]
        left += [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            try:
                sent = self._socket.sendmsg(left[:_MOST_PIECES])
            except BlockingIOError:
                if go_on is not None and not go_on():
                    raise TimeoutError("the other side does not read") from None
                continue
            except OSError as error:
                raise ConnectionEnded(f"the connection broke: {error}") from None
            while left and sent >= len(left[0]):
                sent -= len(left[0])
                del left[0]
            if sent:
                left[0] = left[0][sent:]

    def shut(self) -> None:
        """Break the connection under whoever waits on it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._socket.close()

    def _fill(self, into: memoryview, go_on: GoOn | None) -> None:
        done = 0
        while done < len(into):
            try:
                got = self._socket.recv_into(into[done:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if go_on is not None and not go_on():
                    raise TimeoutError("no answer") from None
                continue
            except OSError as error:
                raise ConnectionEnded(f"the connection broke: {error}") from None
            if got == 0:
                raise ConnectionEnded("the other side closed the connection")
            done += got


def connect(server: ServerId, address: ServerAddress, hello: Hello, token: str, timeout_s: float) -> FrameSocket:
    """A connection to a server that has said that it is this one. By its Unix socket where that is.

    Raises OSError or MalformedMessage.
    """
    sock = _open(address, timeout_s)
    connection = FrameSocket(sock)
    try:
        connection.wait_at_most(timeout_s)
        connection.send(Op.HELLO, 0, frames.write_hello(hello, token))
        header, body = connection.receive(frames.MAX_BODY_BEFORE_HELLO, lambda: False)
        if header.op is not Op.DONE:
            raise MalformedMessage(f"the server answered the hello with {header.op.name}: {bytes(body[:200])!r}")
        found, _ = frames.read_welcome(body)
        if found != server:
            raise MalformedMessage(f"server {found} listens at {address.host}:{address.port}, not server {server}")
        connection.wait_at_most(0)
    except BaseException:
        connection.close()
        raise
    return connection


def ask_for_map(server: ServerId, address: ServerAddress, hello: Hello, token: str) -> OwnerMap:
    """What a server knows. Raises OSError or MalformedMessage."""
    connection = connect(server, address, hello, token, _ASK_S)
    try:
        connection.wait_at_most(_ASK_S)
        connection.send(Op.MAP, 0)
        _, body = connection.receive(frames.MAX_BODY, lambda: False)
        return OwnerMap.from_bytes(body)
    finally:
        connection.close()


def _room(size: int) -> memoryview:
    return np.empty(size, np.uint8).data  # Not zeroed, and at a multiple of 16.


def _open(address: ServerAddress, timeout_s: float) -> socket.socket:
    if address.unix_path and os.path.exists(address.unix_path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        try:
            sock.connect(address.unix_path)
        except OSError:
            sock.close()  # What an earlier life left behind; the port is the one to ask.
        else:
            return sock
    return socket.create_connection((address.host, address.port), timeout_s)
