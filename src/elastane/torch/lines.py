"""Lines: connections between two members of a world, for what one of them sends to the other alone.

The state goes to a newcomer over these, and the log of the rounds. gloo could send it too, but waits for the receiver
before each tensor: on busy cores every such turn costs a newcomer milliseconds, and the others' first step with it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any

HELLO_TIMEOUT_S = 5.0
_KEY_BYTES = 16
_HELLO = struct.Struct(f"!{_KEY_BYTES}sI")


class Lines:
    """This member's lines, each made when it is first used. To send and to receive raises OSError when it breaks."""

    def __init__(self, host: str, rank: int) -> None:
        self._rank = rank
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._peers: Sequence[Any] = ()
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._opening = threading.Lock()
        self._accepting = threading.Lock()
        self._closed = False

    @property
    def address(self) -> list[Any]:
        """Where and with which key the others reach this member."""
        host, port = self._listener.getsockname()[:2]
        return [host, port, self._key.hex()]

    def know(self, addresses: Sequence[Any]) -> None:
        """The addresses of all members, by rank."""
        self._peers = addresses

    def send(self, rank: int, parts: Iterable[Any]) -> None:
        """Send these buffers, one behind the other."""
        line = self._out.get(rank) or self._open(rank)
        for part in parts:
            line.sendall(part)

    def receive(self, rank: int, buffer: Any) -> None:
        """Fill a buffer with what comes next from this rank."""
        _fill(self._in.get(rank) or self._accept(rank), memoryview(buffer).cast("B"))

    def close(self) -> None:
        """End all lines, and whoever waits on one."""
        self._closed = True
        for line in (self._listener, *self._out.values(), *self._in.values()):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # It wakes whoever waits; to close alone would not.
            line.close()

    def _open(self, rank: int) -> socket.socket:
        host, port, key = self._peers[rank]
        with self._opening:
            line = socket.create_connection((host, port), HELLO_TIMEOUT_S)
            self._keep(self._out, rank, line)
        line.sendall(_HELLO.pack(bytes.fromhex(key), self._rank))
        return line

    def _accept(self, rank: int) -> socket.socket:
        """Take in lines until the one from this rank is there. Who does not know the key is sent away."""
        with self._accepting:
            while rank not in self._in:
                line, _ = self._listener.accept()
                try:
                    line.settimeout(HELLO_TIMEOUT_S)
                    hello = bytearray(_HELLO.size)
                    _fill(line, memoryview(hello))
                    key, sender = _HELLO.unpack(hello)
                except OSError:
                    line.close()
                    continue
                if hmac.compare_digest(key, self._key) and 0 <= sender < len(self._peers):
                    self._keep(self._in, sender, line)
                else:
                    line.close()
        return self._in[rank]

    def _keep(self, lines: dict[int, socket.socket], rank: int, line: socket.socket) -> None:
        line.settimeout(None)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines[rank] = line
        if self._closed:
            line.close()


def _fill(line: socket.socket, view: memoryview) -> None:
    while view:
        count = line.recv_into(view)
        if not count:
            raise ConnectionResetError("closed by the other end")
        view = view[count:]
