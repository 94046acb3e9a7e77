"""The optimizers of the parameter servers beside torch's, and beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from elastane.model.errors import InvalidInput
from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import reference
from elastane.ps.store import Store
from tests.store_rows import pull, push, rows_in

KIND = OptimizerKind
ROWS, DIM = 37, 19

Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

TORCH: list[tuple[OptimizerSpec, Optimizer]] = [
    (OptimizerSpec(KIND.SGD, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (OptimizerSpec(KIND.SGD, 0.1, weight_decay=0.2), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2)),
    (OptimizerSpec(KIND.MOMENTUM, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    (
        OptimizerSpec(KIND.MOMENTUM, 0.1, momentum=0.8, dampening=0.3, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, dampening=0.3, weight_decay=0.1),
    ),
    (
        OptimizerSpec(KIND.MOMENTUM, 0.1, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    (OptimizerSpec(KIND.ADAGRAD, 0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    (
        OptimizerSpec(KIND.ADAGRAD, 0.1, initial_accumulator_value=0.5, weight_decay=0.1, eps=1e-3),
        lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.5, weight_decay=0.1, eps=1e-3),
    ),
    (OptimizerSpec(KIND.ADAM, 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    (
        OptimizerSpec(KIND.ADAM, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
]

ALL = [
    *(spec for spec, _ in TORCH),
    OptimizerSpec(KIND.ROWWISE_ADAGRAD, 0.1, weight_decay=0.1, initial_accumulator_value=0.2),
    OptimizerSpec(KIND.FTRL, 0.1),
    OptimizerSpec(KIND.FTRL, 0.1, initial_accumulator_value=0.1, l1=0.3, l2=0.2, beta=0.5),
]


@pytest.mark.parametrize(("spec", "optimizer"), TORCH, ids=lambda value: getattr(value, "kind", None))
def test_dense_rows_change_as_torch_changes_them(spec: OptimizerSpec, optimizer: Optimizer) -> None:
    torch.manual_seed(1)
    table = TableSpec("dense", DIM, spec)
    store = Store(8)
    number = store.define(table)
    parameter = torch.randn(ROWS, DIM).requires_grad_()
    store.assign(number, np.arange(ROWS), parameter.detach().numpy().copy())
    ours = optimizer([parameter])
    for step in range(30):
        gradient = torch.randn(ROWS, DIM)
        rate = spec.lr * (1 + step / 10)
        for group in ours.param_groups:
            group["lr"] = rate
        parameter.grad = gradient
        ours.step()
        push(store, table, range(ROWS), gradient.numpy(), lr=rate, step=step)
    found = pull(store, table, range(ROWS))
    np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.kind)
def test_sparse_rows_change_as_the_reference_says(spec: OptimizerSpec) -> None:
    rng = np.random.default_rng(2)
    table = TableSpec("sparse", DIM, spec, Initializer(InitializerKind.NORMAL, 0.5, seed=3))
    store = Store(5)
    store.define(table)
    weights = torch.stack([reference.initial_weights(table, key) for key in range(ROWS)])
    slots = reference.initial_slots(spec, ROWS, DIM)
    updates = torch.zeros(ROWS, dtype=torch.int64)
    for step in range(1, 40):
        chosen = np.sort(rng.choice(ROWS, rng.integers(1, ROWS), replace=False))
        gradients = rng.standard_normal((len(chosen), DIM)).astype(np.float32)
        push(store, table, chosen.tolist(), gradients, lr=spec.lr, step=step)
        at = torch.from_numpy(chosen)
        some_weights, some_slots = weights[at], slots[at]
        reference.update(spec, some_weights, some_slots, updates[at], torch.from_numpy(gradients), spec.lr)
        weights[at], slots[at] = some_weights, some_slots
        updates[at] += 1
    rows, _ = rows_in(store)
    for key in range(ROWS):
        row = rows["sparse", key]
        assert row.frequency == updates[key]
        np.testing.assert_allclose(row.weights, weights[key].numpy(), rtol=5e-5, atol=5e-6)
        np.testing.assert_allclose(row.slots, slots[key].numpy(), rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("kind", InitializerKind)
@pytest.mark.parametrize("dim", [1, 2, 7, 16])
def test_rows_begin_as_the_reference_says_in_pieces_and_anew(kind: InitializerKind, dim: int) -> None:
    table = TableSpec("begin", dim, OptimizerSpec(KIND.SGD, 1.0), Initializer(kind, 0.3, seed=9))
    ids = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901]
    store, other = Store(4), Store(16)
    for one in (store, other):
        one.define(table)
    whole = pull(store, table, ids)
    np.testing.assert_array_equal(whole, np.concatenate([pull(other, table, ids[i : i + 2]) for i in (0, 2, 4)]))
    push(other, table, ids, np.zeros((len(ids), dim), np.float32))
    np.testing.assert_array_equal(whole, pull(other, table, ids))
    for bucket in range(16):
        other.drop(bucket)
    push(other, table, ids[::-1], np.zeros((len(ids), dim), np.float32))
    np.testing.assert_array_equal(whole, pull(other, table, ids))
    np.testing.assert_allclose(whole, torch.stack([reference.initial_weights(table, key) for key in ids]), rtol=1e-6)


def test_tables_and_seeds_begin_differently_and_with_the_spread_that_was_asked_for() -> None:
    store = Store(4)
    found = []
    for name, kind, seed in [("a", "uniform", 0), ("b", "uniform", 0), ("a2", "normal", 0)]:
        table = TableSpec(name, 8, OptimizerSpec(KIND.SGD, 1.0), Initializer(InitializerKind(kind), 0.5, seed))
        store.define(table)
        found.append(pull(store, table, range(5000)))
    one, other, normal = found
    assert not np.isclose(one, other).all(axis=1).any()
    assert abs(one.std() - 0.5 / 3**0.5) < 0.005
    assert abs(one).max() <= 0.5
    assert abs(normal.std() - 0.5) < 0.005
    assert abs(np.corrcoef(normal.T) - np.eye(8)).max() < 0.06


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "sgd", "lr": -1.0}, "lr -1.0 is not a number from 0 on"),
        ({"kind": "sgd", "lr": 0.1, "betas": (0.5, 0.5)}, "betas is no setting of it; it has weight_decay"),
        ({"kind": "adam", "lr": 0.1, "betas": (0.5, 1.0)}, "betas .* are not two numbers"),
        ({"kind": "momentum", "lr": 0.1, "nesterov": True, "dampening": 0.1}, "nesterov needs"),
        ({"kind": "ftrl", "lr": 0.0}, "lr 0 is not above 0"),
    ],
)
def test_an_optimizer_out_of_bounds_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OptimizerSpec(**settings)  # type: ignore[arg-type]


def test_a_table_is_the_same_after_a_journey_as_json() -> None:
    table = TableSpec("a", 4, OptimizerSpec(KIND.ADAM, 0.1, betas=(0.8, 0.9)), Initializer(seed=4), 3, 7)
    assert TableSpec.from_plain(table.to_plain()) == table
    with pytest.raises(InvalidInput, match="not the description of a table"):
        TableSpec.from_plain({**table.to_plain(), "dim": "4"})
