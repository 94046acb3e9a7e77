"""Made-up clicks in the shape of Criteo's: 13 numbers and 26 categories with Zipf-distributed ids, and a real signal.

It needs NumPy alone. The same size and seed give the same samples everywhere; the taste behind them is one for all
seeds, so that what is learned from one seed's samples can be tested on another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUMBERS = 13
FIELDS = 26
FEWEST_IDS, MOST_IDS = 20, 700_000
CARDINALITIES = np.geomspace(FEWEST_IDS, MOST_IDS, FIELDS).astype(np.int64)
"""How many ids each field has, as different as in real data."""
OFFSETS = np.concatenate([[0], np.cumsum(CARDINALITIES)[:-1]]).astype(np.int64)
"""Added to a field's ids they make all fields one table of `ROWS` rows."""
ROWS = int(CARDINALITIES.sum())

_SKEW = 1.2
_FACTORS = 4
_CHUNK = 65_536
_OWN_WEIGHT, _PAIR_WEIGHT, _NUMBER_WEIGHT, _BIAS = 0.4, 0.02, 0.4, -0.6


@dataclass(frozen=True)
class Clicks:
    """Samples in columns; `clicks[i]` is one of them."""

    ids: NDArray[np.int64]
    """(samples, FIELDS), each below its field's cardinality plus its offset: ids of the one table of all fields."""
    numbers: NDArray[np.float32]
    clicked: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.clicked)

    def __getitem__(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.float32], np.float32]:
        return self.ids[index], self.numbers[index], self.clicked[index]

    def __getitems__(
        self, indices: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Many samples at once, in columns."""
        return self.ids[indices], self.numbers[indices], self.clicked[indices]


def make_clicks(samples: int, seed: int) -> Clicks:
    """The clicks of a seed."""
    random = np.random.default_rng([2014, seed])
    ids = np.empty((samples, FIELDS), np.int64)
    for field, cardinality in enumerate(CARDINALITIES):
        ids[:, field] = _zipf(random.random(samples), int(cardinality)) + OFFSETS[field]
    numbers = random.standard_normal((samples, NUMBERS)).astype(np.float32)
    chance = np.empty(samples)
    for start in range(0, samples, _CHUNK):
        part = slice(start, start + _CHUNK)
        chance[part] = _chance(ids[part], numbers[part])
    return Clicks(ids, numbers, (random.random(samples) < chance).astype(np.float32))


def auc(scores: NDArray[np.floating], clicked: NDArray[np.float32]) -> float:
    """The area under the ROC curve, exactly: equal scores are half a pair."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives = float(clicked.sum())
    negatives = len(clicked) - positives
    return float((ranks[clicked == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _zipf(uniform: NDArray[np.float64], cardinality: int) -> NDArray[np.int64]:
    """The inverse of the distribution function of x ** -skew between 1 and the cardinality."""
    power = 1 - _SKEW
    drawn: NDArray[np.float64] = (1 + uniform * ((cardinality + 1) ** power - 1)) ** (1 / power)
    ids: NDArray[np.int64] = np.minimum(drawn.astype(np.int64), cardinality) - 1
    return ids


def _chance(ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each id has a weight and a few factors of its own, and every two ids of a sample agree or not."""
    own = _normal(ids, 0).sum(axis=1)
    both = np.zeros(len(ids))
    for factor in range(_FACTORS):
        values = _normal(ids, 1 + factor)
        both += (values.sum(axis=1) ** 2 - (values**2).sum(axis=1)) / 2
    taste = np.linspace(-1, 1, NUMBERS)
    logits = _OWN_WEIGHT * own + _PAIR_WEIGHT * both + _NUMBER_WEIGHT * (numbers @ taste) + _BIAS
    chance: NDArray[np.float64] = 1 / (1 + np.exp(-logits))
    return chance


def _normal(ids: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """About normal numbers (a sum of four uniform ones), a function of the id and the stream alone."""
    mixed = ids.astype(np.uint64) * np.uint64(8) + np.uint64(stream)
    mixed = (mixed + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    quarters = mixed.view(np.uint16).reshape(*ids.shape, 4)
    normal: NDArray[np.float64] = (quarters.sum(axis=-1) / 65_536 - 2) * np.sqrt(3)
    return normal
