"""JobHistory: the job's speed, size and loss over its life, for whoever looks later."""

from __future__ import annotations

from elastane.core.series import Series
from elastane.rpc.protos import control_pb2 as pb

SAMPLE_EVERY_S = 1.0


class JobHistory:
    """Takes a sample about once a second; of a long life fewer are kept. It begins anew with another master."""

    def __init__(self) -> None:
        self._series = {name: Series() for name in ("workers", "samples", "steps", "loss")}
        self._steps: tuple[float, int] | None = None

    def sample(self, at: float, *, workers: int, samples_per_s: float, steps: int, loss: float | None) -> None:
        """Take how the job is at this time, in seconds since 1970."""
        self._series["workers"].add(at, workers)
        self._series["samples"].add(at, samples_per_s)
        if self._steps is not None and at > self._steps[0] and steps >= self._steps[1] > 0:
            self._series["steps"].add(at, (steps - self._steps[1]) / (at - self._steps[0]))
        self._steps = (at, steps)
        if loss is not None:
            self._series["loss"].add(at, loss)

    def view(self) -> pb.HistoryView:
        view = pb.HistoryView()
        for name, series in self._series.items():
            if series.points:
                at, values = zip(*series.points, strict=True)
                view.series.add(name=name, at=at, value=values)
        return view
