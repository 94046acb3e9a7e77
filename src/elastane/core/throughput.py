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

from elastane.core.step_terms import (
    COMPUTE_TERMS,
    SERVER_TERMS,
    SYNC_TERMS,
    Array,
    Columns,
    Observation,
    Surroundings,
    compute_features,
    compute_shares,
    observe,
    observe_history,
    server_features,
    server_shares,
    sync_features,
    sync_shares,
)
from elastane.model.errors import InvalidInput
from elastane.model.sizing import MOST_WORKERS, NO_HISTORY, History, JobKind, JobSize, Prediction, Window

TILT = 0.6
"""How far the guess is tilted to one term, to see what follows."""
GUESS_WEIGHT = 0.1
"""The guess, beside an observation: about the noise of a window over the doubt about a share."""
SIGMAS = 1.0
"""So many standard errors of the jackknife belong to the interval."""
NEARNESS = 0.35
"""How far what was seen at a size tells about its neighbours: a factor of e to this, in each thing that was chosen."""
NEAR_DOUBT = 0.2
"""What stays of the model even at a size that was seen."""
LEAST_NOISE = 0.02
"""No prediction is surer than this."""
JACKKNIFED = 12
"""So many of the newest observations are left out in turn."""
NORMS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
"""How compute and synchronise time may join: 1 is one after the other, many is both at once."""
UNSEEN_SYNC = (0.1, 0.4)
"""What synchronising two workers takes of a step where only one was ever seen: probably, and at the worst."""


@dataclass(frozen=True)
class _Coefficients:
    """One fit: what the terms cost, and how the two sums of all-reduce join."""

    work: Array
    sync: Array
    norm: float


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
    _best: _Coefficients
    _without: tuple[_Coefficients, ...]
    _tilted: tuple[_Coefficients, ...]
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

        def speed(fit_: _Coefficients) -> Array:
            there = self._samples_per_s(at, fit_) * nearby
            return there if here is None else there / self._samples_per_s(here, fit_)

        best = speed(self._best)
        low, high = best * (1 - LEAST_NOISE), best * (1 + LEAST_NOISE)
        for fit_ in self._tilted:
            other = speed(fit_)
            low, high = np.minimum(low, other), np.maximum(high, other)
        if self._without:
            others = np.log(np.stack([speed(fit_) for fit_ in self._without]))
            count = len(self._without)
            # The jackknife's standard error, of the logarithm because speeds are compared by their ratio.
            error = np.sqrt((count - 1) * np.mean((others - others.mean(axis=0)) ** 2, axis=0))
            spread = np.exp(np.minimum(np.hypot(SIGMAS * error, self.error), 3.0))
            low, high = np.minimum(low, best / spread), np.maximum(high, best * spread)
        return best, low, high

    def limit(self, size: JobSize) -> str:
        """What keeps a job of this size from growing by more workers, and where: `PS cpu limits at 11`."""
        at = Columns.of([size])
        grows = self._growth(size)
        name = max(grows, key=lambda term: grows[term])
        each_s = sum(grows.values())
        step_s = float(self._step_s(at, self._best)[0])
        # Where the straight line of a few workers meets what many of them can reach.
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

    def _samples_per_s(self, at: Columns, fit_: _Coefficients) -> Array:
        free = at.workers * self._around.batch(at.workers) / self._step_s(at, fit_)
        return np.minimum(free, self._ceiling(at))

    def _nearby(self, at: Columns) -> Array:
        """By how much sizes near those that were seen are faster than the model says, as those were."""
        far = (at.logarithms()[:, None, :] - self._seen[None, :, :]) / NEARNESS
        near = self._trusted * np.exp(-0.5 * np.sum(far**2, axis=2))
        return np.asarray(np.exp(near @ self._missed / (near.sum(axis=1) + NEAR_DOUBT)), dtype=np.float64)

    def _step_s(self, at: Columns, fit_: _Coefficients) -> Array:
        return _step_s(self.kind, at, self._around, fit_)

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
        prior = _at_our_level(kind, prior, own)
    seen = (*prior, *own)
    around = Surroundings.of(own or seen)
    best = _fit_once(kind, seen, around)
    left_out = seen[-JACKKNIFED:] if len(seen) > 1 else ()
    without = tuple(_fit_once(kind, [one for one in seen if one is not left], around) for left in left_out)
    terms = len(SERVER_TERMS) if kind is JobKind.PARAMETER_SERVER else len(COMPUTE_TERMS) + len(SYNC_TERMS)
    tilted = tuple(_fit_once(kind, seen, around, tilt) for tilt in range(terms))
    if kind is JobKind.ALLREDUCE and not any(one.size.workers > 1 for one in seen):
        tilted += (_fit_once(kind, seen, around, unseen_sync=UNSEEN_SYNC[1]),)
    known = own or seen
    at = Columns.of([one.size for one in known])
    missed = np.log(_step_s(kind, at, around, best) / np.array([one.step_s for one in known]))
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
        _seen=at.logarithms(),
        _missed=missed,
        _trusted=trusted,
        _server_demand=_demand(seen, lambda one: one.ps_cpu_used, lambda one: max(one.share, 1 / max(one.size.ps, 1))),
        _worker_demand=_demand(seen, lambda one: one.worker_cpu_used, lambda one: 1 / one.size.workers)
        if all(one.size.worker_cpu is not None for one in seen)
        else None,
    )


def _at_our_level(kind: JobKind, prior: Sequence[Observation], own: Sequence[Observation]) -> tuple[Observation, ...]:
    """Like jobs as if they were as fast as we are: the shape of their curve is worth more than its height."""
    around = Surroundings.of(prior)
    theirs = _step_s(kind, Columns.of([one.size for one in own]), around, _fit_once(kind, prior, around))
    ratio = median(one.step_s / float(step_s) for one, step_s in zip(own, theirs, strict=True))
    return tuple(
        replace(
            one,
            step_s=one.step_s * ratio,
            input_s=one.input_s * ratio,
            server_s=one.server_s * ratio,
            sync_s=one.sync_s * ratio,
        )
        for one in prior
    )


def _fit_once(
    kind: JobKind,
    seen: Sequence[Observation],
    around: Surroundings,
    tilt: int | None = None,
    unseen_sync: float = UNSEEN_SYNC[0],
) -> _Coefficients:
    at = Columns.of([one.size for one in seen])
    # Each at the batch and the share that were really seen there.
    features = np.concatenate([_seen_features(kind, one, around) for one in seen])
    if kind is JobKind.PARAMETER_SERVER:
        shares = [server_shares(one, tilt, TILT) for one in seen]
        work = _solve(features, [one.step_s for one in seen], shares, seen)
        return _Coefficients(work, np.zeros(len(SYNC_TERMS)), 1.0)
    shares = [
        compute_shares(one, tilt if tilt is not None and tilt < len(COMPUTE_TERMS) else None, TILT) for one in seen
    ]
    work = _solve(features, [one.work_s for one in seen], shares, seen)
    sync_tilt = tilt - len(COMPUTE_TERMS) if tilt is not None and tilt >= len(COMPUTE_TERMS) else None
    joined = [one for one in seen if one.size.workers > 1]
    if not joined:
        # Nobody has ever synchronised: as if two workers had been seen, at the usual price.
        alone = max(seen, key=lambda one: one.size.workers)
        joined = [replace(alone, size=replace(alone.size, workers=2), sync_s=unseen_sync * alone.step_s)]
        return _Coefficients(work, _fit_sync(joined, 1.0, sync_tilt), 1.0)
    observed = np.array([one.step_s for one in seen])
    fits = [_Coefficients(work, _fit_sync(joined, norm, sync_tilt), norm) for norm in NORMS]

    def misfit(fit_: _Coefficients) -> float:
        return float(np.mean((_step_s(kind, at, around, fit_) / observed - 1) ** 2))

    # The plainest way to join that explains what was seen nearly as well as the best one.
    allowed = min(misfit(fit_) for fit_ in fits) + LEAST_NOISE**2
    return next(fit_ for fit_ in fits if misfit(fit_) <= allowed)


def _seen_features(kind: JobKind, one: Observation, around: Surroundings) -> Array:
    there = replace(around, batch_size=one.batch_size, workers=one.size.workers)
    if kind is JobKind.ALLREDUCE:
        return compute_features(Columns.of([one.size]), there)
    even = 1 / max(one.size.ps, 1)
    unsplit = max(one.share - even, 0.0) / (1 - even) if one.size.ps > 1 else 0.0
    return server_features(Columns.of([one.size]), replace(there, unsplit_share=unsplit))


def _fit_sync(joined: Sequence[Observation], norm: float, tilt: int | None) -> Array:
    """What synchronising costs, if it joins with the rest by this norm."""
    sync_s = [max(one.step_s**norm - one.work_s**norm, 0.0) ** (1 / norm) if one.sync_s else 0.0 for one in joined]
    if not any(sync_s):
        return np.zeros(len(SYNC_TERMS))
    features = sync_features(Columns.of([one.size for one in joined]))
    return _solve(features, sync_s, [sync_shares(tilt, TILT)] * len(joined), joined, [one.step_s for one in joined])


def _solve(
    features: Array,
    seconds: Sequence[float],
    shares: Sequence[Array],
    seen: Sequence[Observation],
    scale: Sequence[float] | None = None,
) -> Array:
    """Non-negative least squares of relative errors, where the guess decides what the observations leave open."""
    from scipy.optimize import nnls  # It takes longer to import than a master to start.

    scales = np.asarray(seconds if scale is None else scale)
    weights = np.array([one.weight for one in seen])
    rows = features / scales[:, None]
    values = np.asarray(seconds) / scales
    trust = np.sqrt(weights)
    # A row a term and observation: that the term's part of this step is what the guess says.
    guess = GUESS_WEIGHT * np.sqrt(weights / weights.sum())
    count, terms = features.shape
    guessed_rows = np.zeros((count * terms, terms))
    guessed_values = np.zeros(count * terms)
    for index, share in enumerate(shares):
        block = slice(index * terms, (index + 1) * terms)
        guessed_rows[block] = guess[index] * np.diag(rows[index])
        guessed_values[block] = guess[index] * share * values[index]
    matrix = np.concatenate([trust[:, None] * rows, guessed_rows])
    # Coefficients differ by many powers of ten (a batch of thousands, a step of microseconds): solve for like ones.
    norms = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    solution, _ = nnls(matrix / norms, np.concatenate([trust * values, guessed_values]))
    return np.asarray(solution / norms, dtype=np.float64)


def _step_s(kind: JobKind, at: Columns, around: Surroundings, fit_: _Coefficients) -> Array:
    if kind is JobKind.PARAMETER_SERVER:
        return np.asarray(server_features(at, around) @ fit_.work, dtype=np.float64)
    work = compute_features(at, around) @ fit_.work
    sync = sync_features(at) @ fit_.sync
    return np.asarray((work**fit_.norm + sync**fit_.norm) ** (1 / fit_.norm), dtype=np.float64)


def _demand(
    seen: Sequence[Observation],
    used: Callable[[Observation], float | None],
    share: Callable[[Observation], float],
) -> float | None:
    """Core-seconds per sample at a node that had everything to do, by what nodes with a share of it used."""
    demands = [cores / (one.samples_per_s * share(one)) for one in seen if (cores := used(one))]
    return median(demands) if demands else None


def _named(kind: JobKind, fit_: _Coefficients) -> tuple[tuple[str, float], ...]:
    if kind is JobKind.PARAMETER_SERVER:
        return tuple((f"a{index}", float(value)) for index, value in enumerate(fit_.work))
    pairs = chain(zip(COMPUTE_TERMS, fit_.work, strict=True), zip(SYNC_TERMS, fit_.sync, strict=True))
    return (*((name, float(value)) for name, value in pairs), ("norm", fit_.norm))
