"""Dynamic sharding under every interleaving: each sample of each epoch is committed once, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from elastane.core.order import sample_indices
from elastane.core.shards import Returned, ShardLedger
from elastane.model.dataset import DatasetSpec
from elastane.model.ids import DatasetName, NodeName, TaskId
from tests.property.shard_machine import ShardMachine

RUNS = settings(max_examples=400, stateful_step_count=50, deadline=None)
HUNT = settings(RUNS, max_examples=1000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_every_sample_is_committed_exactly_once() -> None:
    run_state_machine_as_test(ShardMachine, settings=RUNS)


class ForgetsProgress(ShardLedger):
    """A planted bug: a shard comes back whole, with the samples that were committed before."""

    def give_back(self, worker: NodeName, task_id: TaskId, error: str | None, now: float) -> Returned:
        lease = self._held(worker, task_id)
        lease.done = lease.task.shard.start
        return super().give_back(worker, task_id, error, now)


class DropsWhatIsAhead(ShardLedger):
    """A planted bug: of a lost worker only the shard in work comes back, not those it held ahead."""

    def worker_lost(self, worker: NodeName, error: str | None) -> tuple[Returned, ...]:
        returned = super().worker_lost(worker, error)
        for piece in returned[1:]:
            self._returned = [waiting for waiting in self._returned if waiting.shard != piece.shard]
        return returned


class RetriesForever(ShardLedger):
    """A planted bug: the errors of a shard are forgotten whenever it is leased."""

    def lease(self, worker: NodeName, count: int, now: float):  # type: ignore[no-untyped-def]
        self._returned = [replace(piece, errors=()) for piece in self._returned]
        return super().lease(worker, count, now)


@pytest.mark.parametrize("planted", [ForgetsProgress, DropsWhatIsAhead, RetriesForever])
def test_a_planted_bug_is_found(planted: type[ShardLedger]) -> None:
    class Machine(ShardMachine):
        ledger_class = planted

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=HUNT)


specs = st.builds(
    lambda size, seed, shard_size: DatasetSpec(
        DatasetName("d"), shard_size=shard_size, size=size, shuffle=True, seed=seed
    ),
    size=st.integers(1, 3000),
    seed=st.integers(-(2**63), 2**63 - 1),
    shard_size=st.integers(1, 100),
)


@given(spec=specs, epoch=st.integers(0, 1000))
def test_a_shuffled_epoch_holds_every_sample_once(spec: DatasetSpec, epoch: int) -> None:
    size = spec.size or 0
    assert sorted(sample_indices(spec, epoch, 0, size)) == list(range(size))


@given(spec=specs, epoch=st.integers(0, 5), cuts=st.lists(st.integers(0, 3000), max_size=5))
def test_the_order_does_not_depend_on_how_it_is_cut(spec: DatasetSpec, epoch: int, cuts: list[int]) -> None:
    size = spec.size or 0
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    pieces = [sample_indices(spec, epoch, start, end) for start, end in pairwise(edges)]
    assert [sample for piece in pieces for sample in piece] == sample_indices(spec, epoch, 0, size)
