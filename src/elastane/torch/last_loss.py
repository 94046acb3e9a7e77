"""LastLoss: the loss of a recent batch, for people, without a step that waits for it."""

from __future__ import annotations

import torch
from torch import Tensor

from elastane.worker.step_meter import StepMeter


class LastLoss:
    """Remembers the newest loss, for a meter to say.

    A GPU's value is copied behind the steps, and known when it is next asked for.
    """

    def __init__(self, meter: StepMeter) -> None:
        meter.read_loss = self.read
        self._newest: Tensor | None = None
        self._on_its_way: tuple[Tensor, torch.cuda.Event] | None = None

    def saw(self, loss: Tensor) -> None:
        self._newest = loss.detach()

    def read(self) -> float | None:
        """The loss, as far as it is known without waiting."""
        newest = self._newest
        if newest is None or newest.numel() != 1:
            return None
        if newest.device.type != "cuda":
            return float(newest)
        arrived = None
        if self._on_its_way is not None and self._on_its_way[1].query():  # type: ignore[no-untyped-call]
            arrived = float(self._on_its_way[0])
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copy = newest.to("cpu", non_blocking=True)
        event.record(torch.cuda.current_stream(newest.device))
        self._on_its_way = (copy, event)
        return arrived
