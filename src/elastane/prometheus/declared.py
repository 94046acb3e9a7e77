"""How a metric is declared: its name, its kind, its labels, and what it means."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass


class MetricKind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric, under the name that queries use; a histogram also has `_bucket`, `_sum` and `_count`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names that its samples have."""
        if self.kind is not MetricKind.HISTOGRAM:
            return (self.name,)
        return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))


class Declarations:
    """The metrics of one kind of process, in the order of their declaration. All have the labels that are `common`."""

    def __init__(self, *common: str) -> None:
        self.common = common
        self._all: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._all.values())

    def counter(self, name: str, help: str, *labels: str) -> Metric:
        return self._declare(Metric(name, MetricKind.COUNTER, help, (*self.common, *labels)))

    def gauge(self, name: str, help: str, *labels: str) -> Metric:
        return self._declare(Metric(name, MetricKind.GAUGE, help, (*self.common, *labels)))

    def histogram(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Metric:
        return self._declare(Metric(name, MetricKind.HISTOGRAM, help, (*self.common, *labels), buckets))

    def _declare(self, metric: Metric) -> Metric:
        if metric.name in self._all:
            raise AssertionError(f"{metric.name} is declared twice")
        self._all[metric.name] = metric
        return metric


class Distribution:
    """How often values fell into each bucket of a histogram, and their sum."""

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.buckets
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """The upper bound of each bucket as text, and how many values were not above it."""
        total = 0
        found = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found
