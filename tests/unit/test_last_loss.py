"""The loss that people see: the newest, read without a step that waits for it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from elastane.torch.last_loss import LastLoss
from elastane.worker.step_meter import StepFigures, StepMeter


def test_the_newest_loss_is_read_and_its_graph_is_not_kept() -> None:
    last = LastLoss(StepMeter(lambda _: None))
    assert last.read() is None
    weight = torch.ones(3, requires_grad=True)
    last.saw((2 * weight).sum())
    assert last.read() == 6.0
    last.saw(torch.tensor(math.nan))
    assert math.isnan(last.read() or 0.0)
    last.saw(torch.zeros(2))
    assert last.read() is None, "many numbers are no loss"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpus_loss_is_known_when_it_is_next_asked_for() -> None:
    last = LastLoss(StepMeter(lambda _: None))
    last.saw(torch.tensor(1.5, device="cuda"))
    assert last.read() is None, "it is on its way"
    torch.cuda.synchronize()
    last.saw(torch.tensor(2.5, device="cuda"))
    assert last.read() == 1.5


class Batches:
    """Two batches of four samples."""

    samples_in_hand = 4

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def test_a_meter_says_the_longest_step_and_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 0.3, 0.3, 1.2])
    monkeypatch.setattr("elastane.worker.step_meter.time.perf_counter", lambda: next(times))
    said: list[StepFigures] = []
    meter = StepMeter(said.append)
    meter.read_loss = lambda: 0.25
    assert list(meter.measured(Batches())) == [1, 2]
    (figures,) = said
    assert (figures.steps, figures.samples, figures.loss) == (2, 8, 0.25)
    assert figures.longest_step_s == pytest.approx(0.9)
