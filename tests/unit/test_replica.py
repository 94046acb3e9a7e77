"""The parts of a training step that need no other worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import elastane
from elastane.model.errors import InvalidInput, NodeUnfit
from elastane.model.world import Place
from elastane.torch import node_check
from elastane.torch.buckets import GradientBuckets
from elastane.torch.codec import NotPlain, from_plain, to_plain
from elastane.torch.control import Control
from elastane.torch.replica import Replica

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(plain)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert from_plain(to_plain(value)) == value


def test_tensors_come_back_bit_by_bit_and_objects_are_refused() -> None:
    tensor = torch.tensor([0.1, -0.0, float("inf")], dtype=torch.bfloat16)
    back = from_plain(to_plain({"lr": tensor}))["lr"]
    assert back.dtype == tensor.dtype
    assert torch.equal(back.view(torch.int16), tensor.view(torch.int16))
    with pytest.raises(NotPlain, match="object"):
        to_plain([object()])


def test_the_node_check_accepts_this_machine_and_refuses_a_slow_one() -> None:
    fast = node_check.measure(torch.device("cpu"))
    node_check.compare(fast, [fast])
    node_check.compare(fast, [])
    with pytest.raises(NodeUnfit, match="kept out of the world"):
        node_check.compare(1.0, [0.001, 0.002, 0.5])


def test_workers_in_different_data_sets_are_noticed() -> None:
    def word(rank: int, mark: int) -> torch.Tensor:
        place = Place(1, rank, 3)
        return Control.of(place, samples=2, votes=True, mark=mark, taken=rank, held=rank, averaged=torch.ones(1)).vector

    same = Control(word(0, 77) + word(1, 77) + word(2, 0), 3)
    same.check()
    assert (same.samples, same.votes, same.mark, same.taken) == (6, 3, 77, [0, 1, 2])
    assert same.averaged is not None
    assert same.averaged.tolist() == [1.0]
    with pytest.raises(InvalidInput, match="different data sets"):
        Control(word(0, 77) + word(1, 78) + word(2, 77), 3).check()


def test_parameters_that_have_a_step_already_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    replica = Replica(model, torch.optim.Adam(model.parameters(), lr=0.1), None, None, 1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(2, 3)).sum().backward()
    ahead = list(model[0].parameters())
    replica.apply(ahead)
    after = list(model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before[:2], after[:2], strict=True))
    assert not torch.equal(before[2], after[2])


def test_a_gradient_that_nobody_has_stays_away() -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    parameters[0].grad = torch.full((3,), 2.0)
    buckets = GradientBuckets(parameters)
    buckets.copy_in()
    parameters[0].grad = None
    parameters[1].grad = torch.ones(2)
    buckets.take_sums(0.5)
    assert parameters[0].grad is not None
    assert parameters[0].grad.tolist() == [1.0, 1.0, 1.0]
    assert parameters[1].grad is None


def test_what_cannot_be_shared_is_said_at_once() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match="LBFGS"):
        Replica(model, torch.optim.LBFGS(model.parameters()), None, None, None)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InvalidInput, match="no parameter"):
        Replica(frozen, torch.optim.SGD(frozen.parameters()), None, None, None)


def test_alone_a_trainer_is_a_plain_loop() -> None:
    def train(with_elastane: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = [torch.randn(4, generator=torch.Generator().manual_seed(number)) for number in range(30)]
        losses = []
        if not with_elastane:
            for start in range(0, 30, 7):
                loss = model(torch.stack(data[start : start + 7])).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses
        with elastane.join() as job:
            trainer = job.trainer(model, optimizer)
            for batch in job.batches(data, 7):
                loss = model(batch).square().mean()
                trainer.step(loss)
                losses.append(loss.item())
            assert (job.step, job.rank, job.world_size) == (5, 0, 1)
        return losses

    assert train(with_elastane=True) == train(with_elastane=False)


def test_accumulated_batches_are_one_batch() -> None:
    def train(pieces: list[int]) -> list[list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
        data = torch.randn(12, 4, dtype=torch.float64)
        with elastane.join() as job:
            trainer = job.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
            trainer.sync()
            start = 0
            for size in pieces:
                trainer.backward(model(data[start : start + size]).square().mean(), samples=size)
                start += size
            trainer.apply()
        return [parameter.detach().flatten().tolist() for parameter in model.parameters()]

    whole = train([12])
    for pieces in ([4, 4, 4], [1, 7, 4]):
        for one, other in zip(whole, train(pieces), strict=True):
            assert one == pytest.approx(other, abs=1e-12)


def test_a_step_before_the_world_is_entered_is_refused() -> None:
    model = nn.Linear(2, 1)
    with elastane.join() as job:
        trainer = job.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(InvalidInput, match=r"trainer\.sync"):
            trainer.step(model(torch.ones(1, 2)).sum())
        with pytest.raises(InvalidInput, match="one already"):
            job.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_trainer_comes_before_the_rank() -> None:
    model = nn.Linear(2, 1)
    with elastane.join() as job:
        assert job.rank == 0
        with pytest.raises(InvalidInput, match="before the first batch"):
            job.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_saved_state_goes_on_where_it_was() -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Linear(4, 1)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    data = [torch.randn(4, generator=torch.Generator().manual_seed(number)) for number in range(40)]
    model, optimizer = fresh()
    saved: dict[str, Any] = {}
    seen: list[int] = []
    for attempt in range(2):
        model, optimizer = fresh()
        with elastane.join() as job:
            trainer = job.trainer(model, optimizer)
            if attempt:
                trainer.load_state_dict(saved)
            for batch in job.batches(data, 4):
                trainer.step(model(batch).sum())
                seen.append(len(batch))
                if job.step == 5 and not attempt:
                    saved = torch.load(_to_bytes(trainer.state_dict()), weights_only=True)
                    break
            assert job.step == (10 if attempt else 5)
    assert sum(seen) == 40


def _to_bytes(state: dict[str, Any]) -> Any:
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


def test_a_rehearsal_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    calls: list[int] = []

    def loss() -> torch.Tensor:
        calls.append(1)
        output: torch.Tensor = model(torch.randn(5, 3))
        return output.square().mean()

    with elastane.join() as job:
        job.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), rehearse=loss)
    assert calls == [1]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
