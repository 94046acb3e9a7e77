"""Series: values over time for charts, in bounded memory however long a job runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_POINTS = 1000

Point = tuple[float, float]


class Series:
    """Values over time: all of them at first, later fewer, but always the first, the last and the extremes.

    When there are too many, the time is cut into equal stretches, and of each the lowest and the highest stay.
    `generation` changes whenever points went, so that whoever has a copy knows to ask for all.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        if most < 8:
            raise ValueError(f"most: {most} is below 8")
        self._most = most
        self._points: list[Point] = []
        self.generation = 0

    def add(self, at: float, value: float) -> None:
        """Take a value, of a later time than the last one's. What is no number, or came late, is left out."""
        if not math.isfinite(at) or not math.isfinite(value) or (self._points and at <= self._points[-1][0]):
            return
        self._points.append((at, value))
        if len(self._points) > self._most:
            self._thin()

    def _thin(self) -> None:
        first, last = self._points[0], self._points[-1]
        width = (last[0] - first[0]) / (self._most // 4)
        stretches: dict[int, list[Point]] = {}
        for point in self._points[1:-1]:
            stretches.setdefault(int((point[0] - first[0]) / width), []).append(point)
        kept = [first]
        for stretch in stretches.values():
            low = min(stretch, key=lambda point: point[1])
            high = max(stretch, key=lambda point: point[1])
            kept += sorted({low, high})
        self._points = [*kept, last]
        self.generation += 1

    @property
    def points(self) -> Sequence[Point]:
        return self._points

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None

    def __len__(self) -> int:
        return len(self._points)
