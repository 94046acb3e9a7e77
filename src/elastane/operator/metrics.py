"""OperatorMetrics: what an operator sees and does, for Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from prometheus_client.metrics_core import Metric as Family

from elastane.model.node import NodeType
from elastane.operator.actions import Action
from elastane.operator.cache import WatchCache
from elastane.operator.observed import JobKey
from elastane.operator.status import CONDITIONS, TRUE
from elastane.operator.work_queue import WorkQueue
from elastane.prometheus import of_operator as o
from elastane.prometheus.declared import Distribution
from elastane.prometheus.scrape import Scrape

OUTCOMES = ("ok", "conflict", "api_error", "name_taken", "error")
"""How a look at a job may end."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


class OperatorMetrics:
    """The metrics of one operator, from before it leads. Who leads says what it sees, by `watch`."""

    def __init__(self, requests: Mapping[str, int], leads: Callable[[], bool]) -> None:
        """`requests` counts those to the API server, by their method; `leads` tells whether this operator may act."""
        self._requests = requests
        self._leads = leads
        self._cache: WatchCache | None = None
        self._queue: WorkQueue[JobKey] | None = None
        self._seconds = Distribution(o.RECONCILE_SECONDS)
        self._outcomes: Counter[str] = Counter()
        self._actions: Counter[str] = Counter()

    def watch(self, cache: WatchCache, queue: WorkQueue[JobKey]) -> None:
        """This is what the operator knows, and has to do."""
        self._cache, self._queue = cache, queue

    @contextmanager
    def look(self) -> Iterator[None]:
        """A look at one job; one that fails is counted by `failed`."""
        began = time.perf_counter()
        try:
            yield
            self._outcomes["ok"] += 1
        finally:
            self._seconds.observe(time.perf_counter() - began)

    def failed(self, outcome: str) -> None:
        """A look has ended so."""
        self._outcomes[outcome] += 1

    def acted(self, action: Action) -> None:
        """Something was done."""
        self._actions[type(action).__name__] += 1

    def collect(self) -> Sequence[Family]:
        """All metrics, as they are now."""
        scrape = Scrape(o.OPERATOR)
        scrape.put_flag(o.LEADER, self._leads())
        scrape.put_distribution(o.RECONCILE_SECONDS, self._seconds)
        for outcome in OUTCOMES:
            scrape.put(o.RECONCILES, self._outcomes[outcome], outcome)
        for action, count in sorted(self._actions.items()):
            scrape.put(o.ACTIONS, count, action)
        for method in METHODS:
            scrape.put(o.API_REQUESTS, self._requests.get(method, 0), method)
        scrape.put(o.QUEUE_LENGTH, 0 if self._queue is None else self._queue.length)
        if self._cache is not None:
            _put_jobs(scrape, self._cache)
        return scrape.families()


def _put_jobs(scrape: Scrape, cache: WatchCache) -> None:
    jobs, conditions, pods = 0, Counter[str](), Counter[tuple[str, str]]()
    for key in cache.keys():  # noqa: SIM118  # it is no mapping
        seen = cache.observe(key)
        if seen is None or seen.job is None:
            continue
        jobs += 1
        conditions.update(found["type"] for found in seen.status.get("conditions") or () if found["status"] == TRUE)
        pods.update((pod.role.value, pod.phase) for pod in seen.pods)
    scrape.put(o.JOBS, jobs)
    for condition in CONDITIONS:
        scrape.put(o.JOB_CONDITIONS, conditions[condition], condition)
    for role in NodeType:
        for phase in PHASES:
            scrape.put(o.PODS, pods[role.value, phase], role, phase)
