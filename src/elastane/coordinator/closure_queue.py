"""The queue between those who schedule closures and the workers' threads: the rules of closures, under one lock."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from elastane.core.closures import ClosureRules, WorkerState

MOST_QUEUED = 256 * 1024
MOST_LOSSES = 9


class Cancellable(Protocol):
    def cancelled(self) -> None:
        """This closure will not be run (to its end): whoever waits for its value is to be told."""


C = TypeVar("C", bound=Cancellable)


class ClosureQueue(Generic[C]):
    """Closures wait here for a worker, or for one that follows a lost worker.

    The first error of a closure cancels all that are queued; it is raised once, by the next `put`, `wait` or `done`,
    when no closure of before is in any worker's hands. After that the queue is as good as new.
    """

    def __init__(self, capacity: int = MOST_QUEUED, most_losses: int = MOST_LOSSES) -> None:
        self._rules: ClosureRules[C] = ClosureRules(capacity, most_losses)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._moved = threading.Condition(self._lock)
        self._idle_workers = 0

    @property
    def repeats(self) -> int:
        """How often a closure was given out again that a worker had begun."""
        return self._rules.repeats

    @property
    def failing(self) -> bool:
        """Whether a closure has failed and nobody was told of it yet."""
        return self._rules.error is not None

    def put(self, closure: C) -> None:
        """Queue a closure; waits while the queue is full. Raises the error of an earlier one."""
        with self._lock:
            while self._rules.full and self._rules.error is None:
                self._room.wait()
            self._raise_error()
            self._rules.put(closure)
            if self._idle_workers:
                self._work.notify()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every closure is done; False if it took longer. Raises the first error of one."""
        with self._lock:
            over = self._quiet.wait_for(lambda: self._rules.settled or self._rules.error is not None, timeout_s)
            self._raise_error()
            return over

    def done(self) -> bool:
        """Whether every closure is done. Raises the first error of one."""
        with self._lock:
            self._raise_error()
            return self._rules.settled

    def state(self, worker: int) -> WorkerState | None:
        return self._rules.state(worker)

    def running(self) -> int:
        """How many workers take closures."""
        with self._lock:
            return self._rules.workers(WorkerState.RUNNING)

    def admit(self, worker: int) -> None:
        with self._lock:
            self._rules.admit(worker)

    def restart(self, worker: int) -> None:
        with self._lock:
            self._rules.restart(worker)

    def forget(self, worker: int) -> None:
        with self._lock:
            self._rules.forget(worker)

    def stop(self, worker: int) -> None:
        """Let a running worker take no more closures, and wait until it has none in its hands."""
        with self._lock:
            if self._rules.state(worker) is WorkerState.RUNNING:
                self._rules.stop(worker)
            self._work.notify_all()
            self._moved.wait_for(lambda: self._rules.state(worker) is not WorkerState.STOPPING)

    def take(self, worker: int, *, finished: bool = False) -> C | None:
        """The next closure for a worker; waits for one. None once it does not run any more.

        With `finished`, the one in its hands is done.
        """
        with self._lock:
            if finished:
                self._rules.finish(worker)
                self._emptied()
            while True:
                closure = self._rules.take(worker)
                if closure is not None:
                    self._room.notify()
                    return closure
                if self._rules.state(worker) is not WorkerState.RUNNING:
                    return None
                self._idle_workers += 1
                self._work.wait()
                self._idle_workers -= 1

    def give_back(self, worker: int, *, begun: bool) -> None:
        """A worker could not do the closure in its hands, of which it may have `begun`: another may."""
        with self._lock:
            cancelled = self._rules.give_back(worker, begun=begun)
            self._work.notify()
            self._emptied()
        _tell(cancelled)

    def fail(self, worker: int, error: BaseException) -> None:
        """The closure in a worker's hands raised an error."""
        with self._lock:
            cancelled = self._rules.fail(worker, error)
            self._room.notify_all()
            self._emptied()
        _tell(cancelled)

    def lose(self, worker: int, reason: str) -> None:
        """A worker's server is gone, and perhaps a closure with it: another worker gets that."""
        with self._lock:
            cancelled = self._rules.lose(worker, reason)
            self._work.notify()
            self._room.notify_all()
            self._emptied()
        _tell(cancelled)

    def cancel(self) -> None:
        """Cancel what is queued."""
        with self._lock:
            cancelled = self._rules.cancel()
            self._room.notify_all()
            self._emptied()
        _tell(cancelled)

    def _emptied(self) -> None:
        """A worker's hands are empty: wake whom that may concern."""
        if self._rules.settled or self._rules.error is not None:
            self._quiet.notify_all()
        self._moved.notify_all()

    def _raise_error(self) -> None:
        if self._rules.error is None:
            return
        # What is told must be over: a closure of before must not have effects after.
        self._quiet.wait_for(lambda: self._rules.idle or self._rules.error is None)
        error = self._rules.take_error()
        if error is not None:
            raise error


def _tell(cancelled: tuple[Cancellable, ...]) -> None:
    for closure in cancelled:
        closure.cancelled()
