"""The rules of dynamic sharding: every sample of every epoch is committed exactly once.

A `ShardLedger` keeps one data set. Each position of an epoch is in one of four places: not yet cut, returned, leased
to one worker, or committed. A worker leases shards, commits its progress inside them, and gives back what it does not
finish; what a dead or stuck worker held returns by itself. Nothing is dropped: a shard that fails on
`max_task_retries` tries is kept as `failed`, which ends the job with its name.

The ledger keeps what is outstanding, not what is done, so its cost does not grow with the size of the data set.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastane.model.dataset import DatasetSpec, Shard, Task
from elastane.model.errors import StaleLease
from elastane.model.ids import NodeName, TaskId

PATIENCE = 3
"""A worker without progress loses its leases after this many times the longest task seen (or the least time-out)."""


@dataclass(frozen=True)
class Committed:
    """Samples that count from now on; `epoch_done` if they were the last of their epoch."""

    shard: Shard
    epoch_done: bool


@dataclass(frozen=True)
class Returned:
    """A shard that is to be leased again; `error` says why if that counts as a failed try."""

    shard: Shard
    worker: NodeName
    error: str | None


@dataclass(frozen=True, order=True)
class _Piece:
    """A shard waiting to be leased again, with the errors of the tries that made no progress in it."""

    shard: Shard
    errors: tuple[str, ...] = ()


@dataclass
class _Lease:
    task: Task
    worker: NodeName
    leased_at: float
    errors: tuple[str, ...]
    done: int
    """Positions before this one are committed."""


@dataclass
class _Holder:
    """A worker that holds leases: in the order it got them, which is the order it works in."""

    leases: dict[TaskId, None]
    last_progress: float
    last_finish: float
    """When it last finished a task, and so began the next."""


class ShardLedger:
    """Who holds which samples of one data set, and which are committed."""

    def __init__(self, spec: DatasetSpec, *, max_task_retries: int, min_timeout_s: float) -> None:
        self.spec = spec
        self.failed: tuple[Shard, tuple[str, ...]] | None = None
        self.committed_samples = 0
        self.retried_shards = 0
        self.epochs_done = 0
        self._max_task_retries = max_task_retries
        self._min_timeout_s = min_timeout_s
        self._next_task_id = 1
        self._cut_epoch = 0
        self._cut_position = 0
        self._returned: list[_Piece] = []
        self._leases: dict[TaskId, _Lease] = {}
        self._holders: dict[NodeName, _Holder] = {}
        self._open_epochs: dict[int, int] = {}
        self._longest_task_s = 0.0
        if spec.epoch_size == 0:
            self.epochs_done = self._cut_epoch = spec.epochs

    @property
    def finished(self) -> bool:
        """Whether every sample of every epoch is committed."""
        return not self.spec.endless and self.epochs_done == self.spec.epochs

    @property
    def leased_shards(self) -> int:
        return len(self._leases)

    @property
    def tasks_leased(self) -> int:
        """How many tasks were ever leased; a shard that returned is another one when it is leased again."""
        return self._next_task_id - 1

    @property
    def remaining_samples(self) -> int | None:
        """Samples not yet committed; None for an endless stream."""
        if self.spec.epoch_size is None:
            return None
        return self.spec.epoch_size * self.spec.epochs - self.committed_samples

    @property
    def epoch(self) -> int:
        """The first epoch that is not wholly committed."""
        return min(self._open_epochs, default=self.epochs_done)

    def committed_in_epoch(self, epoch: int) -> int:
        return self._open_epochs.get(epoch, 0)

    @property
    def timeout_s(self) -> float:
        """How long a worker may go without progress."""
        return max(self._min_timeout_s, PATIENCE * self._longest_task_s)

    def lease(self, worker: NodeName, count: int, now: float) -> tuple[Task, ...]:
        """Lease up to `count` shards, returned ones first; an empty answer means that none is free at present."""
        tasks: list[Task] = []
        while len(tasks) < count and self.failed is None:
            piece = heapq.heappop(self._returned) if self._returned else self._cut()
            if piece is None:
                break
            task = Task(TaskId(self._next_task_id), self.spec.name, piece.shard, self.spec.type)
            self._next_task_id += 1
            self._leases[task.id] = _Lease(task, worker, now, piece.errors, piece.shard.start)
            holder = self._holders.setdefault(worker, _Holder({}, now, now))
            holder.leases[task.id] = None
            tasks.append(task)
        return tuple(tasks)

    def commit(self, worker: NodeName, task_id: TaskId, upto: int, now: float) -> Committed:
        """Commit a leased shard's samples before position `upto`.

        Raises StaleLease, and changes nothing, if the worker does not hold the task or `upto` is not progress in it.
        """
        lease = self._held(worker, task_id)
        shard = lease.task.shard
        if not lease.done < upto <= shard.end:
            raise StaleLease(f"task {task_id}: {upto} is not progress from {lease.done} to at most {shard.end}")
        new = Shard(shard.epoch, lease.done, upto)
        holder = self._holders[worker]
        lease.done = upto
        lease.errors = ()
        if upto == shard.end:
            self._longest_task_s = max(self._longest_task_s, now - max(lease.leased_at, holder.last_finish))
            holder.last_finish = now
            self._drop(lease)
        holder.last_progress = now
        self.committed_samples += len(new)
        in_epoch = self._open_epochs.get(shard.epoch, 0) + len(new)
        epoch_done = in_epoch == self.spec.epoch_size
        if epoch_done:
            del self._open_epochs[shard.epoch]
            self.epochs_done += 1
        else:
            self._open_epochs[shard.epoch] = in_epoch
        return Committed(new, epoch_done)

    def give_back(self, worker: NodeName, task_id: TaskId, error: str | None, now: float) -> Returned:
        """Return the uncommitted rest of a shard; with `error` the try counts as failed. Raises StaleLease."""
        lease = self._held(worker, task_id)
        self._holders[worker].last_progress = now
        return self._return(lease, error)

    def worker_lost(self, worker: NodeName, error: str | None) -> tuple[Returned, ...]:
        """Return all that a worker held; `error` counts against the shard it was working on, not those it had ahead."""
        holder = self._holders.get(worker)
        if holder is None:
            return ()
        leases = [self._leases[task_id] for task_id in holder.leases]
        return tuple(self._return(lease, error if place == 0 else None) for place, lease in enumerate(leases))

    def expire(self, now: float) -> tuple[Returned, ...]:
        """Return what is held by workers that made no progress for `timeout_s`."""
        late = [name for name, holder in self._holders.items() if holder.last_progress + self.timeout_s <= now]
        return tuple(
            returned for name in late for returned in self.worker_lost(name, f"no progress for {self.timeout_s:.0f} s")
        )

    @property
    def holders(self) -> tuple[NodeName, ...]:
        """The workers that hold leases."""
        return tuple(self._holders)

    def leases_of(self, worker: NodeName) -> tuple[TaskId, ...]:
        """The tasks that a worker holds, in the order it got them."""
        holder = self._holders.get(worker)
        return () if holder is None else tuple(holder.leases)

    def next_expiry(self) -> float | None:
        """When `expire` may have something to do; None while nothing is leased."""
        earliest = min((holder.last_progress for holder in self._holders.values()), default=None)
        return None if earliest is None else earliest + self.timeout_s

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values; times are left out, for no clock outlives its process."""
        return {
            "spec": asdict(self.spec),
            "max_task_retries": self._max_task_retries,
            "min_timeout_s": self._min_timeout_s,
            "next_task_id": self._next_task_id,
            "cut": [self._cut_epoch, self._cut_position],
            "returned": [_plain(piece.shard, piece.errors) for piece in sorted(self._returned)],
            "leases": [
                [lease.task.id, lease.worker, lease.done, *_plain(lease.task.shard, lease.errors)]
                for lease in self._leases.values()
            ],
            "open_epochs": sorted(self._open_epochs.items()),
            "epochs_done": self.epochs_done,
            "committed_samples": self.committed_samples,
            "retried_shards": self.retried_shards,
            "longest_task_s": self._longest_task_s,
            "failed": None if self.failed is None else _plain(*self.failed),
        }

    @classmethod
    def restore(cls, state: dict[str, Any], now: float) -> ShardLedger:
        """The ledger of a snapshot."""
        ledger = cls(
            DatasetSpec.from_plain(state["spec"]),
            max_task_retries=state["max_task_retries"],
            min_timeout_s=state["min_timeout_s"],
        )
        ledger.load(state, now)
        return ledger

    def load(self, state: dict[str, Any], now: float) -> None:
        """Take the state of a snapshot. Its leases hold, as if made now; `worker_lost` returns who stays away's."""
        self._next_task_id = state["next_task_id"]
        self._cut_epoch, self._cut_position = state["cut"]
        self._returned = [_Piece(Shard(e, s, t), tuple(errors)) for e, s, t, errors in state["returned"]]
        heapq.heapify(self._returned)
        for task_id, worker, done, epoch, start, end, errors in state["leases"]:
            task = Task(TaskId(task_id), self.spec.name, Shard(epoch, start, end), self.spec.type)
            self._leases[task.id] = _Lease(task, NodeName(worker), now, tuple(errors), done)
            self._holders.setdefault(NodeName(worker), _Holder({}, now, now)).leases[task.id] = None
        self._open_epochs = dict(state["open_epochs"])
        self.epochs_done = state["epochs_done"]
        self.committed_samples = state["committed_samples"]
        self.retried_shards = state.get("retried_shards", 0)  # Checkpoints of an earlier version have none.
        self._longest_task_s = state["longest_task_s"]
        if state["failed"] is not None:
            epoch, start, end, errors = state["failed"]
            self.failed = (Shard(epoch, start, end), tuple(errors))

    def _cut(self) -> _Piece | None:
        size = self.spec.epoch_size
        if size and self._cut_position == size:
            self._cut_epoch, self._cut_position = self._cut_epoch + 1, 0
        if not self.spec.endless and self._cut_epoch == self.spec.epochs:
            return None
        end = self._cut_position + self.spec.shard_size
        shard = Shard(self._cut_epoch, self._cut_position, end if size is None else min(end, size))
        self._cut_position = shard.end
        self._open_epochs.setdefault(shard.epoch, 0)
        return _Piece(shard)

    def _held(self, worker: NodeName, task_id: TaskId) -> _Lease:
        lease = self._leases.get(task_id)
        if lease is None or lease.worker != worker:
            raise StaleLease(f"task {task_id} is not leased to {worker}")
        return lease

    def _return(self, lease: _Lease, error: str | None) -> Returned:
        self._drop(lease)
        shard = replace(lease.task.shard, start=lease.done)
        errors = lease.errors if error is None else (*lease.errors, error)
        self.retried_shards += error is not None
        heapq.heappush(self._returned, _Piece(shard, errors))
        if len(errors) >= self._max_task_retries:
            self.failed = (shard, errors)
        return Returned(shard, lease.worker, error)

    def _drop(self, lease: _Lease) -> None:
        del self._leases[lease.task.id]
        holder = self._holders[lease.worker]
        del holder.leases[lease.task.id]
        if not holder.leases:
            del self._holders[lease.worker]


def _plain(shard: Shard, errors: tuple[str, ...]) -> list[Any]:
    return [shard.epoch, shard.start, shard.end, list(errors)]
