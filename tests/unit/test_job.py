"""`elastane.join()` without a launcher: the same script, one worker, the same rules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import elastane
from elastane.model.environment import ENV_MASTER
from elastane.model.errors import DatasetMismatch, InvalidInput


class Squares:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def job() -> Iterator[elastane.Job]:
    with elastane.join() as joined:
        yield joined


def columns(samples: list[Any]) -> list[Any]:
    return samples


def test_every_sample_comes_once_per_epoch_in_full_batches(job: elastane.Job) -> None:
    batches = list(job.batches(range(100), 8, epochs=2, collate_fn=columns))
    assert [len(batch) for batch in batches] == [*[8] * 12, 4] * 2
    assert [sample for batch in batches for sample in batch] == [*range(100)] * 2
    assert job.step == 26


def test_a_batch_may_come_from_several_shards(job: elastane.Job) -> None:
    batches = list(job.batches(range(20), 8, shard_size=3, collate_fn=columns))
    assert [len(batch) for batch in batches] == [8, 8, 4]


def test_shuffled_calls_have_orders_of_their_own_and_repeat_by_seed(job: elastane.Job) -> None:
    def order(**settings: Any) -> list[Any]:
        batches = job.batches(range(50), 10, shuffle=True, collate_fn=columns, **settings)
        return [sample for batch in batches for sample in batch]

    first, second = order(), order()
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert order(seed=9) == order(seed=9, shard_size=1)


def test_only_the_given_indices_are_used(job: elastane.Job) -> None:
    assert list(job.batches(range(100), 2, indices=[9, 4, 77], collate_fn=columns)) == [[9, 4], [77]]


def test_a_data_set_without_a_length_is_an_endless_stream(job: elastane.Job) -> None:
    batches = islice(job.batches(Endless(), 5, collate_fn=columns), 1000)
    assert [sample for batch in batches for sample in batch] == list(range(5000))


def test_an_empty_data_set_has_no_batches(job: elastane.Job) -> None:
    assert list(job.batches([], 5)) == []


def test_a_finished_name_has_no_more_batches_and_cannot_change_its_meaning(job: elastane.Job) -> None:
    assert list(job.batches(range(3), 3, name="x", collate_fn=columns)) == [[0, 1, 2]]
    assert list(job.batches(range(3), 3, name="x")) == []
    with pytest.raises(DatasetMismatch):
        job.batches(range(4), 3, name="x")


def test_a_batch_left_by_break_is_done_and_the_rest_can_be_had_again(job: elastane.Job) -> None:
    for _ in job.batches(range(100), 10, name="x", shard_size=20):
        break
    rest = [
        sample for batch in job.batches(range(100), 10, name="x", shard_size=20, collate_fn=columns) for sample in batch
    ]
    assert sorted(rest) == list(range(10, 100))


def test_a_batch_that_could_not_be_read_is_not_done_though_the_error_was_caught(job: elastane.Job) -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> tuple[int, int]:
            if index == 7:
                raise OSError("gone")
            return super().__getitem__(index)

    with pytest.raises(OSError, match="gone"):
        list(job.batches(Broken(20), 5, name="x", shard_size=10))
    rest = [
        sample for batch in job.batches(Squares(20), 5, name="x", shard_size=10, collate_fn=columns) for sample in batch
    ]
    assert sorted(sample[0] for sample in rest) == list(range(5, 20))


def test_a_data_set_cannot_be_looped_over_twice_at_once(job: elastane.Job) -> None:
    first = iter(job.batches(range(20), 5, name="x"))
    next(first)
    with pytest.raises(InvalidInput, match="an earlier loop over it has not ended"):
        job.batches(range(20), 5, name="x")


def test_alone_the_world_is_of_one(job: elastane.Job) -> None:
    assert (job.rank, job.world_size) == (0, 1)


def test_tensors_are_stacked_as_pytorch_does(job: elastane.Job) -> None:
    dataset = TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6))
    batches = list(job.batches(dataset, 4))
    assert [tuple(part.shape for part in batch) for batch in batches] == [((4, 2), (4,)), ((2, 2), (2,))]


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"batch_size": 5, "shard_size": 0}, {"batch_size": 5, "epochs": 0}]
)
def test_settings_that_cannot_be_are_refused(job: elastane.Job, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        job.batches(range(10), **settings)


def test_a_data_set_without_samples_by_number_is_refused(job: elastane.Job) -> None:
    with pytest.raises(InvalidInput, match="dataset: generator has no samples by number"):
        job.batches((number for number in range(3)), 2)  # type: ignore[arg-type]


def test_sigterm_ends_the_batches_after_the_one_in_hand_and_is_handed_back_at_the_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with elastane.join() as job:
        taken = []
        for batch in job.batches(range(100), 10, collate_fn=columns):
            taken.append(batch)
            if job.step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        assert len(taken) == 3
        assert job.draining
        assert list(job.batches(range(5), 5)) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_child_is_not_the_worker() -> None:
    with elastane.join() as job:
        awake_read, awake_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(awake_write, b"x")
            time.sleep(60)  # The signal ends this sleep.
            os._exit(0)
        os.read(awake_read, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert not job.draining
        assert [sample for batch in job.batches(range(10), 5, collate_fn=columns) for sample in batch] == [*range(10)]


def test_half_a_set_of_variables_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MASTER, "127.0.0.1:1")
    with pytest.raises(InvalidInput, match="ELASTANE_TOKEN, ELASTANE_NODE: not set"):
        elastane.join()


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "module", ["torch", "tensorflow", "kubernetes", "lightkube", "kopf", "grpc", "numpy", "pydantic"]
)
def test_importing_elastane_imports_nothing_heavy(module: str) -> None:
    assert in_fresh_python(f"import sys, elastane; print({module!r} in sys.modules)") == "False\n"


def test_without_pytorch_a_batch_of_tuples_is_a_tuple_of_columns() -> None:
    code = """
import elastane
with elastane.join() as job:
    print(list(job.batches([(1, 'a'), (2, 'b'), (3, 'c')], 2)))
"""
    assert in_fresh_python(code) == "[([1, 2], ['a', 'b']), ([3], ['c'])]\n"


def test_a_script_without_a_with_block_ends_well_too() -> None:
    code = """
import elastane
job = elastane.join()
print(sum(len(batch) for batch in job.batches(range(100), 8)))
"""
    assert in_fresh_python(code) == "100\n"
