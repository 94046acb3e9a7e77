"""Sizing: what was observed of a job at one size, what was changed, what a size would give, and what to do next."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields

from elastane.model.errors import InvalidInput

MOST_WORKERS = 10_000
MOST_SERVERS = 1000
MOST_CPU = 4096.0
MOST_STEP_S = 86_400.0
MOST_SAMPLES_PER_S = 1e12
MOST_BATCH = 1e9
CLOCK_SLACK_S = 1.0
"""A figure may be so much newer than now: two clocks of one job are read at two moments."""


class JobKind(enum.StrEnum):
    """How the workers' updates meet, as far as sizes are concerned.

    A job whose workers only share data is sized like one with all-reduce whose synchronising takes no time.
    """

    PARAMETER_SERVER = "parameter_server"
    ALLREDUCE = "allreduce"


@dataclass(frozen=True, order=True)
class JobSize:
    """A size that can be chosen: how many nodes of each role, and the cores of each; None where nobody states them."""

    workers: int
    ps: int = 0
    worker_cpu: float | None = None
    ps_cpu: float | None = None

    @property
    def cpu(self) -> float:
        """The cores of all nodes together; a node whose cores nobody states counts as one."""
        worker = 1.0 if self.worker_cpu is None else self.worker_cpu
        server = 1.0 if self.ps_cpu is None else self.ps_cpu
        return self.workers * worker + self.ps * server

    def __str__(self) -> str:
        parts = [f"{self.workers} worker{'' if self.workers == 1 else 's'}"]
        if self.worker_cpu is not None:
            parts[-1] += f" of {self.worker_cpu:g} cores"
        if self.ps:
            parts.append(f"{self.ps} PS" + ("" if self.ps_cpu is None else f" of {self.ps_cpu:g} cores"))
        return ", ".join(parts)


@dataclass(frozen=True)
class Reading:
    """What was measured of a job over about a second: the raw material of windows."""

    at_s: float
    """Seconds since the job began."""
    size: JobSize
    batch_size: float
    """Samples that a worker has in a step."""
    samples_per_s: float
    """Of the whole job."""
    step_s: float
    """Of the median worker; the parts below are parts of it, 0.0 where there is none."""
    input_wait_s: float = 0.0
    pull_s: float = 0.0
    push_s: float = 0.0
    sync_s: float = 0.0
    hottest_share: float = 0.0
    """Share of the whole load that the hottest PS has: 1/p when balanced, 0.0 without PS."""
    worker_cpu_used: float | None = None
    """Cores that a worker really uses."""
    ps_cpu_used: float | None = None
    """Cores that the hottest PS really uses."""
    fixed_global_batch: bool = False
    """Whether the job splits one batch over its workers, so that each has less in a step when there are more."""


@dataclass(frozen=True)
class Window(Reading):
    """Medians of one stable stretch of a job at one size; `at_s` is when it ended."""

    duration_s: float = 0.0

    @property
    def seconds_per_step(self) -> float:
        """Seconds in which every worker has done a step on the average, pauses between steps included."""
        return self.size.workers * self.batch_size / self.samples_per_s


@dataclass(frozen=True)
class Budget:
    """The sizes that a job may have, by its own bounds and by what the cluster has left."""

    max_workers: int
    min_workers: int = 1
    max_ps: int = 0
    min_ps: int = 0
    cpu: float | None = None
    """Cores of all nodes together; None where nobody counts them."""
    worker_cpus: tuple[float, ...] = ()
    """What a worker's cores may be changed to; nothing where they stay as they are."""
    ps_cpus: tuple[float, ...] = ()

    def allows(self, size: JobSize) -> bool:
        return (
            self.min_workers <= size.workers <= self.max_workers
            and self.min_ps <= size.ps <= self.max_ps
            and (self.cpu is None or size.cpu <= self.cpu)
        )


@dataclass(frozen=True)
class Prediction:
    """Samples per second that a size is expected to give, and how far the observations leave that open.

    The bounds show what is not known about the job; they are not those of a certain probability.
    """

    samples_per_s: float
    low: float
    """What is decided by."""
    high: float


@dataclass(frozen=True)
class Change:
    """A change that was made, what it was to give, and what it gave."""

    at_s: float
    """When the job was at its new size."""
    before: JobSize
    after: JobSize
    predicted: Prediction
    cost_s: float
    """Seconds of training that the change itself cost, as measured."""
    realised_samples_per_s: float | None = None
    """None until there are windows of the new size."""
    rolled_back: bool = False
    """Whether the job was taken back from it, because it did not give what it was to give."""
    reason: str = ""


@dataclass(frozen=True)
class PriorWindow:
    """A window of another job that is like this one, and how far it is to be believed: 1.0 is like one of our own."""

    window: Window
    weight: float


@dataclass(frozen=True)
class History:
    """What is known from like jobs, newest first."""

    windows: tuple[PriorWindow, ...] = ()
    last_size: JobSize | None = None
    """The size at which the job most like this one ended; None where none ended well."""


NO_HISTORY = History()


@dataclass(frozen=True)
class Decision:
    """What to do next: the size to go to, and the one line that says why."""

    size: JobSize
    reason: str
    prediction: Prediction
    before: JobSize | None = None
    """The present size; None where the job has not begun."""
    present_samples_per_s: float | None = None
    pays_back_s: float | None = None
    """Seconds after which the change has earned what it cost; None for one that is not made for speed."""
    observations: int = 0
    """How many sizes were observed, by this job or by like ones."""
    is_rollback: bool = False


@dataclass(frozen=True)
class NoDecision:
    """The job stays as it is, and the one line that says why."""

    reason: str


@dataclass(frozen=True)
class MemoryReading:
    """The memory of a parameter server when the job had done so many samples."""

    samples: float
    bytes: int


@dataclass(frozen=True)
class MemoryForecast:
    """Where a parameter server's memory is going, on the safe side."""

    bytes_at_end: int
    """Upper bound when the job's last sample is done."""
    limit_at_samples: float | None
    """How many samples will be done, at the least, when the memory reaches its limit; None if it will not."""
    wanted_bytes: int
    """What the server should be given: never below 1.2 times what was observed."""


def check_reading(reading: Reading, now_s: float) -> None:
    """Raise InvalidInput with the field and its value if a reading or a window cannot be true."""
    check_size(reading.size)
    for name, least, most in _BOUNDS:
        value = getattr(reading, name, None)
        if value is not None:
            _check(name, value, least, most)
    for name, most in (("hottest_share", 1.0), ("at_s", now_s + CLOCK_SLACK_S)):
        value = getattr(reading, name)
        _check(name, value, 0.0, math.inf)
        if value > most:
            what = f"it is from the future, now is {now_s:g}" if name == "at_s" else f"it is above {most:g}"
            raise InvalidInput(f"{name}: {value:g} cannot be true, {what}")


def check_window(window: Window, now_s: float) -> None:
    """Raise InvalidInput with the field and its value if a window cannot be true."""
    check_reading(window, now_s)


def check_size(size: JobSize) -> None:
    """Raise InvalidInput with the field and its value if there cannot be such a size."""
    for name, least, most in (("workers", 1, MOST_WORKERS), ("ps", 0, MOST_SERVERS)):
        value = getattr(size, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInput(f"size.{name}: {value} cannot be true, allowed are {least} to {most}")
    for name in ("worker_cpu", "ps_cpu"):
        value = getattr(size, name)
        if value is not None:
            _check(f"size.{name}", value, 0.0, MOST_CPU, above=True)


def check_memory(reading: MemoryReading) -> None:
    """Raise InvalidInput with the field and its value if a memory reading cannot be true."""
    for field in fields(reading):
        _check(field.name, getattr(reading, field.name), 0.0, 2.0**60)


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("batch_size", 1e-9, MOST_BATCH),
    ("samples_per_s", 1e-9, MOST_SAMPLES_PER_S),
    ("step_s", 1e-9, MOST_STEP_S),
    ("input_wait_s", 0.0, MOST_STEP_S),
    ("pull_s", 0.0, MOST_STEP_S),
    ("push_s", 0.0, MOST_STEP_S),
    ("sync_s", 0.0, MOST_STEP_S),
    ("worker_cpu_used", 0.0, MOST_CPU),
    ("ps_cpu_used", 0.0, MOST_CPU),
    ("duration_s", 0.0, math.inf),
)


def _check(name: str, value: object, least: float, most: float, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name}: {value} is not a number that can be used")
    if value < least or (above and value <= least) or value > most:
        raise InvalidInput(f"{name}: {value:g} cannot be true, allowed are {least:g} to {most:g}")
