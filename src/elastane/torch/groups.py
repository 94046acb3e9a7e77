"""Group: the connections of one world. torch.distributed does the collectives; this is what it lacks to be elastic.

A group is built in the background, through a store that outlives every worker, and can be aborted from any thread:
whoever waits in a collective of it, here or elsewhere, gets an error at once instead of a time-out.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, Work  # type: ignore[attr-defined]

from elastane.model.errors import ElastaneError
from elastane.model.world import Place
from elastane.torch.lines import Lines
from elastane.worker.link import WorldLink

BUILD_TIMEOUT_S = 20.0
COLLECTIVE_TIMEOUT = timedelta(days=7)
"""Never: who is lost is found by heartbeats and closed connections, and then the group is aborted."""

LOOK_UP_EVERY = timedelta(seconds=0.2)
"""gloo may miss that a connection closed just when it began to wait on it; whoever waits looks up now and then."""

_under_way: dict[Work, Any] = {}
"""Collectives that were begun and have not ended, with their groups: to destroy such a group would wait for them."""

MOST_EXCHANGED_BYTES = 16 << 20


class WorldBroken(Exception):
    """A connection of the world broke, or it was aborted: what was to be done in it is not done."""


class LinkStore(Store):
    """A world's store in the master, as torch.distributed wants it."""

    def __init__(self, link: WorldLink, version: int) -> None:
        super().__init__()
        self._link = link
        self._version = version
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._link.store_set(self._version, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = BUILD_TIMEOUT_S if timeout is None else timeout.total_seconds()
        for key in keys:
            if key not in self._known:
                self._known[key] = self._link.store_get(self._version, key, timeout_s)


class Group:
    """The members of one world, connected. Every method but `abort` raises WorldBroken when a connection breaks."""

    def __init__(
        self,
        place: Place,
        gloo: Any = None,
        sockets: Sequence[socket.socket] = (),
        lines: Lines | None = None,
        device_group: Any = None,
    ) -> None:
        self.place = place
        self._gloo = gloo
        self._sockets = list(sockets)
        self._lines = lines
        self._device_group = device_group
        self._aborted = False

    def check(self) -> None:
        """Raises WorldBroken if the group was aborted: alone, nothing else would tell."""
        if self._aborted:
            raise WorldBroken("aborted")

    def start_sum(self, tensor: Tensor) -> Work:
        """Begin to sum a tensor over all members, in place; `finish` waits for it."""
        group = self._device_group if self._device_group is not None and tensor.is_cuda else self._gloo
        try:
            return _begun(group, group.allreduce([tensor]))
        except RuntimeError as error:
            self.abort()
            raise WorldBroken(str(error)) from error

    def finish(self, work: Work) -> None:
        """Wait for a collective."""
        while True:
            try:
                work.wait(LOOK_UP_EVERY)
            except RuntimeError as error:
                if not work.is_completed() and not self._aborted:
                    continue  # It only takes long.
                self.abort()  # Others may wait for this worker, and not for the one that is gone.
                raise WorldBroken(str(error)) from error
            _under_way.pop(work, None)
            return

    def send(self, buffers: Iterable[Any], rank: int) -> None:
        """Send buffers in host memory to one member."""
        self._on_line(lambda lines: lines.send(rank, buffers))

    def receive(self, buffer: Any, rank: int) -> None:
        """Fill a buffer in host memory with what comes next from one member."""
        self._on_line(lambda lines: lines.receive(rank, buffer))

    def exchange(self, mine: Any) -> list[Any]:
        """Every member's JSON value, by rank."""
        if self._gloo is None:
            return [mine]
        size = self.place.size
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        self.finish(self._start(lambda: self._gloo.allgather([lengths], [torch.tensor([len(data)])])))
        longest = max(int(length) for length in lengths)
        if longest > MOST_EXCHANGED_BYTES:
            raise WorldBroken(f"a member wants to exchange {longest} bytes")
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        all_data = [torch.zeros(longest, dtype=torch.uint8) for _ in range(size)]
        self.finish(self._start(lambda: self._gloo.allgather([all_data], [padded])))
        return [json.loads(bytes(data[: int(length)].numpy())) for data, length in zip(all_data, lengths, strict=True)]

    def abort(self) -> None:
        """Break the group: its collectives end with an error, on every member."""
        if self._aborted:
            return
        self._aborted = True
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if self._lines is not None:
            self._lines.close()
        if self._device_group is not None:
            self._device_group.abort()

    def _on_line(self, transfer: Callable[[Lines], None]) -> None:
        if self._lines is None:
            raise AssertionError("a worker that is alone has nobody to send to")
        try:
            transfer(self._lines)
        except OSError as error:
            self.abort()
            raise WorldBroken(str(error)) from error

    def _start(self, begin: Any) -> Work:
        try:
            return _begun(self._gloo, begin())
        except RuntimeError as error:
            raise WorldBroken(str(error)) from error


def _begun(group: Any, work: Work) -> Work:
    _under_way[work] = group
    return work


def _forget_ended() -> None:
    """Those of broken groups, for which nobody waits any more."""
    for work in list(_under_way):
        if work.is_completed():
            _under_way.pop(work, None)


@atexit.register
def _outlive_python() -> None:
    """Were gloo's thread the last to let go of a collective, it would ask Python to, which kills it if Python ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_under_way))


def build(link: WorldLink, place: Place, device: torch.device, backend: str) -> Group:
    """Connect to all members of a world; each of them must do the same. Raises WorldBroken."""
    if place.size == 1:
        return Group(place)
    _forget_ended()
    store = LinkStore(link, place.version)
    with contextlib.ExitStack() as undo:
        try:
            with _one_at_a_time:
                lines = Lines(link.host, place.rank)
                undo.callback(lines.close)
                before = _sockets()
                gloo_device = ProcessGroupGloo.create_device(hostname=link.host)
                address = _listener(_sockets() - before)
            store.set(f"at/{place.rank}", json.dumps([address, lines.address]))
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = timedelta(seconds=BUILD_TIMEOUT_S)
            options._devices = [gloo_device]
            gloo = ProcessGroupGloo(PrefixStore("gloo", store), place.rank, place.size, options)
            gloo.set_timeout(COLLECTIVE_TIMEOUT)
            device_group = _nccl(store, place) if device.type == "cuda" and backend == "nccl" else None
            addresses = [json.loads(store.get(f"at/{rank}")) for rank in range(place.size)]
        except (RuntimeError, OSError, CancelledError, ElastaneError) as error:
            raise WorldBroken(str(error)) from error
        undo.pop_all()
    lines.know([at_lines for _, at_lines in addresses])
    peers = {tuple(at_gloo) for at_gloo, _ in addresses}
    return Group(place, gloo, _connections(address, peers), lines, device_group)


_one_at_a_time = threading.Lock()


def _nccl(store: Store, place: Place) -> Any:
    """The communicator for tensors on GPUs."""
    from torch.distributed import ProcessGroupNCCL  # only in builds with CUDA

    options = ProcessGroupNCCL.Options()
    options._timeout = COLLECTIVE_TIMEOUT
    return ProcessGroupNCCL(PrefixStore("nccl", store), place.rank, place.size, options)


def _sockets() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def _listener(fds: set[int]) -> list[Any]:
    """The address that gloo listens at: it does not tell, so it is found among what it has just opened."""
    for fd in fds:
        with socket.socket(fileno=os.dup(fd)) as candidate:
            if candidate.family in _TCP and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return list(candidate.getsockname()[:2])
    raise WorldBroken("gloo does not listen")


_TCP = (socket.AF_INET, socket.AF_INET6)


def _connections(mine: list[Any], peers: set[tuple[Any, ...]]) -> list[socket.socket]:
    """The group's connections, each with a handle of its own: gloo has no way to break one that somebody waits on."""
    found = []
    for fd in _sockets():
        with contextlib.suppress(OSError):
            handle = socket.socket(fileno=os.dup(fd))
            with contextlib.suppress(OSError):
                if handle.family in _TCP and (
                    handle.getsockname()[:2] == tuple(mine) or handle.getpeername()[:2] in peers
                ):
                    handle.getpeername()  # Raises for the listener, which is no connection.
                    found.append(handle)
                    continue
            handle.close()
    return found
