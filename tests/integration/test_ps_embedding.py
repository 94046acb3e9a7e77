"""Embeddings and dense parameters on real parameter servers: what they come to is what one process would come to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import elastane
from elastane.model.ps import OptimizerSpec, TableSpec
from elastane.ps.client import Client
from elastane.torch.embedding import Embedding
from elastane.torch.ps_trainer import PSTrainer
from elastane.torch.step_rows import StepRows
from tests.integration.ps_driver import TOKEN, Cluster, cluster

ROWS, DIM = 60, 4
BUCKETS = 16
SIZES = (12, 5, 8)
"""Samples of a step on each of three workers: their gradients weigh as much."""

OPTIMIZERS: dict[str, tuple[OptimizerSpec, Callable[[Any], optim.Optimizer]]] = {
    "sgd": (elastane.sgd(0.1), lambda p: optim.SGD(p, 0.1)),
    "momentum": (elastane.momentum(0.05), lambda p: optim.SGD(p, 0.05, momentum=0.9)),
    "adagrad": (elastane.adagrad(0.1), lambda p: optim.Adagrad(p, 0.1)),
    "adam": (elastane.adam(0.01), lambda p: optim.Adam(p, 0.01)),
}


QUICK = ("momentum", "adagrad")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in OPTIMIZERS]


@pytest.fixture
def servers() -> Iterator[Cluster]:
    with cluster(BUCKETS, 2) as made:
        yield made


class Model(nn.Module):
    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rows = rows
        self.dense = nn.Sequential(nn.Linear(3 * DIM, 300), nn.Tanh(), nn.Linear(300, 1))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.dense(self.rows(ids).flatten(1)).squeeze(1)
        return out


class Worker:
    """A model and its trainer, as a worker's process has them."""

    def __init__(self, made: Cluster, kind: str, staleness: int | None) -> None:
        spec, make = OPTIMIZERS[kind]
        client = Client(made.map, TOKEN, BUCKETS, staleness=staleness, timeout_s=60)
        self._rows = rows = StepRows(lambda _: client)
        described = TableSpec("rows", DIM, spec)
        rows.define(described)
        self.embedding = Embedding(described, rows, None)
        self.model = Model(self.embedding)
        self.trainer = PSTrainer(
            rows,
            self.model,
            make(self.model.parameters()),
            None,
            synchronous=staleness == 0,
        )

    def loss(self, ids: Tensor, wanted: Tensor) -> Tensor:
        loss: Tensor = ((self.model(ids) - wanted) ** 2).mean()
        return loss

    def weights(self) -> Tensor:
        with torch.no_grad():
            rows: Tensor = self.embedding(torch.arange(ROWS))
            return rows

    def total_loss(self, data: Sequence[tuple[Tensor, Tensor]]) -> float:
        with torch.no_grad():
            return float(sum(self.loss(*one).item() for one in data))

    def close(self) -> None:
        self.trainer.leave()
        self._rows.close()


class Twin:
    """The same in PyTorch alone, from the same weights."""

    def __init__(self, kind: str, weights: Tensor, like: Model) -> None:
        own = nn.Embedding(ROWS, DIM)
        own.weight.data.copy_(weights)
        self.model = Model(own)
        self.model.dense.load_state_dict(like.dense.state_dict())
        self.own = own
        self._optimizer = OPTIMIZERS[kind][1](self.model.parameters())

    def step(self, ids: Tensor, wanted: Tensor) -> None:
        self._optimizer.zero_grad()
        ((self.model(ids) - wanted) ** 2).mean().backward()
        self._optimizer.step()

    def assert_equals(self, worker: Worker, atol: float) -> None:
        torch.testing.assert_close(worker.weights(), self.own.weight.data, atol=atol, rtol=1e-4)
        for ours, theirs in zip(worker.model.dense.parameters(), self.model.dense.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-4)


def batches(steps: int, samples: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Each has every row, for PyTorch's momentum and Adam also move the rows that are in none."""
    torch.manual_seed(seed)
    made = []
    for _ in range(steps):
        ids = torch.cat([torch.arange(ROWS), torch.randint(0, ROWS, (samples * 3 - ROWS,))])
        ids = ids[torch.randperm(samples * 3)].view(samples, 3)
        made.append((ids, (ids % 3 == 0).float().sum(1) + 0.1 * torch.randn(samples)))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_on_two_servers_trains_as_pytorch_does(servers: Cluster, kind: str) -> None:
    worker = Worker(servers, kind, None)
    twin = Twin(kind, worker.weights(), worker.model)
    for ids, wanted in batches(30, 25, seed=2):
        worker.trainer.step(worker.loss(ids, wanted))
        twin.step(ids, wanted)
    twin.assert_equals(worker, atol=1e-5)
    worker.close()


def test_a_loop_that_pulls_ahead_gets_every_batch_once_and_learns(servers: Cluster) -> None:
    worker = Worker(servers, "adagrad", None)
    data = batches(40, 25, seed=3)
    before = worker.total_loss(data)
    seen = []
    for ids, wanted in worker.trainer.ahead(data, lambda batch: {worker.embedding: batch[0]}):
        worker.trainer.step(worker.loss(ids, wanted))
        seen.append(ids)
    assert all(given is ids for given, (ids, _) in zip(seen, data, strict=True))
    assert worker.trainer.steps == len(data)
    assert worker.total_loss(data) < before
    worker.close()


def run_together(workers: Sequence[Worker], parts: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> None:
    """Each worker in a thread of its own, as fast as the others let it."""
    failures: list[BaseException] = []

    def run(worker: Worker, own: Sequence[tuple[Tensor, Tensor]]) -> None:
        try:
            for ids, wanted in own:
                worker.trainer.step(worker.loss(ids, wanted), samples=len(wanted))
            worker.trainer.settle(leaving=True)
        except BaseException as failure:  # noqa: BLE001  # the test's own thread tells it
            failures.append(failure)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(workers, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads), "a worker waits for ever"


@pytest.mark.parametrize("kind", KINDS)
def test_synchronous_workers_come_to_what_one_process_comes_to(servers: Cluster, kind: str) -> None:
    workers = [Worker(servers, kind, 0) for _ in SIZES]
    twin = Twin(kind, workers[0].weights(), workers[0].model)
    data = batches(40, sum(SIZES), seed=4)
    parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in SIZES]
    for ids, wanted in data:
        for part, own_ids, own_wanted in zip(
            parts, torch.split(ids, list(SIZES)), torch.split(wanted, list(SIZES)), strict=True
        ):
            part.append((own_ids, own_wanted))
        twin.step(ids, wanted)
    run_together(workers, parts)
    workers[0].trainer.sync()
    twin.assert_equals(workers[0], atol=1e-5)
    for worker in workers:
        worker.close()


def test_a_synchronous_worker_that_has_no_more_data_is_not_waited_for(servers: Cluster) -> None:
    workers = [Worker(servers, "adagrad", 0) for _ in range(2)]
    data = batches(12, 25, seed=5)
    run_together(workers, [data, data[:4]])
    assert [worker.trainer.steps for worker in workers] == [12, 4]
    for worker in workers:
        worker.close()
