"""Scrape: the values of declared metrics at one moment, as prometheus_client wants them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from elastane.prometheus.declared import Declarations, Distribution, Metric, MetricKind

MOST_LABEL = 200
"""Characters of a label's value that are shown."""

_FAMILIES: dict[MetricKind, type[CounterMetricFamily] | type[GaugeMetricFamily]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
}


class Scrape:
    """The samples that were put in, under metrics of these declarations; `common` are their common labels' values."""

    def __init__(self, declarations: Declarations, **common: str) -> None:
        if set(common) != set(declarations.common):
            raise AssertionError(f"the common labels are {declarations.common}, not {tuple(common)}")
        self._common = [_shown(common[name]) for name in declarations.common]
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        self._depth = len(declarations.common)

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """A sample of a counter or a gauge; the labels are those after the common ones, in the declared order."""
        family = self._families.get(metric.name)
        if family is None:
            family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
            self._families[metric.name] = family
        assert not isinstance(family, HistogramMetricFamily)  # noqa: S101  # by its kind
        family.add_metric(self._labels(metric, labels), value)

    def put_flag(self, metric: Metric, holds: bool, *labels: str) -> None:
        """1 for what holds, 0 for what does not."""
        self.put(metric, 1.0 if holds else 0.0, *labels)

    def put_state(self, metric: Metric, states: Iterable[str], present: str) -> None:
        """1 under the present state, and 0 under every other."""
        for state in states:
            self.put_flag(metric, state == present, state)

    def put_distribution(self, metric: Metric, distribution: Distribution, *labels: str) -> None:
        """A sample of a histogram."""
        family = self._families.get(metric.name)
        if family is None:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            self._families[metric.name] = family
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101  # by its kind
        family.add_metric(self._labels(metric, labels), distribution.cumulative(), distribution.sum)

    def families(self) -> list[Family]:
        """All that was put in, and what the system says of this process."""
        return [*self._families.values(), *ProcessCollector(registry=None).collect()]

    def _labels(self, metric: Metric, labels: tuple[str, ...]) -> list[str]:
        if len(labels) + self._depth != len(metric.labels):
            raise AssertionError(f"{metric.name} has the labels {metric.labels}; {labels} were given")
        return [*self._common, *map(_shown, labels)]


def _shown(text: str) -> str:
    """A label's value: what stands in it is for prometheus_client to quote, but it must be text that can be sent."""
    return text[:MOST_LABEL].encode("utf-8", "replace").decode()
