"""A model of dynamic sharding that is too simple to be wrong: every sample, and where it is."""

from __future__ import annotations

import json

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.core.shards import Returned, ShardLedger
from elastane.model.dataset import DatasetSpec, Shard, Task
from elastane.model.errors import StaleLease
from elastane.model.ids import DatasetName, NodeName, TaskId

WORKERS = [NodeName(f"job-worker-{number}") for number in range(3)]
MIN_TIMEOUT_S = 100.0
workers = st.sampled_from(WORKERS)


class ShardMachine(RuleBasedStateMachine):
    """Drives a ledger with every event there is, and counts each sample by hand."""

    ledger_class: type[ShardLedger] = ShardLedger

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.committed: set[tuple[int, int]] = set()
        self.held: dict[TaskId, tuple[NodeName, Task, int]] = {}
        self.past: list[tuple[NodeName, TaskId]] = []
        self.last_progress: dict[NodeName, float] = {}
        self.barren_tries: dict[tuple[int, int], int] = {}

    @initialize(
        size=st.integers(0, 40), shard_size=st.integers(1, 9), epochs=st.integers(1, 3), tries=st.integers(1, 3)
    )
    def define(self, size: int, shard_size: int, epochs: int, tries: int) -> None:
        self.spec = DatasetSpec(DatasetName("d"), shard_size=shard_size, size=size, epochs=epochs)
        self.tries = tries
        self.ledger = self.ledger_class(self.spec, max_task_retries=tries, min_timeout_s=MIN_TIMEOUT_S)

    @rule(worker=workers, count=st.integers(1, 4))
    def lease(self, worker: NodeName, count: int) -> None:
        for task in self.ledger.lease(worker, count, self.now):
            assert task.id not in self.held
            assert len(task.shard) >= 1
            assert (worker, task.id) not in self.past
            if not self._tasks_of(worker):
                self.last_progress[worker] = self.now
            self.held[task.id] = (worker, task, task.shard.start)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        worker, task, done = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        upto = data.draw(st.integers(done + 1, task.shard.end))
        result = self.ledger.commit(worker, task.id, upto, self.now)
        assert result.shard == Shard(task.shard.epoch, done, upto)
        for position in range(done, upto):
            sample = (task.shard.epoch, position)
            assert sample not in self.committed, f"{sample} is committed twice"
            self.committed.add(sample)
        self.last_progress[worker] = self.now
        self.barren_tries.pop((task.shard.epoch, done), None)
        in_epoch = sum(epoch == task.shard.epoch for epoch, _ in self.committed)
        assert result.epoch_done == (in_epoch == self.spec.size)
        if upto == task.shard.end:
            self._forget(task.id)
        else:
            self.held[task.id] = (worker, task, upto)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), error=st.sampled_from([None, "boom"]))
    def give_back(self, data: st.DataObject, error: str | None) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.held)))
        worker = self.held[task_id][0]
        returned = self.ledger.give_back(worker, task_id, error, self.now)
        self._check_returned([returned], {task_id: error})
        self.last_progress[worker] = self.now

    @rule(worker=workers, error=st.sampled_from([None, "crash"]))
    def worker_lost(self, worker: NodeName, error: str | None) -> None:
        tasks = self._tasks_of(worker)
        # Only the shard in work is blamed, not those held ahead of it.
        expected = {task_id: error if place == 0 else None for place, task_id in enumerate(tasks)}
        self._check_returned(self.ledger.worker_lost(worker, error), expected)

    @rule(worker=workers, data=st.data())
    def speak_of_what_is_not_held(self, worker: NodeName, data: st.DataObject) -> None:
        task_id = TaskId(data.draw(st.integers(0, 50)))
        assume(task_id not in self.held or self.held[task_id][0] != worker)
        before = self.ledger.snapshot()
        for attempt in (
            lambda: self.ledger.commit(worker, task_id, 1, self.now),
            lambda: self.ledger.give_back(worker, task_id, None, self.now),
        ):
            try:
                attempt()
            except StaleLease:
                continue
            raise AssertionError("a stale lease was accepted")
        assert self.ledger.snapshot() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit_no_progress(self, data: st.DataObject) -> None:
        worker, task, done = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        before = self.ledger.snapshot()
        for upto in (done, done - 1, task.shard.end + 1):
            try:
                self.ledger.commit(worker, task.id, upto, self.now)
            except StaleLease:
                continue
            raise AssertionError("what is not progress was accepted")
        assert self.ledger.snapshot() == before

    @rule(seconds=st.sampled_from([1.0, 30.0, 99.0, 101.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        timeout = self.ledger.timeout_s
        assert timeout >= MIN_TIMEOUT_S
        late = {w for w in WORKERS if self._tasks_of(w) and self.last_progress[w] + timeout <= self.now}
        next_expiry = self.ledger.next_expiry()
        assert (next_expiry is not None and next_expiry <= self.now) == bool(late)
        expected = {
            task_id: f"no progress for {timeout:.0f} s" if place == 0 else None
            for worker in late
            for place, task_id in enumerate(self._tasks_of(worker))
        }
        returned = self.ledger.expire(self.now)
        assert {piece.worker for piece in returned} == late
        self._check_returned(returned, expected)

    @rule()
    def restart(self) -> None:
        state = json.loads(json.dumps(self.ledger.snapshot()))
        self.ledger = self.ledger_class.restore(state, self.now)
        assert json.loads(json.dumps(self.ledger.snapshot())) == state
        for worker in WORKERS:
            self.last_progress[worker] = self.now

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.committed_samples == len(self.committed)
        assert self.ledger.remaining_samples == self._total() - len(self.committed)
        assert self.ledger.finished == (len(self.committed) == self._total())
        assert self.ledger.leased_shards == len(self.held)
        worst = max(self.barren_tries.values(), default=0)
        assert (self.ledger.failed is not None) == (worst >= self.tries)

    def teardown(self) -> None:
        """Whatever happened, the job can be finished: all that is not committed can be leased and committed."""
        if not hasattr(self, "ledger") or self.ledger.failed is not None:
            return
        for worker in WORKERS:
            self.worker_lost(worker, None)
        while tasks := self.ledger.lease(WORKERS[0], 100, self.now):
            for task in tasks:
                self.ledger.commit(WORKERS[0], task.id, task.shard.end, self.now)
                for position in range(task.shard.start, task.shard.end):
                    assert (task.shard.epoch, position) not in self.committed
                    self.committed.add((task.shard.epoch, position))
        assert len(self.committed) == self._total(), "samples were lost"
        assert self.ledger.finished

    def _total(self) -> int:
        return (self.spec.size or 0) * self.spec.epochs

    def _tasks_of(self, worker: NodeName) -> list[TaskId]:
        return [task_id for task_id, (holder, _, _) in self.held.items() if holder == worker]

    def _forget(self, task_id: TaskId) -> None:
        worker, _, _ = self.held.pop(task_id)
        self.past.append((worker, task_id))

    def _check_returned(
        self, returned: list[Returned] | tuple[Returned, ...], expected: dict[TaskId, str | None]
    ) -> None:
        assert len(returned) == len(expected)
        for task_id, error in expected.items():
            worker, task, done = self.held[task_id]
            assert Returned(Shard(task.shard.epoch, done, task.shard.end), worker, error) in returned
            if error is not None:
                key = (task.shard.epoch, done)
                self.barren_tries[key] = self.barren_tries.get(key, 0) + 1
            self._forget(task_id)
