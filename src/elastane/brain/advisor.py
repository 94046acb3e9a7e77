"""The advisor: which runs are like another, how far each is to be believed, and what follows for the one that asks.

Like is, first, a run of the same code and data; where there is none, of the same user and model; where there is none
either, of the same kind. Nothing in here does I/O.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from elastane.brain.runs import PastRun
from elastane.core.size_search import RULES, decide, first_size
from elastane.core.throughput import fit
from elastane.model.brain import Likeness, LikeRuns, ReportedWindow
from elastane.model.quantity import Memory
from elastane.model.sizing import (
    Budget,
    Change,
    Decision,
    History,
    JobKind,
    JobSize,
    NoDecision,
    PriorWindow,
    Window,
)

MOST_LIKE_RUNS = 10
_RUNS_WITH_WINDOWS = 3
"""What it costs to fit a model grows with what it is fitted to; these teach the curve, all of them where to begin."""
_NEWEST = 9

HALF_LIFE_S = 14 * 86_400.0
"""After so long a run is believed half as much: code, data and machines change."""
USUAL_ERROR = 0.1
"""A run whose predictions were so far off is believed half as much as one whose were exact."""
UNKNOWN_ERROR = 0.1
"""What is assumed of a run for which nothing was predicted."""

_BELIEF = {Likeness.CODE_AND_DATA: 1.0, Likeness.USER_AND_MODEL: 0.4, Likeness.KIND: 0.1}
_ENDED_BADLY = frozenset({"failed", "oom"})


def weight(past: PastRun, likeness: Likeness, now: float) -> float:
    """How far a past run is to be believed, from 0 to 1: by likeness, recency, and how well it was predicted."""
    age_s = max(0.0, now - past.started_at)
    error = statistics.median(past.relative_errors) if past.relative_errors else UNKNOWN_ERROR
    recency: float = 0.5 ** (age_s / HALF_LIFE_S)
    return _BELIEF[likeness] * recency / (1 + error / USUAL_ERROR)


def learn(likeness: Likeness, pasts: Sequence[PastRun], now: float) -> tuple[History, LikeRuns]:
    """What like runs teach: a weighted window of each size, newest run first, where they ended, and their memory."""
    weights = {past.run: weight(past, likeness, now) for past in pasts}
    most_believed = sorted(weights, key=lambda run: -weights[run])[:_RUNS_WITH_WINDOWS]
    prior = [
        PriorWindow(window, weights[past.run])
        for past in pasts
        if past.run in most_believed
        for window in _typical(past.windows)
    ]
    last_size = _last_size(likeness, pasts, weights)
    rows = [reported for past in pasts for reported in past.windows]
    like = LikeRuns(
        how=likeness,
        runs=len(pasts),
        worker_memory=_largest(row.worker_memory for row in rows),
        ps_memory=_largest(row.ps_memory for row in rows),
        last_size=last_size,
    )
    return History(tuple(prior), last_size), like


def advise(
    kind: JobKind,
    windows: Sequence[Window],
    changes: Sequence[Change],
    budget: Budget,
    remaining_samples: float | None,
    history: History,
    now_s: float,
    assumed_cost_s: float | None = None,
) -> Decision | NoDecision:
    """What the run should do next: a first size from the history alone; from its first window on, the usual rules."""
    if not windows:
        return first_size(kind, budget, history)
    rules = RULES if assumed_cost_s is None else replace(RULES, assumed_cost_s=assumed_cost_s)
    return decide(kind, windows, changes, budget, remaining_samples, history, now_s, rules)


def fitted(kind: JobKind, windows: Sequence[Window], history: History) -> dict[str, float]:
    """The parameters of the run's model, by name."""
    return dict(fit(kind, windows, history).coefficients)


def thinned(rows: Sequence[ReportedWindow], first: int, last: int) -> list[ReportedWindow]:
    """Of each stretch of one size so many of its first, which say what a change gave, and so many of its last."""
    kept: list[ReportedWindow] = []
    for _, group in groupby(rows, key=lambda row: row.window.size):
        stretch = list(group)
        kept += stretch if len(stretch) <= first + last else (*stretch[:first], *stretch[-last:])
    return kept


def own_windows(rows: Sequence[ReportedWindow]) -> list[Window]:
    """The windows of a run that its model is fitted to."""
    return [reported.window for reported in thinned(rows, first=3, last=6)]


def _typical(rows: Sequence[ReportedWindow]) -> list[Window]:
    """One window of each size, of median speed among the newest: that a past run was long does not make it truer."""
    of_size: dict[JobSize, list[Window]] = {}
    for row in rows:
        of_size.setdefault(row.window.size, []).append(row.window)
    newest = [windows[-_NEWEST:] for windows in of_size.values()]
    return [sorted(windows, key=lambda window: window.samples_per_s)[len(windows) // 2] for windows in newest]


def _last_size(likeness: Likeness, pasts: Sequence[PastRun], weights: dict[str, float]) -> JobSize | None:
    """Where the most believed run of the same code and data ended; of runs less like, where the weighted median did."""
    ends = [(past.windows[-1].window.size, weights[past.run]) for past in pasts if past.exit_reason not in _ENDED_BADLY]
    if not ends:
        return None
    if likeness is Likeness.CODE_AND_DATA:
        return max(ends, key=lambda end: end[1])[0]
    half = sum(belief for _, belief in ends) / 2
    passed = 0.0
    for size, belief in sorted(ends, key=lambda end: (end[0].workers, end[0].ps)):
        passed += belief
        if passed >= half:
            return size
    return ends[-1][0]


def _largest(memories: Iterable[Memory | None]) -> Memory | None:
    return max((memory for memory in memories if memory is not None), default=None)
