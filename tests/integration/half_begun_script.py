"""Two members of a world in one process: one begins a collective, and the other is gone when Python ends."""

from __future__ import annotations

import atexit
import contextlib
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import torch

from elastane.model.world import Place
from elastane.torch.groups import build
from elastane.worker.link import WorldLink


class SharedStore:
    """The part of a link that building a group needs."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def store_set(self, _: int, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def store_get(self, _: int, key: str, timeout_s: float) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout_s), key
            return self._values[key]


link = cast("WorldLink", SharedStore())
with ThreadPoolExecutor(2) as threads:
    places = [Place(version=1, rank=rank, size=2) for rank in range(2)]
    groups = list(threads.map(lambda place: build(link, place, torch.device("cpu"), "gloo"), places))
tensor = torch.zeros(8)
groups[0].start_sum(tensor)


@atexit.register
def break_connections() -> None:
    """The collective ends with an error."""
    for group in groups:
        for connection in group._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


sys.stdout.write("ends\n")
