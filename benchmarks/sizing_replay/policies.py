"""The policies: the user's request, threshold rules, greedy marginal gain, elastane's, and two oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import ClassVar, Protocol

from benchmarks.sizing_replay.jobs import ReplayedJob
from elastane.core.size_search import RULES, SearchRules, decide
from elastane.model.sizing import Change, Decision, JobSize, Prediction, Window

NOTHING_PREDICTED = Prediction(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Plan:
    """A size to go to."""

    size: JobSize
    prediction: Prediction = NOTHING_PREDICTED
    reason: str = ""
    is_rollback: bool = False


class Policy(Protocol):
    """Asked after a window, answers with a plan or with nothing. It keeps no state: it is given the job's past."""

    @property
    def name(self) -> str: ...

    def first_size(self, job: ReplayedJob) -> JobSize: ...

    def decide(
        self,
        job: ReplayedJob,
        windows: Sequence[Window],
        changes: Sequence[Change],
        remaining_samples: float,
        now_s: float,
    ) -> Plan | None: ...


@dataclass(frozen=True)
class Request:
    """What the user asked for, to the end."""

    name: str = "request"

    def first_size(self, job: ReplayedJob) -> JobSize:
        return job.request

    def decide(
        self,
        job: ReplayedJob,  # noqa: ARG002
        windows: Sequence[Window],  # noqa: ARG002
        changes: Sequence[Change],  # noqa: ARG002
        remaining_samples: float,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> Plan | None:
        return None


@dataclass(frozen=True)
class Thresholds:
    """Workers grow to `n * 0.9 / max PS util`, until one adds under a fifth of the average; a PS at 0.9 is hot.

    A hot PS gets twice the cores where they may be chosen, else there are twice as many PS. Without PS the workers
    double, until one adds under a fifth of the average.
    """

    name: str = "thresholds"
    plans_apart_s: ClassVar[float] = 300.0
    servers_apart_s: ClassVar[float] = 3600.0
    hot: ClassVar[float] = 0.9
    least_gain: ClassVar[float] = 0.2

    def first_size(self, job: ReplayedJob) -> JobSize:
        return job.start

    def decide(
        self,
        job: ReplayedJob,
        windows: Sequence[Window],
        changes: Sequence[Change],
        remaining_samples: float,  # noqa: ARG002
        now_s: float,
    ) -> Plan | None:
        size = windows[-1].size
        if now_s - (changes[-1].at_s if changes else 0.0) < self.plans_apart_s:
            return None
        if not size.ps:
            return self._workers(job, windows, changes, 2 * size.workers)
        here = _here(windows)[-10:]
        busy = median(window.ps_cpu_used or 0.0 for window in here) / (size.ps_cpu or 1.0)
        # One busy window is enough: workers that stopped just below the mark would else never get more PS.
        busiest = max(window.ps_cpu_used or 0.0 for window in here) / (size.ps_cpu or 1.0)
        if busiest >= self.hot:
            server_changes = [change.at_s for change in changes if _servers(change.before) != _servers(change.after)]
            if server_changes and now_s - server_changes[-1] < self.servers_apart_s:
                return None
            return self._servers(job, size)
        return self._workers(job, windows, changes, int(size.workers * self.hot / max(busy, 0.01)))

    def _servers(self, job: ReplayedJob, size: JobSize) -> Plan | None:
        cores = [cores for cores in job.budget.ps_cpus if cores == 2 * (size.ps_cpu or 1.0)]
        larger = replace(size, ps_cpu=cores[0]) if cores else size
        if larger == size or not job.budget.allows(larger):
            larger = replace(size, ps=min(2 * size.ps, job.budget.max_ps))
        return Plan(larger) if larger != size and job.budget.allows(larger) else None

    def _workers(
        self, job: ReplayedJob, windows: Sequence[Window], changes: Sequence[Change], wanted: int
    ) -> Plan | None:
        size = windows[-1].size
        if changes and (added := changes[-1].after.workers - changes[-1].before.workers) > 0:
            before = median(_speeds(windows, changes[-1].before))
            each = (median(_speeds(windows, size)) - before) / added
            if each < self.least_gain * before / changes[-1].before.workers:
                return None
        for workers in range(min(wanted, job.budget.max_workers), size.workers, -1):
            if job.budget.allows(replace(size, workers=workers)):
                return Plan(replace(size, workers=workers))
        return None


@dataclass(frozen=True)
class Greedy:
    """Climbs by trying half as many more of one thing; if that gains under a twentieth, goes back and tries the next.

    When each has failed in a row, it stays where it is.
    """

    name: str = "greedy"
    windows: ClassVar[int] = 3
    least_gain: ClassVar[float] = 0.05

    def first_size(self, job: ReplayedJob) -> JobSize:
        return job.start

    def decide(
        self,
        job: ReplayedJob,
        windows: Sequence[Window],
        changes: Sequence[Change],
        remaining_samples: float,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> Plan | None:
        if len(_here(windows)) < self.windows:
            return None
        size = windows[-1].size
        ways = [self._more(job, size, what) for what in ("workers", "ps", "worker_cpu", "ps_cpu")]
        tries = [change for change in changes if not change.rolled_back and not self._undoes(changes, change)]
        if changes and changes[-1] in tries:
            before = median(_speeds(windows, changes[-1].before)[-self.windows :])
            if median(_speeds(windows, size)[-self.windows :]) < (1 + self.least_gain) * before:
                return Plan(changes[-1].before, is_rollback=True)
        failed = {change.after for change in changes if change.rolled_back and change.before == size}
        return next((Plan(way) for way in ways if way is not None and way not in failed), None)

    def _undoes(self, changes: Sequence[Change], change: Change) -> bool:
        place = changes.index(change)
        return place > 0 and changes[place - 1].rolled_back

    def _more(self, job: ReplayedJob, size: JobSize, what: str) -> JobSize | None:
        present = getattr(size, what)
        if present is None or (what == "ps" and not present):
            return None
        if what in ("workers", "ps"):
            most = job.budget.max_workers if what == "workers" else job.budget.max_ps
            more: float = min(max(present + 1, math.ceil(1.5 * present)), most)
        else:
            choices = job.budget.worker_cpus if what == "worker_cpu" else job.budget.ps_cpus
            more = min((cores for cores in choices if cores > present), default=present)
        larger = JobSize(**{**asdict(size), what: more})
        return larger if larger != size and job.budget.allows(larger) else None


@dataclass(frozen=True)
class Elastane:
    """Ours: the rule that a master and the Brain call."""

    name: str = "elastane"
    rules: SearchRules = RULES

    def first_size(self, job: ReplayedJob) -> JobSize:
        return job.start

    def decide(
        self,
        job: ReplayedJob,
        windows: Sequence[Window],
        changes: Sequence[Change],
        remaining_samples: float,
        now_s: float,
    ) -> Plan | None:
        decision = decide(job.kind, windows, changes, job.budget, remaining_samples, now_s=now_s, rules=self.rules)
        if not isinstance(decision, Decision):
            return None
        return Plan(decision.size, decision.prediction, decision.reason, decision.is_rollback)


@dataclass(frozen=True)
class PayingOracle:
    """Knows the truth, begins where all do, and pays for its changes as all do."""

    name: str = "paying oracle"

    def first_size(self, job: ReplayedJob) -> JobSize:
        return job.start

    def decide(
        self,
        job: ReplayedJob,
        windows: Sequence[Window],
        changes: Sequence[Change],  # noqa: ARG002
        remaining_samples: float,
        now_s: float,
    ) -> Plan | None:
        size, best = windows[-1].size, job.best_size(now_s)
        saved_s = remaining_samples / job.samples_per_s(size, now_s)
        saved_s -= remaining_samples / job.samples_per_s(best, now_s)
        return Plan(best) if saved_s > job.cost_s(size, best) else None


def free_completion_s(job: ReplayedJob) -> float:
    """When a job ends that is at the best size of every moment, and pays nothing for it."""
    now_s, done = 0.0, 0.0
    edges = sorted({edge for one in job.disturbances for edge in (one.begin_s, one.end_s)} | {math.inf})
    for edge in edges:
        speed = job.samples_per_s(job.best_size(now_s), now_s)
        if done + speed * (edge - now_s) >= job.samples:
            break
        done += speed * (edge - now_s)
        now_s = edge
    return now_s + (job.samples - done) / job.samples_per_s(job.best_size(now_s), now_s)


def _here(windows: Sequence[Window]) -> list[Window]:
    """The newest windows, all of one size."""
    size = windows[-1].size
    found = []
    for window in reversed(windows):
        if window.size != size:
            break
        found.append(window)
    return found[::-1]


def _speeds(windows: Sequence[Window], size: JobSize) -> list[float]:
    return [window.samples_per_s for window in windows if window.size == size]


def _servers(size: JobSize) -> tuple[int, float | None]:
    return size.ps, size.ps_cpu
