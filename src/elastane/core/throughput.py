"""How fast a job would be at another size: a model of the seconds per step, fitted to what was observed.

It is fitted by non-negative least squares with relative weights. What the observations do not tell apart is taken from
what each part of a step usually comes from; and to see how much that matters, it is fitted again with that guess tilted
to each term in turn, and without each observation in turn. The interval of a prediction holds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

import numpy as np

from elastane.core.step_fit import UNSEEN_SYNC, Coefficients, at_our_level, features_seen, fit_once, step_s
from elastane.core.step_terms import (
    COMPUTE_TERMS,
    SERVER_TERMS,
    SYNC_TERMS,
    Array,
    Columns,
    Observation,
    Surroundings,
    compute_features,
    observe,
    observe_history,
    server_features,
    sync_features,
)
from elastane.model.errors import InvalidInput
from elastane.model.sizing import MOST_WORKERS, NO_HISTORY, History, JobKind, JobSize, Prediction, Window

SIGMAS = (1.0, 2.0)
"""So many standard errors of the jackknife belong to the interval, below and above the guess.

What is decided by is the lower bound. If it were as far away as the upper one, a job would never try anything.
"""
NEARNESS = 0.35
"""How far what was seen at a size tells about its neighbours: a factor of e to this, in each thing that was chosen."""
NEAR_DOUBT = 0.2
"""What stays of the model even at a size that was seen."""
LEAST_NOISE = 0.02
"""No prediction is surer than this."""
JACKKNIFED = 12
"""So many of the newest observations are left out in turn."""


@dataclass(frozen=True)
class ThroughputModel:
    """Seconds per step as a function of the size, with what the observations leave open."""

    kind: JobKind
    coefficients: tuple[tuple[str, float], ...]
    """What was fitted, by name; for people and for the database."""
    observations: int
    """How many sizes it is fitted to."""
    error: float
    """How far it is from what was observed: the mean of the relative errors."""
    _around: Surroundings
    _best: Coefficients
    _without: tuple[Coefficients, ...]
    _tilted: tuple[Coefficients, ...]
    _hopeful: tuple[Coefficients, ...]
    """Tilted all the way; these only count for the upper bound."""
    _seen: Array
    """The sizes that were seen, as logarithms, a row each."""
    _missed: Array
    """How far the model was from each, as a logarithm."""
    _trusted: Array
    _server_demand: float | None
    """Core-seconds per sample, on a server that had the whole load."""
    _worker_demand: float | None
    """Core-seconds of a worker per sample."""

    def predict(self, size: JobSize) -> Prediction:
        """Samples per second at a size."""
        best, low, high = self.predict_many([size])
        return Prediction(float(best[0]), float(low[0]), float(high[0]))

    def predict_many(self, sizes: Sequence[JobSize], beside: JobSize | None = None) -> tuple[Array, Array, Array]:
        """Samples per second at many sizes: the best guess, the lower and the upper bound of each.

        Beside another size: as multiples of what that one gives, which is surer than either.
        """
        at = Columns.of(sizes)
        here = None if beside is None else Columns.of([beside])

        nearby = self._nearby(at) if here is None else self._nearby(at) / self._nearby(here)

        def speed(fitted: Coefficients) -> Array:
            there = self._samples_per_s(at, fitted) * nearby
            return there if here is None else there / self._samples_per_s(here, fitted)

        best = speed(self._best)
        low, high = best * (1 - LEAST_NOISE), best * (1 + LEAST_NOISE)
        for fitted in self._tilted:
            other = speed(fitted)
            low, high = np.minimum(low, other), np.maximum(high, other)
        for fitted in self._hopeful:
            high = np.maximum(high, speed(fitted))
        if self._without:
            others = np.log(np.stack([speed(fitted) for fitted in self._without]))
            count = len(self._without)
            # The jackknife's standard error, of the logarithm because speeds are compared by their ratio.
            error = np.sqrt((count - 1) * np.mean((others - others.mean(axis=0)) ** 2, axis=0))
            below, above = (np.exp(np.minimum(np.hypot(sigmas * error, self.error), 3.0)) for sigmas in SIGMAS)
            low, high = np.minimum(low, best / below), np.maximum(high, best * above)
        return best, low, high

    def limit(self, size: JobSize) -> str:
        """What keeps a job of this size from growing by more workers, and where: `PS cpu limits at 11`.

        That is the number of workers at which the straight line of a few meets what many of them can reach.
        """
        if self.observations < 2:
            return "one size tells no limit"
        at = Columns.of([size])
        grows = self._growth(size)
        name = max(grows, key=lambda term: grows[term])
        each_s = sum(grows.values())
        step_s = float(self._step_s(at, self._best)[0])
        knee = (step_s - each_s * (size.workers - 1)) / each_s if each_s > 1e-4 * step_s else np.inf
        if self._server_demand is not None and size.ps_cpu is not None:
            alone = float(self._samples_per_s(Columns.of([replace(size, workers=1)]), self._best)[0])
            ceiling = float(self._server_ceiling(at)[0]) / alone
            if ceiling <= knee:
                name, knee = "PS cpu limits", ceiling
        if knee > MOST_WORKERS:
            return "nothing seen limits it"
        return f"{name} at {max(round(knee), 1)}"

    def _growth(self, size: JobSize) -> dict[str, float]:
        """The seconds by which one more worker would make a step longer, by what is to blame."""
        two = Columns.of([size, replace(size, workers=size.workers + 1)])
        around = replace(self._around, fixed_global_batch=False)
        if self.kind is JobKind.PARAMETER_SERVER:
            names: tuple[str, ...] = SERVER_TERMS
            seconds = server_features(two, around) * self._best.work
        else:
            names = COMPUTE_TERMS + SYNC_TERMS
            work, sync = compute_features(two, around) * self._best.work, sync_features(two) * self._best.sync
            seconds = np.concatenate([work, sync], axis=1)
        grows = dict.fromkeys(_LIMITS.values(), 0.0)
        for name, more in zip(names, seconds[1] - seconds[0], strict=True):
            if name in _LIMITS:
                grows[_LIMITS[name]] += float(more)
        return grows

    def _samples_per_s(self, at: Columns, fitted: Coefficients) -> Array:
        free = at.workers * self._around.batch(at.workers) / self._step_s(at, fitted)
        return np.minimum(free, self._ceiling(at))

    def _nearby(self, at: Columns) -> Array:
        """By how much sizes near those that were seen are faster than the model says, as those were."""
        far = (at.logarithms()[:, None, :] - self._seen[None, :, :]) / NEARNESS
        near = self._trusted * np.exp(-0.5 * np.sum(far**2, axis=2))
        return np.asarray(np.exp(near @ self._missed / (near.sum(axis=1) + NEAR_DOUBT)), dtype=np.float64)

    def _step_s(self, at: Columns, fitted: Coefficients) -> Array:
        return step_s(self.kind, at, self._around, fitted)

    def _ceiling(self, at: Columns) -> Array:
        """The utilisation law: no node does more than its cores can, whatever the step is made of."""
        ceiling = self._server_ceiling(at)
        if self._worker_demand is not None:
            ceiling = np.minimum(ceiling, at.workers * at.worker_cpu / self._worker_demand)
        return ceiling

    def _server_ceiling(self, at: Columns) -> Array:
        if self._server_demand is None:
            return np.full(at.workers.shape, np.inf)
        return np.asarray(at.ps_cpu / (self._server_demand * self._around.share(at.ps)), dtype=np.float64)


_LIMITS = {
    "PS cpu": "PS cpu limits",
    "PS": "PS limits",
    "each worker": "what the workers share limits",
    "sync volume": "synchronising limits",
    "sync rounds": "synchronising limits",
}


def fit(kind: JobKind, windows: Sequence[Window], history: History = NO_HISTORY) -> ThroughputModel:
    """Fit the model of a kind to a job's own windows, and with less weight to those of like jobs.

    Raises InvalidInput if there is nothing to fit it to.
    """
    own, prior = observe(windows), observe_history(history)
    if not own and not prior:
        raise InvalidInput("windows: none, so there is nothing to fit to")
    if own and prior:
        prior = at_our_level(kind, prior, own)
    seen = (*prior, *own)
    around = Surroundings.of(own or seen)
    features = features_seen(kind, seen, around)
    best = fit_once(kind, seen, features, around)
    without = tuple(
        fit_once(kind, [*seen[:left], *seen[left + 1 :]], np.delete(features, left, axis=0), around)
        for left in range(max(len(seen) - JACKKNIFED, 0), len(seen))
        if len(seen) > 1
    )
    terms = len(SERVER_TERMS) if kind is JobKind.PARAMETER_SERVER else len(COMPUTE_TERMS) + len(SYNC_TERMS)
    tilted = tuple(fit_once(kind, seen, features, around, tilt) for tilt in range(terms))
    if kind is JobKind.ALLREDUCE and not any(one.size.workers > 1 for one in seen):
        tilted += (fit_once(kind, seen, features, around, unseen_sync=UNSEEN_SYNC[1]),)
    hopeful = tuple(fit_once(kind, seen, features, around, tilt, strength=1.0) for tilt in range(terms))
    known = own or seen
    at = Columns.of([one.size for one in known])
    missed = np.log(step_s(kind, at, around, best) / np.array([one.step_s for one in known]))
    trusted = np.array([one.weight for one in known])
    return ThroughputModel(
        kind=kind,
        coefficients=_named(kind, best),
        observations=len({one.size for one in seen}),
        error=float(np.average(np.abs(missed), weights=trusted)),
        _around=around,
        _best=best,
        _without=without,
        _tilted=tilted,
        _hopeful=hopeful,
        _seen=at.logarithms(),
        _missed=missed,
        _trusted=trusted,
        _server_demand=_demand(seen, lambda one: one.ps_cpu_used, lambda one: max(one.share, 1 / max(one.size.ps, 1))),
        _worker_demand=_demand(seen, lambda one: one.worker_cpu_used, lambda one: 1 / one.size.workers)
        if all(one.size.worker_cpu is not None for one in seen)
        else None,
    )


def _demand(
    seen: Sequence[Observation],
    used: Callable[[Observation], float | None],
    share: Callable[[Observation], float],
) -> float | None:
    """Core-seconds per sample at a node that had everything to do, by what nodes with a share of it used."""
    demands = [cores / (one.samples_per_s * share(one)) for one in seen if (cores := used(one))]
    return median(demands) if demands else None


def _named(kind: JobKind, fitted: Coefficients) -> tuple[tuple[str, float], ...]:
    if kind is JobKind.PARAMETER_SERVER:
        return tuple((f"a{index}", float(value)) for index, value in enumerate(fitted.work))
    pairs = chain(zip(COMPUTE_TERMS, fitted.work, strict=True), zip(SYNC_TERMS, fitted.sync, strict=True))
    return (*((name, float(value)) for name, value in pairs), ("norm", fitted.norm))
