"""Metrics that are computed in pieces: each shard has a state, states are merged, and the result is read at the end.

A state is plain JSON, so that it can travel. Merging is exact: counts are whole numbers, and sums of floats are always
merged in the order of the data. So the result does not depend on who evaluated which shard.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from elastane.model.errors import InvalidInput

AUC_BINS = 4096

Values = npt.ArrayLike


@runtime_checkable
class Metric(Protocol):
    """What a metric must be. An object without samples is copied for each shard, and for the merging."""

    def update(self, *values: Any) -> None:
        """Count one batch: what `predict` returned under this metric's name, as NumPy arrays."""

    def state(self) -> Any:
        """All that was counted, as plain JSON."""

    def merge(self, state: Any) -> None:
        """Add what another one counted."""

    def result(self) -> float:
        """The value for all that was counted."""


@runtime_checkable
class Bounded(Protocol):
    """A metric that is not exact says by how much it may be off; that is shown beside it, as NAME_error."""

    def error(self) -> float:
        """The most that `result` differs from the exact value."""


class Mean:
    """The mean over samples. `update(values)` takes one value a sample; `update(value, samples)` a batch's mean."""

    def __init__(self) -> None:
        self._total = 0.0
        self._samples = 0.0

    def update(self, values: Values, weights: Values | None = None) -> None:
        """Raises InvalidInput for one number without its weight: a short last batch would count too much."""
        array = np.asarray(values, dtype=np.float64)
        if weights is None and not array.ndim:
            raise InvalidInput("Mean: one number for a batch; give each sample's value, or the mean and the samples")
        counts = np.broadcast_to(np.asarray(1.0 if weights is None else weights, dtype=np.float64), array.shape)
        self._total += float((array * counts).sum())
        self._samples += float(counts.sum())

    def state(self) -> list[float]:
        return [self._total, self._samples]

    def merge(self, state: list[float]) -> None:
        total, samples = state
        self._total += total
        self._samples += samples

    def result(self) -> float:
        return self._total / self._samples if self._samples else math.nan


class Accuracy:
    """The share of samples whose predicted class is the true one: `update(predicted, labels)`."""

    def __init__(self) -> None:
        self._right = 0
        self._samples = 0

    def update(self, predicted: Values, labels: Values) -> None:
        """Raises InvalidInput unless there is one class a sample on both sides."""
        guesses, truth = np.asarray(predicted), np.asarray(labels)
        if guesses.shape != truth.shape:
            raise InvalidInput(f"Accuracy: predictions of shape {guesses.shape} for labels of shape {truth.shape}")
        self._right += int((guesses == truth).sum())
        self._samples += truth.size

    def state(self) -> list[int]:
        return [self._right, self._samples]

    def merge(self, state: list[int]) -> None:
        right, samples = state
        self._right += right
        self._samples += samples

    def result(self) -> float:
        return self._right / self._samples if self._samples else math.nan


class AUC:
    """The area under the ROC curve, from histograms of the scores: `update(scores, labels)`, labels being 0 or 1.

    Scores in one bin count as equal, which is half a pair for each positive and negative. So the result is off by at
    most half the share of such pairs among all pairs, which is known: `error()`. For scores that are spread evenly it
    is 1 / (2 bins). A score lies in [low, high]: for logits give their range, or their sigmoid.
    """

    def __init__(self, bins: int = AUC_BINS, low: float = 0.0, high: float = 1.0) -> None:
        if not 2 <= bins <= 2**20:
            raise InvalidInput(f"AUC: bins {bins} is not from 2 to {2**20}")
        if not low < high:
            raise InvalidInput(f"AUC: low {low} is not below high {high}")
        self._bins, self._low, self._high = bins, low, high
        # Row 0 counts the negatives, row 1 the positives.
        self._counts = np.zeros((2, bins), dtype=np.int64)

    def update(self, scores: Values, labels: Values) -> None:
        """Raises InvalidInput for scores out of range and for labels that are neither 0 nor 1."""
        values = np.asarray(scores, dtype=np.float64).reshape(-1)
        truth = np.asarray(labels).reshape(-1)
        if values.shape != truth.shape:
            raise InvalidInput(f"AUC: {values.size} scores for {truth.size} labels")
        # Negated, so that NaN is out of range too.
        if not ((values >= self._low) & (values <= self._high)).all():
            raise InvalidInput(f"AUC: a score is not from {self._low:g} to {self._high:g}; give its low and high")
        if not np.isin(truth, (0, 1)).all():
            raise InvalidInput("AUC: a label is neither 0 nor 1")
        places = ((values - self._low) / (self._high - self._low) * self._bins).astype(np.int64)
        places = np.minimum(places, self._bins - 1)
        for label in (0, 1):
            self._counts[label] += np.bincount(places[truth == label], minlength=self._bins)

    def state(self) -> dict[str, list[int]]:
        used = np.flatnonzero(self._counts.sum(axis=0))
        return {
            "bins": used.tolist(),
            "negatives": self._counts[0, used].tolist(),
            "positives": self._counts[1, used].tolist(),
        }

    def merge(self, state: dict[str, list[int]]) -> None:
        used = np.asarray(state["bins"], dtype=np.int64)
        self._counts[0, used] += np.asarray(state["negatives"], dtype=np.int64)
        self._counts[1, used] += np.asarray(state["positives"], dtype=np.int64)

    def result(self) -> float:
        """NaN without a positive or without a negative."""
        if not self._pairs:
            return math.nan
        negatives, positives = self._counts.astype(np.float64)
        below = np.cumsum(negatives) - negatives
        return float(((below + negatives / 2) * positives).sum() / self._pairs)

    def error(self) -> float:
        if not self._pairs:
            return math.nan
        negatives, positives = self._counts.astype(np.float64)
        return float((negatives * positives).sum() / (2 * self._pairs))

    @property
    def _pairs(self) -> float:
        negatives, positives = self._counts.sum(axis=1)
        return float(negatives) * float(positives)
