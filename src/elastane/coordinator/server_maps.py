"""Where the processes of a coordinator's job hear of its parameter servers: the chief, and the servers beside nodes.

A node hears of them from the master, and writes each owner map to the process beside it that runs closures; the chief's
script is in the node's own process. `elastane.ps.closure_client.job_client` is what uses them.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from typing import IO, Protocol

from elastane.model.errors import RequestRefused

_LENGTH = struct.Struct("<I")

OnMap = Callable[[bytes], None]


class ServerMaps(Protocol):
    """Tells the owner maps of a job's parameter servers, the first and every newer one."""

    def owner_map(self) -> bytes:
        """The latest map; waits for the first. Raises RequestRefused in a job without servers."""

    def follow(self, callback: OnMap) -> None:
        """Have this called with every newer map."""


class MapPipe:
    """The maps that the node writes to this process's standard input, one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._map: bytes | None = None
        self._ended = False
        self._followers: list[OnMap] = []
        threading.Thread(target=self._read, name="server-maps", daemon=True).start()

    def owner_map(self) -> bytes:
        """The latest map; waits for the first. Raises RequestRefused if there is none to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._map is not None or self._ended)
            if self._map is None:
                raise RequestRefused("this job has no parameter servers; start it with --ps")
            return self._map

    def follow(self, callback: OnMap) -> None:
        """Have this called with every newer map."""
        with self._changed:
            self._followers.append(callback)

    def _read(self) -> None:
        while len(length := _read(_LENGTH.size)) == _LENGTH.size:
            told = _read(*_LENGTH.unpack(length))
            with self._changed:
                self._map = told
                followers = list(self._followers)
                self._changed.notify_all()
            for follower in followers:
                follower(told)
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _read(size: int) -> bytes:
    # From the descriptor: at its exit Python would wait for a thread that reads from sys.stdin.
    read = b""
    while len(read) < size and (some := os.read(0, size - len(read))):
        read += some
    return read


class MapWriter:
    """Writes a job's maps to the process beside the node, the latest only, in a thread of its own."""

    def __init__(self, maps: ServerMaps, pipe: IO[bytes]) -> None:
        self._maps = maps
        self._pipe = pipe
        self._changed = threading.Condition()
        self._latest: bytes | None = None
        threading.Thread(target=self._write, name="server-maps", daemon=True).start()

    def _told(self, owner_map: bytes) -> None:
        with self._changed:
            self._latest = owner_map
            self._changed.notify_all()

    def _write(self) -> None:
        self._maps.follow(self._told)
        try:
            self._told(self._maps.owner_map())
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._latest is not None)
                    told, self._latest = self._latest or b"", None
                self._pipe.write(_LENGTH.pack(len(told)) + told)
                self._pipe.flush()
        except (RequestRefused, BrokenPipeError):
            self._pipe.close()  # There are no servers, or nobody reads any more.


_current: list[ServerMaps] = []


def use_server_maps(maps: ServerMaps) -> None:
    """Let clients of this process hear of the job's parameter servers."""
    _current[:] = [maps]


def current_server_maps() -> ServerMaps:
    """The parameter servers of this process's job. Raises RequestRefused outside of a coordinator's job."""
    if not _current:
        raise RequestRefused("there is no job here whose parameter servers could be used: see `elastane coordinate`")
    return _current[0]
