"""Snapshots: whatever the training thread does meanwhile, they are the state after one round."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from elastane.torch.random_states import RandomStates, go_on_with
from elastane.torch.replica import Replica
from elastane.torch.snapshot import Part, Snapshots


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8).to(torch.bfloat16))
        self.image = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("flags", torch.tensor([True, False, True]))


def replica_of(model: nn.Module, *others: nn.Parameter) -> Replica:
    optimizer = torch.optim.Adam([*model.parameters(), *others], lr=0.1)
    return Replica(model, optimizer, None, None, None)


def make_round(replica: Replica) -> None:
    for parameter in replica.parameters:
        parameter.grad = torch.ones_like(parameter)
    with replica.changing():
        replica.apply()
        replica.rounds += 1


def copies(replica: Replica) -> list[Tensor]:
    return [tensor.clone() for index in range(replica.unit_count()) for tensor in replica.unit(index).tensors]


def bits(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (tensor.dtype, tensor.shape, tensor.tolist()) for name, tensor in tensors.items()}


class Held:
    """Memory that is only given once the training thread wants to change the state, or is told to fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.wanted = threading.Event()
        self._error = error

    def __call__(self, name: str, size: int) -> Tensor:
        assert self.wanted.wait(10)
        if self._error is not None:
            raise self._error
        return torch.empty(size, dtype=torch.uint8)


def test_a_snapshot_is_the_state_of_its_round_though_the_next_step_comes_at_once() -> None:
    torch.manual_seed(0)
    extra = nn.Parameter(torch.randn(5))
    replica = replica_of(Net(), extra)
    snapshots = Snapshots(replica)
    make_round(replica)
    model = {name: tensor.clone() for name, tensor in replica.model.state_dict().items()}
    moments = replica.optimizer.state[extra]["exp_avg"].clone()
    held = Held()
    replica.before_change.insert(0, held.wanted.set)
    future = snapshots.take(memory=held)
    replica.model.get_buffer("layers.1.running_mean").add_(1)  # As a forward does.
    make_round(replica)
    snapshot = future.result(10)
    assert (snapshot.rounds, snapshot.steps) == (1, 1)
    assert bits(snapshot.model.tensors) == bits(model)
    assert snapshot.optimizer is not None
    assert torch.equal(snapshot.optimizer.tensors["#7.exp_avg"], moments)
    assert snapshot.rest["small"]["rounds"] == 1
    snapshots.close()


def test_a_part_is_a_safetensors_file() -> None:
    replica = replica_of(Net())
    snapshots = Snapshots(replica)
    snapshot = snapshots.take().result(10)

    def read(part: Part | None) -> dict[str, Tensor]:
        assert part is not None
        return load_safetensors(part.data.numpy().tobytes())

    assert bits(read(snapshot.model)) == bits(replica.model.state_dict())
    assert read(snapshot.optimizer) == {}
    make_round(replica)
    snapshot = snapshots.take().result(10)
    first = replica.optimizer.state[replica.parameters[0]]
    assert torch.equal(read(snapshot.optimizer)["image.exp_avg_sq"], first["exp_avg_sq"])
    snapshots.close()


def test_a_snapshot_of_the_model_alone_has_no_optimizer() -> None:
    replica = replica_of(Net())
    snapshots = Snapshots(replica)
    make_round(replica)
    alone, whole = snapshots.take(model_only=True), snapshots.take()
    make_round(replica)
    assert alone.result(10).optimizer is None
    assert bits(alone.result(10).model.tensors) == bits(whole.result(10).model.tensors)
    snapshots.close()


def test_a_snapshot_without_memory_fails_alone() -> None:
    replica = replica_of(Net())
    snapshots = Snapshots(replica)
    held = Held(OSError("no space"))
    replica.before_change.insert(0, held.wanted.set)
    future = snapshots.take(memory=held)
    make_round(replica)
    with pytest.raises(OSError, match="no space"):
        future.result(10)
    assert snapshots.take().result(10).rounds == 1
    snapshots.close()


def test_random_numbers_go_on() -> None:
    def draw() -> list[float]:
        return [torch.rand(1).item(), float(np.random.standard_normal()), random.random()]

    draw()
    states = RandomStates.now(torch.device("cpu"))
    before = draw()
    go_on_with(states.plain(), torch.device("cpu"))
    assert draw() == before
