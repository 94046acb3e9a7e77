"""What a closure may ask while it runs: on which worker, and by what name its pushes go to parameter servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from elastane.coordinator.wire import Identity
from elastane.model.errors import RequestRefused

MOST_PUSHES = 1 << 20
"""Sequence numbers that each closure has for itself."""

_here = threading.local()


class RunningClosure:
    """The closure that this thread is running."""

    def __init__(self, worker_index: int, identity: Identity) -> None:
        self.worker_index = worker_index
        self._identity = identity
        self._pushes = 0

    def next_push(self) -> Identity:
        """The name of the closure's next push: the same whenever the closure is run again.

        Raises RequestRefused past the most that one closure may have.
        """
        self._pushes += 1
        if self._pushes >= MOST_PUSHES:
            raise RequestRefused(f"a closure has made {self._pushes:,} pushes, more than it may; split it")
        return Identity(self._identity.lane, self._identity.sequence + self._pushes)


def running_closure() -> RunningClosure | None:
    """The closure that this thread is running; None outside of one."""
    return getattr(_here, "closure", None)


def current_worker_index() -> int:
    """The index of the worker that runs this closure. Raises RequestRefused outside of one."""
    closure = running_closure()
    if closure is None:
        raise RequestRefused("there is no worker index here: this is not a closure that a worker runs")
    return closure.worker_index


@contextmanager
def run_as(closure: RunningClosure) -> Iterator[None]:
    """Let a closure be the one that this thread runs."""
    _here.closure = closure
    try:
        yield
    finally:
        _here.closure = None
