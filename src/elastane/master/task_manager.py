"""TaskManager: leases shards to workers and counts what they commit. The rules are `core.shards`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from elastane.core.lockstep import Position, StepLedger
from elastane.core.rate import RateWindow
from elastane.core.shards import Returned, ShardLedger
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.model.dataset import DatasetSpec, Task, TaskType
from elastane.model.errors import DatasetMismatch, RequestRefused, StaleLease
from elastane.model.ids import DatasetName, NodeName, TaskId

MOST_DATASETS = 10_000
_JOURNALLED = "data/"
_RESTORED = "restored"


class Grant(NamedTuple):
    """The answer to a request for leases: tasks, or the word that all is finished, or neither: wait."""

    tasks: Sequence[Task]
    finished: bool


@dataclass(frozen=True)
class _Waiting:
    count: int
    answer: Callable[[Grant], None]


class TaskManager:
    """All the data sets of a job. `on_failed` is called with the reason when a shard can no longer be retried."""

    def __init__(
        self,
        events: EventLog,
        *,
        max_task_retries: int,
        task_timeout_s: float,
        on_failed: Callable[[str], None],
        journal: Journal,
    ) -> None:
        self.ledgers: dict[DatasetName, ShardLedger] = {}
        self.step_ledgers: dict[DatasetName, StepLedger] = {}
        self.steps = 0
        self._reported_in: dict[DatasetName, int] = {}
        """The world of the last word on a data set in lockstep."""
        self.committed_by: dict[NodeName, int] = {}
        self.rate = RateWindow()
        self._events = events
        self._max_task_retries = max_task_retries
        self._task_timeout_s = task_timeout_s
        self._on_failed = on_failed
        self._journal = journal
        self._clock = journal.clock
        self._waiting: dict[DatasetName, dict[NodeName, _Waiting]] = {}
        self._restored: dict[str, dict[str, Any]] = {}
        for name in [name for name in journal.names if name.startswith(_JOURNALLED)]:
            description = dict(journal.description_of(name))
            restored = description.pop(_RESTORED, None)
            self._watch(DatasetSpec.from_plain(description), restored)

    @property
    def remaining_samples(self) -> int:
        """Samples of all finite data sets that are not yet committed."""
        return sum(ledger.remaining_samples or 0 for ledger in self.all_ledgers)

    @property
    def samples_done(self) -> int:
        """Samples of all data sets that are committed."""
        return sum(ledger.committed_samples for ledger in self.all_ledgers)

    @property
    def all_ledgers(self) -> Sequence[ShardLedger | StepLedger]:
        """Every data set that is trained on, leased or in lockstep."""
        leased = [ledger for ledger in self.ledgers.values() if ledger.spec.type is TaskType.TRAINING]
        return [*leased, *self.step_ledgers.values()]

    def define(self, worker: NodeName, spec: DatasetSpec) -> None:
        """Take a data set's description; raise DatasetMismatch if another worker described it differently."""
        ledger = self.ledgers.get(spec.name) or self.step_ledgers.get(spec.name)
        if ledger is None:
            if len(self.all_ledgers) >= MOST_DATASETS:
                raise RequestRefused(f"a job has at most {MOST_DATASETS} data sets")
            restored = self._restored.pop(spec.name, None)
            if restored is not None and DatasetSpec.from_plain(restored["spec"]) != spec:
                raise DatasetMismatch(f'data set "{spec.name}" is not the one that the checkpoint goes on with')
            self._watch(spec, restored)
            self._events.emit(
                "dataset_defined",
                dataset=spec.name,
                size=spec.epoch_size,
                epochs=spec.epochs,
                shard_size=spec.shard_size,
                shuffle=spec.shuffle,
                seed=spec.seed,
                node=worker,
            )
            if restored is not None:
                done = self.ledgers[spec.name].committed_samples
                self._events.emit("position_restored", dataset=spec.name, done=0, now=done, step=self.steps)
            if not spec.lockstep:
                self._check_finished(spec.name)
        elif ledger.spec != spec:
            raise DatasetMismatch(f'data set "{spec.name}": {_difference(ledger.spec, spec)}')

    def position(self) -> dict[str, Any]:
        """Where every data set that is leased for training stands, as plain JSON values."""
        return {
            name: ledger.snapshot() for name, ledger in self.ledgers.items() if ledger.spec.type is TaskType.TRAINING
        }

    def restore(self, position: dict[str, Any]) -> None:
        """Go on from such a position: each data set does so when it is described."""
        self._restored = dict(position)

    def open(self, spec: DatasetSpec) -> None:
        """Have tasks of the master's own, of another type than training; `close` ends them, finished or not."""
        self.ledgers[spec.name] = ShardLedger(
            spec, max_task_retries=self._max_task_retries, min_timeout_s=self._task_timeout_s
        )

    def close(self, name: DatasetName) -> None:
        self.ledgers.pop(name, None)
        self._waiting.pop(name, None)

    def finish(self, worker: NodeName, task: Task) -> bool:
        """A task of the master's own is done, whole; true if it was the last. Raises StaleLease."""
        ledger = self._ledger(task.dataset)
        ledger.commit(worker, task.id, task.shard.end, self._clock())
        return ledger.finished

    def resume(
        self,
        worker: NodeName,
        name: DatasetName,
        held: Collection[TaskId],
        progress: Iterable[tuple[TaskId, int]],
    ) -> None:
        """A worker comes back after a master died: take what it knows better.

        What it was leased and does not hold never reached it, or was given back; some of its progress is known here.
        """
        leased = self._ledger(name).leases_of(worker)
        self.commit(worker, name, [(task, upto) for task, upto in progress if task in leased], again=True)
        leased = self._ledger(name).leases_of(worker)
        self.give_back(worker, name, [task for task in leased if task not in held], None)

    def lease(self, worker: NodeName, name: DatasetName, count: int, answer: Callable[[Grant], None]) -> None:
        """Answer with tasks or the end if there are any; else answer "wait" now, and once more when there are."""
        ledger = self._ledger(name)
        grant = Grant(ledger.lease(worker, count, self._clock()), ledger.finished)
        if not grant.tasks and not grant.finished:
            self._waiting.setdefault(name, {})[worker] = _Waiting(count, answer)
        answer(grant)

    def commit(
        self, worker: NodeName, name: DatasetName, progress: Iterable[tuple[TaskId, int]], *, again: bool = False
    ) -> list[str]:
        """Count finished samples. The answer holds a line for each entry that was stale, and changed nothing.

        With `again`, all of this may have been said before.
        """
        ledger = self._ledger(name)
        if ledger.spec.type is not TaskType.TRAINING:
            raise RequestRefused(f'data set "{name}" is not trained on: its tasks are ended by TaskDone')
        now = self._clock()
        refused = []
        for task, upto in progress:
            try:
                committed = ledger.commit(worker, task, upto, now)
            except StaleLease as error:
                if again:
                    continue
                refused.append(str(error))
                self._events.emit("commit_refused", dataset=name, node=worker, reason=str(error))
                continue
            shard = committed.shard
            self.rate.add(len(shard), now)
            self.committed_by[worker] = self.committed_by.get(worker, 0) + len(shard)
            self._events.emit(
                "samples_committed", dataset=name, epoch=shard.epoch, start=shard.start, end=shard.end, node=worker
            )
            if committed.epoch_done:
                self._events.emit("epoch_finished", dataset=name, epoch=shard.epoch)
                self._check_finished(name)
        return refused

    def report(
        self,
        worker: NodeName,
        name: DatasetName,
        position: Position,
        steps: int,
        world: int,
        *,
        restored: bool = False,
    ) -> None:
        """Take the workers' word on how far a data set in lockstep is. Raises RequestRefused, InvalidInput.

        What is `restored` from a checkpoint is not committed again. A word of an earlier world than the last one's came
        late: from that on, what it says was said, or is no longer so.
        """
        ledger = self.step_ledgers.get(name)
        if ledger is None:
            raise RequestRefused(f'data set "{name}" is not in lockstep here')
        if world < self._reported_in.get(name, 0) and not restored:
            return
        self._reported_in[name] = world
        before = ledger.position
        new = ledger.report(position)
        if restored:
            self._events.emit("position_restored", dataset=name, done=before.done, now=position.done, step=steps)
            new = ()
        elif position.start < before.start:
            self._events.emit("position_reset", dataset=name, done=before.done, now=position.done)
        self.steps = steps
        for shard in new:
            self.rate.add(len(shard), self._clock())
            self._events.emit(
                "samples_committed", dataset=name, epoch=shard.epoch, start=shard.start, end=shard.end, node=worker
            )
            if ledger.committed_in_epoch(shard.epoch) == ledger.spec.epoch_size:
                self._events.emit("epoch_finished", dataset=name, epoch=shard.epoch)
        if ledger.finished:
            self._events.emit("dataset_finished", dataset=name, samples=ledger.committed_samples)

    def give_back(self, worker: NodeName, name: DatasetName, tasks: Iterable[TaskId], error: str | None) -> list[str]:
        """Return the rest of these tasks; the answer holds a line for each that the worker did not hold."""
        ledger = self._ledger(name)
        returned, refused = [], []
        for task in tasks:
            try:
                returned.append(ledger.give_back(worker, task, error, self._clock()))
            except StaleLease as stale:
                refused.append(str(stale))
        self._take_back(name, returned)
        return refused

    def worker_lost(self, worker: NodeName, error: str | None) -> None:
        """Return all that a worker held; `error` counts against the shard it worked on."""
        for name, ledger in list(self.ledgers.items()):
            self._waiting.get(name, {}).pop(worker, None)
            self._take_back(name, ledger.worker_lost(worker, error))

    def expire(self) -> tuple[NodeName, ...]:
        """Return what stuck workers held; the answer names them."""
        stuck: dict[NodeName, None] = {}
        for name, ledger in list(self.ledgers.items()):
            returned = ledger.expire(self._clock())
            stuck.update(dict.fromkeys(piece.worker for piece in returned))
            self._take_back(name, returned)
        return tuple(stuck)

    def next_expiry(self) -> float | None:
        expiries = [expiry for ledger in self.ledgers.values() if (expiry := ledger.next_expiry()) is not None]
        return min(expiries, default=None)

    def _watch(self, spec: DatasetSpec, restored: dict[str, Any] | None = None) -> None:
        key, description = f"{_JOURNALLED}{spec.name}", asdict(spec)
        if spec.lockstep:
            self.step_ledgers[spec.name] = self._journal.watch(key, StepLedger(spec), description)
        else:
            ledger = ShardLedger(spec, max_task_retries=self._max_task_retries, min_timeout_s=self._task_timeout_s)
            if restored is not None:
                ledger.load(restored, self._clock())
                for worker in ledger.holders:
                    ledger.worker_lost(worker, None)  # Those were workers of the job that saved.
                description[_RESTORED] = restored
            self.ledgers[spec.name] = self._journal.watch(key, ledger, description)

    def _ledger(self, name: DatasetName) -> ShardLedger:
        try:
            return self.ledgers[name]
        except KeyError:
            raise RequestRefused(f'data set "{name}" is not defined') from None

    def _take_back(self, name: DatasetName, pieces: Iterable[Returned]) -> None:
        for piece in pieces:
            shard = piece.shard
            self._events.emit(
                "shard_returned",
                dataset=name,
                epoch=shard.epoch,
                start=shard.start,
                end=shard.end,
                node=piece.worker,
                error=piece.error,
            )
        ledger = self.ledgers[name]
        if ledger.failed is not None:
            failed, errors = ledger.failed
            self._on_failed(f'data set "{name}", {failed} failed on {len(errors)} tries: {"; ".join(errors)}')
            return
        self._serve_waiting(name)

    def _check_finished(self, name: DatasetName) -> None:
        ledger = self.ledgers[name]
        if ledger.finished:
            self._events.emit("dataset_finished", dataset=name, samples=ledger.committed_samples)
            self._serve_waiting(name)

    def _serve_waiting(self, name: DatasetName) -> None:
        ledger = self.ledgers[name]
        waiting = self._waiting.get(name, {})
        for worker, request in list(waiting.items()):
            grant = Grant(ledger.lease(worker, request.count, self._clock()), ledger.finished)
            if not grant.tasks and not grant.finished:
                return
            del waiting[worker]
            request.answer(grant)


def _difference(known: DatasetSpec, given: DatasetSpec) -> str:
    for field in ("lockstep", "shard_size", "size", "indices", "epochs", "shuffle", "seed"):
        ours, theirs = getattr(known, field), getattr(given, field)
        if ours != theirs and field == "indices":
            return "indices differ from those another worker gave"
        if ours != theirs:
            return f"{field} {theirs} differs from {ours}, which another worker gave"
    raise AssertionError("equal descriptions")
