"""ShardClient: one data set's tasks on the worker's side, cut into the slices that make a batch.

The training thread takes slices and commits them; the link's thread brings tasks. Tasks are asked for ahead, so the
training thread finds the next one here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from elastane.core.order import sample_indices
from elastane.model.dataset import DatasetSpec, Task
from elastane.model.ids import TaskId
from elastane.worker.link import Link

SHARDS_AHEAD = 2
"""How many shards are held beyond the one in work."""


@dataclass(frozen=True)
class Slice:
    """A piece of a leased shard that went into a batch: samples, and the position up to which they reach."""

    task: TaskId
    epoch: int
    samples: Sequence[int]
    upto: int
    ends_task: bool
    lease_round: int
    """Counts how often leases were voided; a slice of an earlier round can no longer be committed."""


@dataclass
class _Held:
    task: Task
    samples: Sequence[int]
    position: int


class ShardClient:
    """A TaskSink, and the training thread's way to the tasks."""

    def __init__(self, spec: DatasetSpec, link: Link) -> None:
        self.spec = spec
        self._link = link
        self._held: deque[_Held] = deque()
        # Re-entrant, for a signal handler may call drain() while this very thread holds it.
        self._changed = threading.Condition(threading.RLock())
        self._asked = False
        self._told_to_wait = False
        self._finished = False
        self._draining = False
        self._failure: Exception | None = None
        self._lease_round = 0
        link.define(spec, self)

    @property
    def ready(self) -> bool:
        """Whether `take` would find samples, or the end, without waiting for what other workers do."""
        with self._changed:
            return bool(self._held) or self._may_return(partial=False)

    def take(self, count: int) -> list[Slice]:
        """The next `count` samples, fewer at the end of an epoch, none when all is done or the worker leaves.

        Fewer come also when no shard is free at present: a short batch now is better than sitting on samples that
        others wait for. Raises what the link failed with.
        """
        slices: list[Slice] = []
        missing = count
        with self._changed:
            self._ask_ahead()
            while missing:
                while not self._held and not self._may_return(partial=bool(slices)):
                    self._link.flush()
                    self._changed.wait()
                if self._failure is not None:
                    raise self._failure
                if self._draining or not self._held:
                    break
                held = self._held[0]
                if slices and held.task.shard.epoch != slices[0].epoch:
                    break
                piece = self._cut(held, missing)
                slices.append(piece)
                missing -= len(piece.samples)
                if piece.ends_task:
                    self._ask_ahead()
        if self._draining:
            self.put_back(slices)
            return []
        return slices

    def take_shard(self) -> Slice | None:
        """The next shard, or what is left of one; None when all is done or the worker leaves.

        Raises what the link failed with.
        """
        with self._changed:
            self._ask_ahead()
            while not self._held and not self._may_return(partial=False):
                self._link.flush()
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            if self._draining or not self._held:
                return None
            piece = self._cut(self._held[0], len(self._held[0].samples))
            self._ask_ahead()
            return piece

    def commit(self, slices: Sequence[Slice]) -> bool:
        """Count the samples of a finished batch; False if they were leased before the leases were voided."""
        valid = [piece for piece in slices if piece.lease_round == self._lease_round]
        latest = {piece.task: piece.upto for piece in valid}
        if latest:
            self._link.commit(self.spec.name, list(latest.items()))
        return len(valid) == len(slices)

    def put_back(self, slices: Sequence[Slice], error: str | None = None) -> None:
        """Return all tasks: those of these slices, against which `error` counts, and all others."""
        self.put_back_ahead(slices)
        self.put_back_only(slices, error)

    def put_back_only(self, slices: Sequence[Slice], error: str | None = None) -> None:
        """Return the tasks of these slices, against which `error` counts."""
        tasks = dict.fromkeys(piece.task for piece in slices if piece.lease_round == self._lease_round)
        if tasks:
            self._link.give_back(self.spec.name, list(tasks), error)

    def put_back_ahead(self, slices: Sequence[Slice]) -> None:
        """Return the tasks that no one of these slices is from."""
        in_hand = {piece.task for piece in slices}
        with self._changed:
            ahead = [held.task.id for held in self._held if held.task.id not in in_hand]
            self._held.clear()
        if ahead:
            self._link.give_back(self.spec.name, ahead, None)

    def drain(self) -> None:
        """Take no more; whoever waits in `take` returns."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def granted(self, tasks: Sequence[Task]) -> None:
        fresh = [
            _Held(task, sample_indices(self.spec, task.shard.epoch, task.shard.start, task.shard.end), 0)
            for task in tasks
        ]
        with self._changed:
            self._asked = self._told_to_wait = False
            if self._draining:
                self._link.give_back(self.spec.name, [task.id for task in tasks], None)
                return
            self._held.extend(fresh)
            self._ask_ahead()
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._told_to_wait = True
            self._changed.notify_all()

    def finished(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def voided(self) -> None:
        with self._changed:
            in_use = bool(self._held) or self._asked
            self._held.clear()
            self._lease_round += 1
            self._asked = self._told_to_wait = False
            if in_use:
                self._ask_ahead()

    def failed(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _may_return(self, *, partial: bool) -> bool:
        ended = self._finished or self._draining or self._failure is not None
        return ended or (partial and self._told_to_wait)

    def _cut(self, held: _Held, most: int) -> Slice:
        end = min(held.position + most, len(held.samples))
        samples = held.samples[held.position : end]
        shard = held.task.shard
        held.position = end
        ends_task = end == len(held.samples)
        if ends_task:
            self._held.popleft()
        return Slice(held.task.id, shard.epoch, samples, shard.start + end, ends_task, self._lease_round)

    def _ask_ahead(self) -> None:
        """Keep tasks coming; whoever calls this holds the lock."""
        missing = SHARDS_AHEAD + 1 - len(self._held)
        if missing >= 2 and not (self._asked or self._finished or self._draining):
            self._asked = True
            self._link.request(self.spec.name, missing)
