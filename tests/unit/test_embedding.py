"""Embeddings and dense parameters of a worker without servers: the same as PyTorch's own, trained the same way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn, optim

import elastane
from elastane.job import Job
from elastane.model.errors import InvalidInput
from elastane.model.ids import NodeName
from elastane.model.ps import OptimizerSpec
from elastane.torch.embedding import Embedding
from elastane.torch.ps_trainer import PSTrainer
from elastane.worker.alone import AloneLink

ROWS, DIM = 40, 6


@pytest.fixture
def job() -> Iterator[Job]:
    with Job(NodeName("alone-worker-0"), AloneLink()) as made:
        yield made


def weights_of(embedding: nn.Module) -> Tensor:
    """All rows of a table as they are now."""
    ids = torch.arange(ROWS)
    with torch.no_grad():
        rows: Tensor = embedding(ids if getattr(embedding, "bag", None) is None else ids.view(-1, 1))
        return rows


OPTIMIZERS: dict[str, tuple[OptimizerSpec, Callable[[Any], optim.Optimizer]]] = {
    "sgd": (elastane.sgd(0.1, weight_decay=0.01), lambda p: optim.SGD(p, 0.1, weight_decay=0.01)),
    "momentum": (elastane.momentum(0.1, nesterov=True), lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "adagrad": (
        elastane.adagrad(0.1, initial_accumulator_value=0.1),
        lambda p: optim.Adagrad(p, 0.1, initial_accumulator_value=0.1),
    ),
    "adam": (elastane.adam(0.01, betas=(0.8, 0.99)), lambda p: optim.Adam(p, 0.01, betas=(0.8, 0.99))),
}


class Model(nn.Module):
    """Rows of an embedding, and a dense part."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        torch.manual_seed(3)
        self.dense = nn.Sequential(nn.Linear(DIM, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, *given: Tensor) -> Tensor:
        out: Tensor = self.dense(self.embedding(*given)).squeeze(-1)
        return out


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_embedding_and_its_dense_part_train_as_in_pytorch(job: Job, kind: str) -> None:
    spec, make = OPTIMIZERS[kind]
    model = Model(job.embedding("rows", DIM, spec))
    own = nn.Embedding(ROWS, DIM)
    own.weight.data.copy_(weights_of(model.embedding))
    twin = Model(own)
    trainer = job.trainer(model, make(model.parameters()))
    reference = make(twin.parameters())
    torch.manual_seed(5)
    for _ in range(30):
        # Every row is in every batch, for PyTorch's momentum and Adam also move the rows that are not.
        ids = torch.cat([torch.arange(ROWS), torch.randint(0, ROWS, (32,))])[torch.randperm(ROWS + 32)].view(2, -1, 4)
        wanted = torch.randn(ids.shape)
        trainer.step(((model(ids) - wanted) ** 2).mean())
        reference.zero_grad()
        ((twin(ids) - wanted) ** 2).mean().backward()
        reference.step()
    torch.testing.assert_close(weights_of(model.embedding), own.weight.data, atol=2e-5, rtol=1e-4)
    for ours, theirs in zip(model.dense.parameters(), twin.dense.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_equal_and_of_unequal_size_train_as_in_pytorch(job: Job, mode: Literal["sum", "mean"]) -> None:
    model = Model(job.embedding("rows", DIM, elastane.adagrad(0.1), bag=mode))
    own = nn.EmbeddingBag(ROWS, DIM, mode=mode)
    own.weight.data.copy_(weights_of(model.embedding))
    twin = Model(own)
    trainer = job.trainer(model, optim.Adagrad(model.parameters(), 0.1))
    reference = optim.Adagrad(twin.parameters(), 0.1)
    torch.manual_seed(6)
    for step in range(20):
        given: tuple[Tensor, ...] = (torch.randint(0, ROWS, (8, 5)),)
        if step % 2:
            given = (torch.randint(0, ROWS, (30,)), torch.tensor([0, 4, 4, 17, 17, 21, 29, 30]))
        trainer.step((model(*given) ** 2).mean())
        reference.zero_grad()
        (twin(*given) ** 2).mean().backward()
        reference.step()
    torch.testing.assert_close(weights_of(model.embedding), own.weight.data, atol=2e-5, rtol=1e-4)


def test_rows_that_are_pulled_ahead_are_those_of_the_batch(job: Job) -> None:
    model = Model(job.embedding("rows", DIM, elastane.sgd(0.1)))
    trainer = job.trainer(model, optim.SGD(model.parameters(), 0.1))
    batches = [torch.randint(0, ROWS, (16,)) for _ in range(5)]
    before = weights_of(model.embedding)
    seen = 0
    rows = model.embedding
    assert isinstance(trainer, PSTrainer)
    assert isinstance(rows, Embedding)
    for ids in trainer.ahead(batches, lambda ids: {rows: ids}):
        out = rows(ids)
        if not seen:
            torch.testing.assert_close(out.detach(), before[ids])
        trainer.step((model.dense(out) ** 2).mean())
        seen += 1
    assert seen == 5
    assert trainer.steps == 5


def test_a_batch_that_is_pulled_ahead_does_not_know_the_step_before_it_and_nothing_else_is_late(job: Job) -> None:
    model = Model(job.embedding("rows", DIM, elastane.sgd(0.1)))
    rows = model.embedding
    batches = [torch.randint(0, ROWS, (16,)) for _ in range(6)]
    weights, dense = weights_of(rows), copy.deepcopy(model.dense)
    trainer = job.trainer(model, optim.SGD(model.parameters(), 0.1))
    assert isinstance(trainer, PSTrainer)
    assert isinstance(rows, Embedding)
    for ids in trainer.ahead(batches, lambda ids: {rows: ids}):
        trainer.step((model(ids) ** 2).mean())
    states = [(weights, [one.detach() for one in dense.parameters()])]
    for step, ids in enumerate(batches):
        known, parameters = states[max(0, step - 1)]
        table = known.clone().requires_grad_()
        for place, value in zip(dense.parameters(), parameters, strict=True):
            place.data = value.clone()
        gradients = torch.autograd.grad((dense(table[ids]).squeeze(-1) ** 2).mean(), [table, *dense.parameters()])
        newest = [states[-1][0], *states[-1][1]]
        after = [value - 0.1 * gradient for value, gradient in zip(newest, gradients, strict=True)]
        states.append((after[0], after[1:]))
    torch.testing.assert_close(weights_of(rows), states[-1][0])
    torch.testing.assert_close([one.detach() for one in model.dense.parameters()], states[-1][1])


def test_gradients_of_several_batches_make_one_step(job: Job) -> None:
    model = Model(job.embedding("rows", DIM, elastane.sgd(0.5)))
    twin = Model(job.embedding("same rows", DIM, elastane.sgd(0.5), initializer=None))
    before = copy.deepcopy(model.dense.state_dict())
    trainer = job.trainer(nn.ModuleList([model, twin]), optim.SGD([*model.parameters(), *twin.parameters()], 0.5))
    start, other = weights_of(model.embedding), weights_of(twin.embedding)
    ids = torch.arange(8)
    trainer.backward(model(ids[:6]).mean() + twin(ids[:6]).mean(), samples=6)
    trainer.backward(model(ids[6:]).mean() + twin(ids[6:]).mean(), samples=2)
    torch.testing.assert_close(weights_of(model.embedding), start)
    trainer.apply()
    assert trainer.steps == 1
    rows = start[:8].requires_grad_()
    dense = Model(nn.Identity()).dense
    dense.load_state_dict(before)
    (gradient,) = torch.autograd.grad(dense(rows).mean(), rows)
    torch.testing.assert_close(weights_of(model.embedding)[:8], (start[:8] - 0.5 * gradient).detach())
    torch.testing.assert_close(weights_of(twin.embedding)[8:], other[8:])


def test_a_scheduler_changes_the_rate_of_dense_parameters_and_of_rows(job: Job) -> None:
    model = Model(job.embedding("rows", DIM, elastane.sgd(0.2)))
    optimizer = optim.SGD(model.parameters(), 0.1)
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 0.0)
    trainer = job.trainer(model, optimizer, scheduler)
    ids = torch.arange(ROWS)
    states = []
    for _ in range(3):
        trainer.step(model(ids).mean())
        states.append((weights_of(model.embedding), copy.deepcopy(model.dense.state_dict())))
    torch.testing.assert_close(states[1], states[2], rtol=0, atol=0)
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    first = Model(nn.Identity()).dense.state_dict()
    assert any(not torch.equal(value, first[name]) for name, value in states[0][1].items())


def test_a_parameter_without_a_gradient_is_left_alone(job: Job) -> None:
    used, unused = nn.Linear(3, 1), nn.Linear(3, 1)
    model = nn.ModuleList([used, unused, job.embedding("rows", DIM, elastane.sgd(0.1))])
    still = copy.deepcopy(unused.state_dict())
    trainer = job.trainer(model, optim.Adam(model.parameters(), 0.1, weight_decay=0.1))
    trainer.step(used(torch.ones(2, 3)).mean())
    for name, value in unused.state_dict().items():
        torch.testing.assert_close(value, still[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (optim.AdamW, "AdamW"),
        (optim.RMSprop, "RMSprop"),
        (lambda p: optim.Adam(p, amsgrad=True), "amsgrad"),
        (lambda p: optim.Adagrad(p, lr_decay=0.1), "lr_decay"),
        (lambda p: optim.SGD(p, 0.1, maximize=True), "maximize"),
    ],
)
def test_what_servers_cannot_apply_is_refused_by_name(job: Job, optimizer: Callable[[Any], Any], said: str) -> None:
    model = Model(job.embedding("rows", DIM, elastane.sgd(0.1)))
    with pytest.raises(InvalidInput, match=said):
        job.trainer(model, optimizer(model.parameters()))


def test_wrong_ids_offsets_and_settings_are_refused(job: Job) -> None:
    plain = job.embedding("rows", DIM, elastane.sgd(0.1))
    bag = job.embedding("bags", DIM, elastane.sgd(0.1), bag="sum")
    for embedding, given, said in (
        (plain, (torch.zeros(3),), "int64"),
        (plain, (torch.zeros(3, dtype=torch.int64), torch.tensor([0])), "bags"),
        (bag, (torch.zeros(3, dtype=torch.int64), torch.tensor([1])), "begin with 0"),
        (bag, (torch.zeros(3, 2, dtype=torch.int64), torch.tensor([0])), "one dimension"),
    ):
        with pytest.raises(InvalidInput, match=said):
            embedding(*given)
    with pytest.raises(InvalidInput, match="of that name"):
        job.embedding("rows", DIM, elastane.sgd(0.1))
    with pytest.raises(InvalidInput, match="global_batch_size"):
        job.trainer(plain, optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), global_batch_size=64)
