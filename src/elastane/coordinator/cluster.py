"""The workers of one coordinator: who is added, stopped, restarted and lost, and which index is whose."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from elastane.coordinator.closure_queue import ClosureQueue
from elastane.coordinator.worker import Closure, Remote, Worker
from elastane.core.closures import WorkerState
from elastane.model.errors import InvalidInput, RequestRefused

_log = logging.getLogger("elastane.coordinator")
_ADDRESS = re.compile(r"^(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})$")

C = TypeVar("C", bound=Closure)
C_contra = TypeVar("C_contra", bound=Closure, contravariant=True)


class Connector(Protocol[C_contra]):
    """How a backend reaches its servers."""

    def connect(self, index: int, address: str) -> Remote[C_contra]:
        """Connect the server at an address as this index. Raises WorkerUnreachable, with nothing changed."""

    def forget(self, index: int) -> None:
        """The worker of this index is no more."""


def split_address(address: str) -> tuple[str, int]:
    """The host and port of `host:port`. Raises InvalidInput."""
    match = _ADDRESS.match(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise InvalidInput(f"worker address {address!r} is not host:port with a port of 1 to 65535")
    return match["host"].strip("[]"), int(match["port"])


class Cluster(Generic[C]):
    """Workers by index; indices may be sparse, and a lost worker's index goes to the next new address.

    `add` and `remove` may be called from any thread, while closures run.
    """

    def __init__(self, connector: Connector[C], queue: ClosureQueue[C]) -> None:
        self._connector = connector
        self._queue = queue
        self._changing = threading.Lock()
        self._workers: dict[int, Worker[C]] = {}

    @property
    def workers(self) -> dict[int, Worker[C]]:
        """The workers that run or are stopped, by index."""
        return {index: each for index, each in sorted(self._workers.items()) if each.state is not WorkerState.LOST}

    @property
    def running_workers(self) -> dict[str, int]:
        """The addresses of those that run, and their indices."""
        return self._of_states(WorkerState.RUNNING)

    @property
    def stopped_workers(self) -> dict[str, int]:
        """The addresses of those that are stopped, and their indices."""
        return self._of_states(WorkerState.STOPPING, WorkerState.STOPPED)

    def begin(self, remotes: Iterable[tuple[int, str, Remote[C]]]) -> None:
        """Start with servers that are connected already."""
        with self._changing:
            for index, address, remote in remotes:
                self._workers[index] = Worker(index, address, remote, self._queue, self._lost)

    def add(self, address: str) -> int:
        """Let the server at an address work; the answer is its index.

        Raises InvalidInput, RequestRefused if it works already, WorkerUnreachable; then nothing was changed.
        """
        split_address(address)
        with self._changing:
            self._drop_lost()
            known = self._at(address)
            if known is not None and known.state is WorkerState.RUNNING:
                raise RequestRefused(f"worker {address} is in the cluster already, with index {known.index}")
            if known is not None and known.remote.answers():
                known.restart()
                _log.info("worker %s is started again, with index %d", address, known.index)
                return known.index
            self._drop_silent(keep=known)
            index = known.index if known is not None else self._free_index()
            remote = self._connector.connect(index, address)
            if known is not None:
                self._drop(known, forget=False)
            self._workers[index] = Worker(index, address, remote, self._queue, self._lost)
            _log.info("worker %s is added, with index %d", address, index)
            return index

    def remove(self, address: str) -> int:
        """Let a running worker finish what it has in hand, and stop it; the answer is its index.

        Raises InvalidInput, RequestRefused if there is none or it is the last that runs; then nothing was changed.
        """
        split_address(address)
        with self._changing:
            self._drop_lost()
            worker = self._at(address)
            running = self.running_workers
            if worker is None or address not in running:
                state = "is stopped already" if worker is not None else "is not in the cluster"
                raise RequestRefused(f"worker {address} {state}; running: {', '.join(running) or 'none'}")
            if len(running) == 1:
                raise RequestRefused(f"worker {address} is the last that runs; add another one before it is removed")
            worker.stop()
            _log.info("worker %s of index %d is %s", address, worker.index, worker.state)
            return worker.index

    def close(self) -> None:
        """Stop every worker, after the closure in its hands, and let go of every server."""
        with self._changing:
            for worker in list(self._workers.values()):
                worker.stop()
                worker.remote.close()

    def _at(self, address: str) -> Worker[C] | None:
        return next((each for each in self._workers.values() if each.address == address), None)

    def _of_states(self, *states: WorkerState) -> dict[str, int]:
        return {each.address: index for index, each in self.workers.items() if each.state in states}

    def _free_index(self) -> int:
        return next(index for index in range(len(self._workers) + 1) if index not in self._workers)

    def _drop_lost(self) -> None:
        for worker in [each for each in self._workers.values() if each.state is WorkerState.LOST]:
            self._drop(worker)

    def _drop_silent(self, keep: Worker[C] | None) -> None:
        """A stopped worker whose server has gone meanwhile would hold up the connecting of a new one."""
        for worker in list(self._workers.values()):
            if worker is not keep and worker.state is WorkerState.STOPPED and not worker.remote.answers():
                self._drop(worker)

    def _drop(self, worker: Worker[C], *, forget: bool = True) -> None:
        worker.remote.close()
        self._queue.forget(worker.index)
        del self._workers[worker.index]
        if forget:
            self._connector.forget(worker.index)

    def _lost(self, worker: Worker[C], reason: str) -> None:
        left = self._queue.running()
        _log.warning("worker %s of index %d is lost, %d run: %s", worker.address, worker.index, left, reason)
