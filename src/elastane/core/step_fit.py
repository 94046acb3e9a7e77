"""The fit of the model's terms to what was observed: non-negative least squares of relative errors.

What the observations do not tell apart is decided by a guess: what each part of a step usually comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from elastane.core.step_terms import (
    COMPUTE_TERMS,
    SYNC_TERMS,
    Array,
    Columns,
    Observation,
    Surroundings,
    compute_features,
    compute_shares,
    server_features,
    server_shares,
    sync_features,
    sync_shares,
)
from elastane.model.sizing import JobKind

TILT = 0.6
"""How far the guess is tilted to one term, to see what follows."""
GUESS_WEIGHT = 0.1
"""The guess, beside an observation: about the noise of a window over the doubt about a share."""
NORMS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
"""How compute and synchronise time may join: 1 is one after the other, many is both at once."""
UNSEEN_SYNC = (0.1, 0.4)
"""What synchronising two workers takes of a step where only one was ever seen: probably, and at the worst."""
JOIN_NOISE = 0.01
"""Ways to join whose errors differ by less than this are equally good."""


@dataclass(frozen=True)
class Coefficients:
    """One fit: what the terms cost, and how the two sums of all-reduce join."""

    work: Array
    sync: Array
    norm: float


def fit_once(
    kind: JobKind,
    seen: Sequence[Observation],
    features: Array,
    around: Surroundings,
    tilt: int | None = None,
    unseen_sync: float = UNSEEN_SYNC[0],
    strength: float = TILT,
) -> Coefficients:
    """The coefficients that explain the observations best, given `features_seen` of them.

    The guess is tilted to the term of that number, of all that the kind has.
    """
    at = Columns.of([one.size for one in seen])
    if kind is JobKind.PARAMETER_SERVER:
        shares = [server_shares(one, tilt, strength) for one in seen]
        work = _solve(features, [one.step_s for one in seen], shares, seen)
        return Coefficients(work, np.zeros(len(SYNC_TERMS)), 1.0)
    shares = [
        compute_shares(one, tilt if tilt is not None and tilt < len(COMPUTE_TERMS) else None, strength) for one in seen
    ]
    work = _solve(features, [one.work_s for one in seen], shares, seen)
    sync_tilt = tilt - len(COMPUTE_TERMS) if tilt is not None and tilt >= len(COMPUTE_TERMS) else None
    joined = [one for one in seen if one.size.workers > 1]
    if not joined:
        # Nobody has ever synchronised: as if two workers had been seen, at the usual price.
        alone = max(seen, key=lambda one: one.size.workers)
        joined = [replace(alone, size=replace(alone.size, workers=2), sync_s=unseen_sync * alone.step_s)]
        return Coefficients(work, _fit_sync(joined, 1.0, sync_tilt), 1.0)
    observed = np.array([one.step_s for one in seen])
    fits = [Coefficients(work, _fit_sync(joined, norm, sync_tilt), norm) for norm in NORMS]

    def misfit(fitted: Coefficients) -> float:
        return float(np.mean((step_s(kind, at, around, fitted) / observed - 1) ** 2))

    # The plainest way to join that explains what was seen nearly as well as the best one.
    allowed = min(misfit(fitted) for fitted in fits) + JOIN_NOISE**2
    return next(fitted for fitted in fits if misfit(fitted) <= allowed)


def features_seen(kind: JobKind, seen: Sequence[Observation], around: Surroundings) -> Array:
    """The features of each observation, at the batch and the share that were really seen there."""
    return np.concatenate([_features_of(kind, one, around) for one in seen])


def _features_of(kind: JobKind, one: Observation, around: Surroundings) -> Array:
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
    terms = features.shape[1]
    guessed_rows = ((guess[:, None] * rows)[:, :, None] * np.eye(terms)).reshape(-1, terms)
    guessed_values = ((guess * values)[:, None] * np.stack(shares)).reshape(-1)
    matrix = np.concatenate([trust[:, None] * rows, guessed_rows])
    # Coefficients differ by many powers of ten (a batch of thousands, a step of microseconds): solve for like ones.
    norms = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    solution, _ = nnls(matrix / norms, np.concatenate([trust * values, guessed_values]))
    return np.asarray(solution / norms, dtype=np.float64)


def step_s(kind: JobKind, at: Columns, around: Surroundings, fitted: Coefficients) -> Array:
    """The seconds of a step at each size."""
    if kind is JobKind.PARAMETER_SERVER:
        return np.asarray(server_features(at, around) @ fitted.work, dtype=np.float64)
    work = compute_features(at, around) @ fitted.work
    sync = sync_features(at) @ fitted.sync
    return np.asarray((work**fitted.norm + sync**fitted.norm) ** (1 / fitted.norm), dtype=np.float64)


def at_our_level(kind: JobKind, prior: Sequence[Observation], own: Sequence[Observation]) -> tuple[Observation, ...]:
    """Like jobs as if they were as fast as we are: the shape of their curve is worth more than its height."""
    around = Surroundings.of(prior)
    fitted = fit_once(kind, prior, features_seen(kind, prior, around), around)
    theirs = step_s(kind, Columns.of([one.size for one in own]), around, fitted)
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
