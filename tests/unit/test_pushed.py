"""Samples of a worker that pushes: they are committed once the push that used them is acknowledged, and not before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn, optim

import elastane
from elastane.job import Job
from elastane.model.ids import DatasetName, NodeName, TaskId
from elastane.ps.local import LocalClient
from elastane.torch.embedding import Embedding
from elastane.torch.step_rows import Gradients, StepRows
from elastane.worker.alone import AloneLink
from elastane.worker.batches import MapDataset

BATCH = 4
SHARD = 8
SAMPLES = 32

Said = list[tuple[str, Any]]


class SayingLink(AloneLink):
    """The link of a worker alone, which writes down what it is told."""

    def __init__(self, said: Said) -> None:
        super().__init__()
        self._said = said

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        self._said += [("committed", upto) for _, upto in progress]
        super().commit(dataset, progress)

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        self._said.append(("given back", error))
        super().give_back(dataset, tasks, error)


class SayingClient(LocalClient):
    """Rows in this process; it writes down when a push is sent, and when it is found to have arrived."""

    def __init__(self, said: Said) -> None:
        super().__init__()
        self._said = said
        self._pushes = 0

    def push_ahead(self, gradients: Gradients, lrs: Mapping[str, float], step: int, weight: float) -> Any:
        super().push_ahead(gradients, lrs, step, weight)
        self._pushes += 1
        self._said.append(("pushed", self._pushes))
        return _Arriving(self._said, self._pushes)


class _Arriving:
    def __init__(self, said: Said, number: int) -> None:
        self._said, self._number = said, number

    def result(self) -> None:
        self._said.append(("arrived", self._number))


class Loop:
    """A job with one embedding, and what its link and its rows were told."""

    def __init__(self, *, ahead: bool) -> None:
        self.said: Said = []
        self.job = Job(NodeName("alone-worker-0"), SayingLink(self.said))
        self.job._rows = StepRows(lambda _: SayingClient(self.said))
        rows: Embedding = self.job.embedding("rows", 2, elastane.sgd(0.1))
        model = nn.ModuleList([rows, nn.Linear(2, 1)])
        self.trainer = self.job.trainer(model, optim.SGD(model.parameters(), 0.1))
        self._rows, self._dense = rows, model[1]
        self._ahead = ahead

    def batches(self, dataset: MapDataset = range(SAMPLES)) -> Iterator[torch.Tensor]:
        ids_of = (lambda ids: {self._rows: ids}) if self._ahead else None
        return self.job.batches(dataset, BATCH, shard_size=SHARD, ids_of=ids_of)

    def step(self, ids: torch.Tensor) -> None:
        self.trainer.step(self._dense(self._rows(ids)).mean())

    def committed(self) -> int:
        """How many samples were."""
        return max((upto for kind, upto in self.said if kind == "committed"), default=0)

    def assert_no_commit_came_early(self) -> None:
        arrived = 0
        for kind, value in self.said:
            arrived = value if kind == "arrived" else arrived
            assert kind != "committed" or value <= arrived * BATCH, self.said


@pytest.mark.parametrize("ahead", [False, True])
def test_every_sample_is_committed_once_its_push_has_arrived(ahead: bool) -> None:
    loop = Loop(ahead=ahead)
    with loop.job:
        for ids in loop.batches():
            loop.step(ids)
    loop.assert_no_commit_came_early()
    assert loop.committed() == SAMPLES
    assert [value for kind, value in loop.said if kind == "pushed"] == list(range(1, SAMPLES // BATCH + 1))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_that_went_into_no_step_is_done_all_the_same(ahead: bool) -> None:
    loop = Loop(ahead=ahead)
    with loop.job:
        for number, ids in enumerate(loop.batches()):
            if number % 2:
                loop.step(ids)
    assert loop.committed() == SAMPLES


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_counts_against_the_batch_in_hand_and_what_was_taken_ahead_goes_back(ahead: bool) -> None:
    loop = Loop(ahead=ahead)

    def train() -> None:
        with loop.job:
            for number, ids in enumerate(loop.batches()):
                if number == 3:
                    raise ZeroDivisionError("the fourth")
                loop.step(ids)

    with pytest.raises(ZeroDivisionError):
        train()
    loop.assert_no_commit_came_early()
    # The third batch may have arrived, but nobody has looked whether it has.
    assert loop.committed() in ({2 * BATCH, 3 * BATCH} if ahead else {3 * BATCH})
    errors = [error for kind, error in loop.said if kind == "given back" and error is not None]
    assert errors == ["ZeroDivisionError: the fourth"]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loop_that_is_left_early_commits_what_it_was_given_and_no_more(ahead: bool) -> None:
    loop = Loop(ahead=ahead)
    with loop.job:
        for number, ids in enumerate(loop.batches()):
            loop.step(ids)
            if number == 2:
                break
    loop.assert_no_commit_came_early()
    assert loop.committed() == 3 * BATCH
    assert ("given back", None) in loop.said


def test_a_batch_that_cannot_be_fetched_is_given_back_with_its_error() -> None:
    class Broken:
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> int:
            if index == 9:
                raise LookupError("no ninth")
            return index

    loop = Loop(ahead=True)

    def train() -> None:
        with loop.job:
            for ids in loop.batches(Broken()):
                loop.step(ids)

    with pytest.raises(LookupError):
        train()
    loop.assert_no_commit_came_early()
    assert ("given back", "LookupError: no ninth") in loop.said
    assert loop.committed() <= SHARD
