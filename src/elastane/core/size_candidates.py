"""The sizes that a search looks at: inside the budget, and not too far from what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from elastane.model.sizing import Budget, Change, History, JobSize, Window

MOST_VALUES = 64
"""More numbers of workers or servers than this are looked at with gaps, that widen away from the present one."""


@dataclass(frozen=True)
class Reach:
    """The largest of each that may be tried next."""

    workers: int
    ps: int
    worker_cpu: float
    ps_cpu: float

    @classmethod
    def of(cls, present: JobSize, windows: Sequence[Window], history: History, growth: float) -> Reach:
        """So many times the largest that this job had; or what like jobs had, if that is more."""
        own = [present, *(window.size for window in windows)]
        known = [prior.window.size for prior in history.windows]
        if history.last_size is not None:
            known.append(history.last_size)

        def most(values: Iterable[float | None], covered: Iterable[float | None]) -> float:
            return max([growth * (value or 0.0) for value in values] + [value or 0.0 for value in covered])

        return cls(
            int(most((size.workers for size in own), (size.workers for size in known))),
            int(most((size.ps for size in own), (size.ps for size in known))),
            most((size.worker_cpu for size in own), (size.worker_cpu for size in known)),
            most((size.ps_cpu for size in own), (size.ps_cpu for size in known)),
        )


def candidates(present: JobSize, budget: Budget, reach: Reach) -> list[JobSize]:
    """Every size to be looked at, without the present one."""
    workers = _numbers(budget.min_workers, min(budget.max_workers, reach.workers), present.workers)
    servers = _numbers(budget.min_ps, min(budget.max_ps, reach.ps), present.ps) if present.ps else [0]
    sizes = (
        JobSize(*chosen)
        for chosen in product(
            workers,
            servers,
            _cores(present.worker_cpu, budget.worker_cpus, reach.worker_cpu),
            _cores(present.ps_cpu, budget.ps_cpus, reach.ps_cpu),
        )
    )
    return [size for size in sizes if size != present and budget.allows(size)]


def inside(size: JobSize, budget: Budget) -> JobSize:
    """The size inside a budget that is most like this one."""
    workers = min(max(size.workers, budget.min_workers), budget.max_workers)
    servers = min(max(size.ps, budget.min_ps), budget.max_ps)
    fitting = JobSize(workers, servers, size.worker_cpu, size.ps_cpu)
    while not budget.allows(fitting) and (fitting.workers > budget.min_workers or fitting.ps > budget.min_ps):
        # The larger group gives first, so that both keep their proportion.
        fewer_servers = fitting.ps > budget.min_ps and (
            fitting.ps * workers > fitting.workers * servers or fitting.workers == budget.min_workers
        )
        fitting = JobSize(
            fitting.workers - (not fewer_servers), fitting.ps - fewer_servers, size.worker_cpu, size.ps_cpu
        )
    return fitting


@dataclass(frozen=True)
class Direction:
    """One way to change a size: more or less of one thing."""

    what: str
    up: bool

    @property
    def opposite(self) -> Direction:
        return Direction(self.what, not self.up)


def directions(before: JobSize, after: JobSize) -> list[Direction]:
    """In which directions a change goes."""
    found = []
    for what in ("workers", "ps", "worker_cpu", "ps_cpu"):
        old, new = getattr(before, what) or 0, getattr(after, what) or 0
        if old != new:
            found.append(Direction(what, new > old))
    return found


def closed(changes: Sequence[Change], now_s: float, again_costs: float, reverse_costs: float) -> dict[Direction, float]:
    """The directions that are closed now, and until when.

    After a change its own direction is closed for a while, and the opposite one for longer, both by what it cost. Each
    roll-back doubles how long its direction stays closed: what has failed twice is not tried every few minutes.
    """
    until: dict[Direction, float] = {}
    failures: dict[Direction, int] = {}
    for change in changes:
        for way in directions(change.before, change.after):
            failures[way] = failures.get(way, 0) + change.rolled_back
            patience = 2.0 ** failures[way]
            costs = reverse_costs if change.rolled_back else again_costs
            until[way] = max(until.get(way, 0.0), change.at_s + patience * costs * change.cost_s)
            back = way.opposite
            if not change.rolled_back:
                until[back] = max(until.get(back, 0.0), change.at_s + reverse_costs * change.cost_s)
    return {way: end for way, end in until.items() if end > now_s}


def _numbers(least: int, most: int, present: int) -> list[int]:
    if most - least < MOST_VALUES:
        return list(range(least, most + 1))
    steps = {least, most, min(max(present, least), most)}
    distance = 1.0
    while distance <= most - least:
        steps |= {present - round(distance), present + round(distance)}
        distance = max(distance + 1, distance * 1.15)
    return sorted(step for step in steps if least <= step <= most)


def _cores(present: float | None, choices: tuple[float, ...], most: float) -> list[float | None]:
    if present is None:
        return [None]
    return [present, *(cores for cores in choices if cores != present and cores <= most)]
