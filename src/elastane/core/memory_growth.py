"""Where the memory of a parameter server is going, and what it should be given."""

from __future__ import annotations

from collections.abc import Sequence

from elastane.model.quantity import Memory
from elastane.model.sizing import MemoryForecast, MemoryReading

MARGIN = 1.2
"""Memory is never below so many times the observed peak."""


def forecast(readings: Sequence[MemoryReading], samples_at_end: float, limit: Memory | None = None) -> MemoryForecast:
    """Upper bound at the job's end, from how the memory grew with the samples (oldest first)."""
    raise NotImplementedError


def after_oom(limit: Memory | None, peak_bytes: int) -> Memory:
    """What a role gets whose node was killed for memory: twice what it had, or twice its peak without a limit."""
    raise NotImplementedError


def least(wanted: Memory, peak_bytes: int) -> Memory:
    """The memory that is wanted, but never below 1.2 times the observed peak."""
    raise NotImplementedError
