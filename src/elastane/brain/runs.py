"""Runs, as the database knows them."""

from __future__ import annotations

from dataclasses import dataclass

from elastane.model.brain import ReportedWindow, RunIdentity


@dataclass(frozen=True)
class KnownRun:
    """A run that is registered."""

    id: int
    identity: RunIdentity
    started_at: float


@dataclass(frozen=True)
class PastRun:
    """Another run, as far as something can be learned from it."""

    run: str
    started_at: float
    exit_reason: str | None
    windows: tuple[ReportedWindow, ...]
    """Oldest first."""
    relative_errors: tuple[float, ...] = ()
    """How far each prediction for it was from what came."""
