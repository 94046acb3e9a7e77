"""What a job tells the Brain, and what the Brain answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from elastane.model.quantity import Memory
from elastane.model.sizing import NO_HISTORY, Decision, History, JobKind, JobSize, NoDecision, Window


@dataclass(frozen=True)
class RunIdentity:
    """One life of one job, from its start to its end, and what makes another run like it."""

    run: str
    """Unlike any other run's, the same for every master that this run has."""
    job: str
    user: str
    kind: JobKind
    model: str = ""
    """What is trained, such as the script's name; empty if nobody knows."""
    code: str = ""
    """A fingerprint of the code that runs; empty if nobody knows."""
    data: str = ""
    """A fingerprint of the data that it reads; likewise."""
    config_json: str = "{}"
    """The job's document."""


@dataclass(frozen=True)
class ReportedWindow:
    """A window, and what else is kept of that stretch."""

    window: Window
    worker_memory: Memory | None = None
    """Of the largest worker."""
    ps_memory: Memory | None = None
    """Of the largest parameter server."""
    step: int | None = None
    """The last one of the stretch."""


class Likeness(enum.StrEnum):
    """How a run is like another, the closest first."""

    CODE_AND_DATA = "same code and data"
    USER_AND_MODEL = "same user and model"
    KIND = "same kind"


@dataclass(frozen=True)
class LikeRuns:
    """The runs that a history is made of."""

    how: Likeness
    runs: int
    worker_memory: Memory | None = None
    """The most that a worker of one of them had."""
    ps_memory: Memory | None = None
    last_size: JobSize | None = None
    """Where they ended; None if none ended well."""


@dataclass(frozen=True)
class Advice:
    """The Brain's answer to a job that asks what to do next."""

    decision: Decision | NoDecision
    plan: int = 0
    """The number by which an outcome names it; 0 if nothing is to be done."""
    like: LikeRuns | None = None
    """None if no run is like this one."""
    history: History = NO_HISTORY
    """The windows of like runs, if they were asked for."""
