"""The rules of closures: which are queued, which are in a worker's hands, and which way a worker may go.

A closure is put once and leaves in one of three ways: it is finished, it has failed, or it is cancelled because another
failed first. Until then it is either queued or in the hands of exactly one worker, so none is lost; and it is given out
again only by a worker that says so (`give_back`) or is no more (`lose`, it may have done some of it), so none is done
twice on a stop. A worker's index is its name here.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from elastane.model.errors import ClosureFailedWorkers, IllegalTransition

C = TypeVar("C")


class WorkerState(enum.StrEnum):
    """Where a worker is in its life."""

    RUNNING = "running"
    STOPPING = "stopping"
    """It still holds a closure, and takes no other."""
    STOPPED = "stopped"
    LOST = "lost"
    """Its server is gone; only another worker may have its index."""


@dataclass
class _Entry(Generic[C]):
    closure: C
    losses: int = 0


class ClosureRules(Generic[C]):
    """The closures of one coordinator and the hands they are in."""

    def __init__(self, capacity: int, most_losses: int) -> None:
        self._capacity = capacity
        self._most_losses = most_losses
        self._queued: deque[_Entry[C]] = deque()
        self._hands: dict[int, _Entry[C]] = {}
        self._states: dict[int, WorkerState] = {}
        self._error: BaseException | None = None
        self.repeats = 0
        """How often a closure was given out again that a worker had begun."""

    @property
    def full(self) -> bool:
        return len(self._queued) >= self._capacity

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def idle(self) -> bool:
        """Whether no worker holds a closure."""
        return not self._hands

    @property
    def settled(self) -> bool:
        """Whether every closure that was put has left."""
        return not self._queued and not self._hands

    @property
    def error(self) -> BaseException | None:
        """The first failure that nobody was told of yet."""
        return self._error

    def take_error(self) -> BaseException | None:
        """The first failure, told once; from here on closures may be put again."""
        error, self._error = self._error, None
        return error

    def put(self, closure: C) -> None:
        """Queue a closure behind all others. Raises IllegalTransition where it is full or an error waits to be told."""
        if self.full or self._error is not None:
            raise IllegalTransition("a closure was put into a queue that is full or has failed")
        self._queued.append(_Entry(closure))

    def state(self, worker: int) -> WorkerState | None:
        return self._states.get(worker)

    def workers(self, state: WorkerState) -> int:
        """How many workers are in this state."""
        return sum(each is state for each in self._states.values())

    def admit(self, worker: int) -> None:
        """A worker that is new here runs."""
        self._move(worker, (None, WorkerState.LOST), WorkerState.RUNNING)

    def stop(self, worker: int) -> None:
        """A running worker is to take no more closures."""
        to = WorkerState.STOPPING if worker in self._hands else WorkerState.STOPPED
        self._move(worker, (WorkerState.RUNNING,), to)

    def restart(self, worker: int) -> None:
        """A stopped worker runs again."""
        self._move(worker, (WorkerState.STOPPED,), WorkerState.RUNNING)

    def forget(self, worker: int) -> None:
        """Nothing more is known of a worker that is stopped or lost."""
        if self._states.get(worker) not in (WorkerState.STOPPED, WorkerState.LOST):
            raise IllegalTransition(f"worker {worker} is {self._states.get(worker)} and cannot be forgotten")
        del self._states[worker]

    def take(self, worker: int) -> C | None:
        """The next closure, now in this worker's hands; None if there is none for it."""
        if not self._queued or self._states[worker] is not WorkerState.RUNNING:
            return None
        if worker in self._hands:
            raise IllegalTransition(f"worker {worker} has a closure in its hands and asks for another")
        entry = self._hands[worker] = self._queued.popleft()
        return entry.closure

    def finish(self, worker: int) -> None:
        """The closure in this worker's hands is done."""
        self._empty_hands(worker)

    def give_back(self, worker: int, *, begun: bool) -> tuple[C, ...]:
        """This worker could not do its closure: it is the next for others. The answer is what is cancelled.

        With `begun` it may have done some of it.
        """
        self.repeats += begun and self._error is None
        return self._requeue(self._empty_hands(worker))

    def fail(self, worker: int, error: BaseException) -> tuple[C, ...]:
        """The closure in this worker's hands raised an error: the answer is the closures that it cancels."""
        self._empty_hands(worker)
        return self._fail(error)

    def lose(self, worker: int, reason: str) -> tuple[C, ...]:
        """A worker's server is gone: what it held is the next for others. The answer is what is cancelled."""
        entry = self._hands.pop(worker, None)
        self._move(worker, (WorkerState.RUNNING, WorkerState.STOPPING, WorkerState.STOPPED), WorkerState.LOST)
        if entry is None:
            return ()
        entry.losses += 1
        if entry.losses > self._most_losses and self._error is None:
            told = f"a closure was lost with {entry.losses} workers, one after the other; the last: {reason}"
            return (entry.closure, *self._fail(ClosureFailedWorkers(told)))
        self.repeats += self._error is None
        return self._requeue(entry)

    def cancel(self) -> tuple[C, ...]:
        """Take every queued closure out of the queue."""
        cancelled = tuple(entry.closure for entry in self._queued)
        self._queued.clear()
        return cancelled

    def _requeue(self, entry: _Entry[C]) -> tuple[C, ...]:
        if self._error is not None:
            return (entry.closure,)
        # Over its capacity by at most the number of workers, who must never wait for room.
        self._queued.appendleft(entry)
        return ()

    def _fail(self, error: BaseException) -> tuple[C, ...]:
        if self._error is None:
            self._error = error
        return self.cancel()

    def _empty_hands(self, worker: int) -> _Entry[C]:
        entry = self._hands.pop(worker, None)
        if entry is None:
            raise IllegalTransition(f"worker {worker} speaks of a closure, and has none in its hands")
        if self._states[worker] is WorkerState.STOPPING:
            self._states[worker] = WorkerState.STOPPED
        return entry

    def _move(self, worker: int, allowed: tuple[WorkerState | None, ...], to: WorkerState) -> None:
        state = self._states.get(worker)
        if state not in allowed:
            raise IllegalTransition(f"worker {worker} is {state or 'unknown'} and cannot become {to}")
        self._states[worker] = to
