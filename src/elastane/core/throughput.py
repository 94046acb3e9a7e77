"""How fast a job would be at another size: a model of the seconds per step, fitted to what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastane.model.sizing import NO_HISTORY, History, JobKind, JobSize, Prediction, Window


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

    def predict(self, size: JobSize) -> Prediction:
        """Samples per second at a size."""
        raise NotImplementedError

    def limit(self, size: JobSize) -> str:
        """What keeps the job from being faster at a size and where that ends its growth: `PS cpu limits at 11`."""
        raise NotImplementedError


def fit(kind: JobKind, windows: Sequence[Window], history: History = NO_HISTORY) -> ThroughputModel:
    """Fit the model of a kind to a job's own windows, and with less weight to those of like jobs.

    Raises InvalidInput if there is nothing to fit it to.
    """
    raise NotImplementedError
