"""What the seconds of a step are made of: the terms of the model, and what each part of an observed step says of them.

With parameter servers, `T = a0 + a1*b/cpu_w + a2*w*s/cpu_p + a3*w*s + a4*w + a5*p`: b samples in a worker's step, w
workers, p servers, s the share of the load that the hottest has. With all-reduce, compute and synchronise time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from elastane.model.sizing import History, JobSize, Window

Array = npt.NDArray[np.float64]

RECENT_WINDOWS = 5
"""Of the windows at one size the newest count: a job and its machines change in the course of hours."""
PRIOR_WEIGHT = 0.2
"""An observation of a like job, beside one of our own."""
STALE_WEIGHT = 0.005
"""One of our own from before the job's speed changed by itself: a slow node came or went, a row became hot."""
SHIFT = 1.25
"""A speed that is so many times another one, at the same size, is of other times."""
SHIFT_WINDOWS = 3
"""By the median of so many windows before and after."""

SERVER_TERMS = ("fixed", "worker cpu", "PS cpu", "PS", "each worker", "each PS")
COMPUTE_TERMS = ("fixed", "worker cpu", "each worker")
SYNC_TERMS = ("sync volume", "sync rounds")

# Where the seconds of each part of a step probably come from, until the observations tell them apart. Only terms that
# stand here with more than nothing can explain that part.
_SERVER_SPLITS = {
    "compute": (0.40, 0.50, 0.0, 0.0, 0.10, 0.0),
    "input": (0.30, 0.40, 0.0, 0.0, 0.30, 0.0),
    "server": (0.15, 0.0, 0.35, 0.25, 0.20, 0.05),
    "whole": (0.25, 0.30, 0.15, 0.15, 0.10, 0.05),
}
_COMPUTE_SPLITS = {"compute": (0.45, 0.45, 0.10), "input": (0.30, 0.40, 0.30)}
_SYNC_SPLIT = (0.6, 0.4)


@dataclass(frozen=True)
class Observation:
    """All that was seen at one size, as one: seconds per step and its parts."""

    size: JobSize
    batch_size: float
    fixed_global_batch: bool
    step_s: float
    input_s: float
    server_s: float
    sync_s: float
    share: float
    samples_per_s: float
    worker_cpu_used: float | None
    ps_cpu_used: float | None
    weight: float = 1.0

    @property
    def work_s(self) -> float:
        """What is left of the step without synchronising."""
        return max(self.step_s - self.sync_s, 0.05 * self.step_s)


def observe(windows: Sequence[Window]) -> tuple[Observation, ...]:
    """One observation for each size, in the order in which they were last seen.

    What was seen before the speed last changed by itself is of other times, and is hardly believed any more.
    """
    by_size: dict[JobSize, list[Window]] = {}
    for window in windows:
        held = by_size.pop(window.size, [])
        held.append(window)
        by_size[window.size] = held  # Last, because it was seen last.
    if not by_size:
        return ()
    shift_s = _last_shift_s(next(reversed(by_size.values())))
    return tuple(
        replace(_observation(held[-RECENT_WINDOWS:]), weight=1.0 if held[-1].at_s >= shift_s else STALE_WEIGHT)
        for held in by_size.values()
    )


def _last_shift_s(windows: Sequence[Window]) -> float:
    """When the speed at one size last became another one for good, by the windows there."""
    speeds = [window.samples_per_s for window in windows]
    for place in range(len(speeds) - SHIFT_WINDOWS, SHIFT_WINDOWS - 1, -1):
        before = median(speeds[place - SHIFT_WINDOWS : place])
        after = median(speeds[place : place + SHIFT_WINDOWS])
        if max(before, after) > SHIFT * min(before, after):
            return windows[place].at_s
    return -1.0


def observe_history(history: History) -> tuple[Observation, ...]:
    """The same of like jobs; windows of one size that are believed differently stay apart."""
    by_weight: dict[float, list[Window]] = {}
    for prior in history.windows:
        by_weight.setdefault(prior.weight, []).append(prior.window)
    return tuple(
        replace(observed, weight=PRIOR_WEIGHT * weight)
        for weight, windows in by_weight.items()
        if weight > 0
        for observed in observe(windows)
    )


def _observation(windows: Sequence[Window]) -> Observation:
    newest = windows[-1]
    step_s = median(window.seconds_per_step for window in windows)

    def part(*names: str) -> float:
        # Parts are told as shares of a worker's step, and its steps have pauses between them.
        shares = [sum(float(getattr(window, name)) for name in names) / window.step_s for window in windows]
        return min(median(shares), 1.0) * step_s

    def used(name: str) -> float | None:
        known = [value for window in windows if (value := getattr(window, name)) is not None]
        return median(known) if known else None

    return Observation(
        size=newest.size,
        batch_size=newest.batch_size,
        fixed_global_batch=newest.fixed_global_batch,
        step_s=step_s,
        input_s=part("input_wait_s"),
        server_s=part("pull_s", "push_s"),
        sync_s=part("sync_s"),
        share=median(window.hottest_share for window in windows),
        samples_per_s=median(window.samples_per_s for window in windows),
        worker_cpu_used=used("worker_cpu_used"),
        ps_cpu_used=used("ps_cpu_used"),
    )


@dataclass(frozen=True)
class Surroundings:
    """What a job brings along to every size: its batch, and the load that cannot be split over servers."""

    batch_size: float
    workers: int
    fixed_global_batch: bool
    unsplit_share: float
    """Share of the load that lies on one server, however many there are: a hot row cannot be cut in two."""

    @classmethod
    def of(cls, observed: Sequence[Observation]) -> Surroundings:
        newest = observed[-1]
        # One server has everything in any case, so it does not tell.
        splits = [seen for seen in observed if seen.size.ps > 1]
        unsplit = 0.0
        if splits:
            even = 1 / splits[-1].size.ps
            unsplit = max(splits[-1].share - even, 0.0) / (1 - even)
        return cls(newest.batch_size, newest.size.workers, newest.fixed_global_batch, unsplit)

    def batch(self, workers: Array) -> Array:
        """Samples that each worker would have in a step."""
        if self.fixed_global_batch:
            return self.batch_size * self.workers / workers
        return np.full(workers.shape, self.batch_size)

    def share(self, servers: Array) -> Array:
        """Share of the load that the hottest server would have."""
        return np.asarray(self.unsplit_share + (1 - self.unsplit_share) / np.maximum(servers, 1.0), dtype=np.float64)


@dataclass(frozen=True)
class Columns:
    """Sizes as columns of numbers, so that all sizes of a search are computed at once."""

    workers: Array
    ps: Array
    worker_cpu: Array
    ps_cpu: Array

    @classmethod
    def of(cls, sizes: Sequence[JobSize]) -> Columns:
        """Cores that nobody states are a constant of the job, so any number does for them."""
        table = np.array(
            [(size.workers, size.ps, size.worker_cpu or 1.0, size.ps_cpu or 1.0) for size in sizes], dtype=np.float64
        ).reshape(-1, 4)
        return cls(*table.T)

    def logarithms(self) -> Array:
        """A row for each size, in which the same factor is the same distance everywhere."""
        columns = np.stack([self.workers, np.maximum(self.ps, 1.0), self.worker_cpu, self.ps_cpu], axis=1)
        return np.asarray(np.log(columns), dtype=np.float64)


def server_features(at: Columns, around: Surroundings) -> Array:
    """A row for each size: what the coefficients of SERVER_TERMS are multiplied by."""
    load = at.workers * around.share(at.ps)
    ones = np.ones(at.workers.shape)
    return np.stack([ones, around.batch(at.workers) / at.worker_cpu, load / at.ps_cpu, load, at.workers, at.ps], axis=1)


def compute_features(at: Columns, around: Surroundings) -> Array:
    """The same of COMPUTE_TERMS."""
    return np.stack(
        [np.ones(at.workers.shape), around.batch(at.workers) / at.worker_cpu, at.workers], axis=1, dtype=np.float64
    )


def sync_features(at: Columns) -> Array:
    """The same of SYNC_TERMS: a ring sends each byte (w-1)/w times, in w-1 rounds. One worker has nothing to send."""
    return np.stack([(at.workers - 1) / at.workers, at.workers - 1], axis=1)


def server_shares(seen: Observation, tilt: int | None, strength: float) -> Array:
    """The share of the step that each of SERVER_TERMS probably has; tilted to one of them where that is possible."""
    if seen.server_s + seen.input_s == 0:
        return _tilted(_SERVER_SPLITS["whole"], tilt, strength)
    rest_s = max(seen.step_s - seen.server_s - seen.input_s, 0.0)
    parts = {"compute": rest_s, "input": seen.input_s, "server": seen.server_s}
    return _mixed(parts, _SERVER_SPLITS, tilt, strength)


def compute_shares(seen: Observation, tilt: int | None, strength: float) -> Array:
    """The same of COMPUTE_TERMS, in the step without synchronising."""
    input_s = min(seen.input_s, seen.work_s)
    return _mixed({"compute": seen.work_s - input_s, "input": input_s}, _COMPUTE_SPLITS, tilt, strength)


def sync_shares(tilt: int | None, strength: float) -> Array:
    """The same of SYNC_TERMS, in the synchronise time."""
    return _tilted(_SYNC_SPLIT, tilt, strength)


def _mixed(
    parts: Mapping[str, float], splits: Mapping[str, tuple[float, ...]], tilt: int | None, strength: float
) -> Array:
    whole = sum(parts.values())
    mixed = [part_s / whole * _tilted(splits[name], tilt, strength) for name, part_s in parts.items()]
    return np.asarray(np.sum(mixed, axis=0), dtype=np.float64)


def _tilted(split: tuple[float, ...], tilt: int | None, strength: float) -> Array:
    shares = np.array(split)
    if tilt is None or shares[tilt] == 0:
        return shares
    shares = (1 - strength) * shares
    shares[tilt] += strength
    return shares
