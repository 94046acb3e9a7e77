"""BrainMetrics: what the Brain has done since it was started, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prometheus_client.metrics_core import Metric as Family

from elastane.brain.app import BrainService
from elastane.prometheus import of_brain as b
from elastane.prometheus.declared import Distribution
from elastane.prometheus.scrape import Scrape


class BrainMetrics:
    """The metrics of one Brain. `answered` is to be told of each call."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, Distribution] = {}

    def answered(self, method: str, outcome: str, seconds: float) -> None:
        """A call was answered."""
        self._requests[method, outcome] += 1
        self._seconds.setdefault(method, Distribution(b.REQUEST_SECONDS)).observe(seconds)

    def collect(self, service: BrainService) -> Sequence[Family]:
        """All metrics, as they are now."""
        scrape = Scrape(b.BRAIN)
        for (method, outcome), count in sorted(self._requests.items()):
            scrape.put(b.REQUESTS, count, method, outcome)
        for method, distribution in sorted(self._seconds.items()):
            scrape.put_distribution(b.REQUEST_SECONDS, distribution, method)
        counts = service.counts
        for outcome in ("stored", "not_stored"):
            scrape.put(b.REPORTS, counts.reports[outcome], outcome)
        for outcome in ("changes", "stays", "stays_again", "refused"):
            scrape.put(b.PLANS, counts.plans[outcome], outcome)
        scrape.put(b.ROWS, counts.rows)
        scrape.put(b.PLANNERS_DIED, counts.planners_died)
        scrape.put(b.PLANS_WAITING, service.plans_waiting)
        scrape.put(b.WRITES_WAITING, service.writes_waiting)
        return scrape.families()
