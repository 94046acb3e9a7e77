"""Where the memory of a parameter server is going, and what it should be given.

A table grows with the samples that touch new rows: in a straight line, or ever more slowly, like a power of them. Both
are fitted; where the readings do not tell which, the larger counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastane.model.errors import InvalidInput
from elastane.model.quantity import Memory
from elastane.model.sizing import MemoryForecast, MemoryReading, check_memory

Array = npt.NDArray[np.float64]

MARGIN = 1.2
"""Memory is never below so many times the observed peak."""
END_MARGIN = 1.1
"""What is wanted is so many times the upper bound at the job's end."""
LEAST_READINGS = 3
"""With fewer, nothing is known about growth."""
POWERS = tuple(round(0.1 * step, 1) for step in range(1, 20))
CLEARLY = 3.0
"""A curve whose error is so many times that of the other is not believed."""
SIGMAS = 2.0


@dataclass(frozen=True)
class _Curve:
    """`start + slope * samples**power`, and how far the readings are from it."""

    start: float
    slope: float
    power: float
    sigma: float

    def upper(self, samples: float) -> float:
        return self.start + self.slope * float(samples**self.power) + SIGMAS * self.sigma


def forecast(readings: Sequence[MemoryReading], samples_at_end: float, limit: Memory | None = None) -> MemoryForecast:
    """Upper bound at the job's end, from how the memory grew with the samples (oldest first).

    Raises InvalidInput for readings that cannot be true.
    """
    if not readings:
        raise InvalidInput("readings: none, so nothing can be said")
    for reading in readings:
        check_memory(reading)
    peak = max(reading.bytes for reading in readings)
    now = max(reading.samples for reading in readings)
    upper = _upper_bound(readings, peak)
    end = max(samples_at_end, now)
    at_end = upper(end)
    reached = None if limit is None or at_end < limit.bytes else _first(upper, limit.bytes, now, end)
    wanted = max(MARGIN * peak, END_MARGIN * at_end if at_end > peak else 0.0)
    return MemoryForecast(math.ceil(at_end), reached, math.ceil(wanted))


def after_oom(limit: Memory | None, peak_bytes: int) -> Memory:
    """What a role gets whose node was killed for memory: twice what it had, or twice its peak without a limit."""
    had = peak_bytes if limit is None else max(limit.bytes, peak_bytes)
    return Memory(2 * max(had, 1))


def least(wanted: Memory, peak_bytes: int) -> Memory:
    """The memory that is wanted, but never below 1.2 times the observed peak."""
    return max(wanted, Memory(math.ceil(MARGIN * peak_bytes)))


def _upper_bound(readings: Sequence[MemoryReading], peak: int) -> Callable[[float], float]:
    samples = np.array([reading.samples for reading in readings], dtype=np.float64)
    held = np.array([reading.bytes for reading in readings], dtype=np.float64)
    if len(set(samples)) < LEAST_READINGS:
        return lambda _: float(peak)
    # The line is fitted to the newer half: what was true of the first rows says little about the last.
    newer = slice(len(samples) // 2, None) if len(samples) >= 2 * LEAST_READINGS else slice(None)
    line = _curve(samples[newer], held[newer], 1.0)
    bent = min((_curve(samples, held, power) for power in POWERS), key=lambda curve: curve.sigma)
    # Rounding and allocators make steps of a few parts in ten thousand that say nothing about the curve.
    floor = 1e-4 * peak
    believed = [
        curve
        for curve, other in ((line, bent), (bent, line))
        if max(curve.sigma, floor) <= CLEARLY * max(other.sigma, floor)
    ]
    return lambda at: max(float(peak), *(curve.upper(at) for curve in believed))


def _curve(samples: Array, held: Array, power: float) -> _Curve:
    scale = max(float(samples.max()), 1.0)
    bent = (samples / scale) ** power
    spread = float(np.var(bent))
    slope = max(float(np.mean((bent - bent.mean()) * (held - held.mean()))) / spread, 0.0) if spread > 0 else 0.0
    start = float(held.mean() - slope * bent.mean())
    freedom = max(len(samples) - 2, 1)
    sigma = math.sqrt(float(np.sum((held - start - slope * bent) ** 2)) / freedom)
    return _Curve(start, slope / scale**power, power, sigma)


def _first(upper: Callable[[float], float], limit: float, low: float, high: float) -> float:
    """The least number of samples at which the bound reaches a limit; it does so by the high end."""
    if upper(low) >= limit:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if upper(middle) >= limit else (middle, high)
    return high
