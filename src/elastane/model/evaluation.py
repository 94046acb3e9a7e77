"""Evaluation as the job sees it: what is evaluated, when, and what follows from the results."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastane.model.dataset import MAX_SIZE
from elastane.model.errors import InvalidInput
from elastane.model.ids import DatasetName, TaskId

MAX_METRICS = 100
MAX_NAME = 100
MAX_PATH = 4096


class Mode(enum.StrEnum):
    """Which of two values of a metric is the better one."""

    MAX = "max"
    MIN = "min"


@dataclass(frozen=True)
class Goal:
    """The metric that says which version is best, written as `auc:max` or `loss:min`."""

    metric: str
    mode: Mode

    @classmethod
    def parse(cls, text: str) -> Goal:
        metric, _, mode = text.rpartition(":")
        if not metric or mode not in list(Mode):
            raise InvalidInput(f'best: "{text}" is not a metric and a mode, such as auc:max or loss:min')
        return cls(metric, Mode(mode))

    def __str__(self) -> str:
        return f"{self.metric}:{self.mode}"

    def improves(self, value: float, best: float | None) -> bool:
        """Whether a value is better than the best so far. NaN never is."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value > best if self.mode is Mode.MAX else value < best


@dataclass(frozen=True)
class EvaluationSpec:
    """How a job evaluates: its data in shards of whole batches, its moments, and what follows."""

    size: int
    shard_size: int
    metrics: tuple[str, ...]
    every_steps: int | None = None
    every_s: float | None = None
    at_end: bool = True
    best: Goal | None = None
    early_stop: int | None = None
    """Training ends after so many evaluations in a row without a better one."""
    export: str | None = None
    """The folder for the best weights at the end; for the last ones, without a goal."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise InvalidInput(f"evaluate: a data set of {self.size} samples; 1 to {MAX_SIZE} can be evaluated")
        if not 1 <= self.shard_size <= MAX_SIZE:
            raise InvalidInput(f"evaluate: shard_size {self.shard_size} is not from 1 to {MAX_SIZE}")
        names = self.metrics
        if not 1 <= len(names) <= MAX_METRICS or len(set(names)) < len(names):
            raise InvalidInput(f"evaluate: {len(names)} metrics; 1 to {MAX_METRICS} of different names are allowed")
        if bad := [name for name in names if not name or len(name) > MAX_NAME]:
            raise InvalidInput(f'evaluate: metric "{bad[0][:20]}" must have 1 to {MAX_NAME} characters')
        if self.every_steps is not None and not 1 <= self.every_steps < 2**63:
            raise InvalidInput(f"evaluate: every_steps {self.every_steps} is below 1")
        if self.every_s is not None and not 0 < self.every_s <= 10**9:
            raise InvalidInput(f"evaluate: every_s {self.every_s} is not above 0")
        if self.best is not None and self.best.metric not in names:
            raise InvalidInput(f'evaluate: best "{self.best}" names none of the metrics {", ".join(names)}')
        if self.early_stop is not None and self.best is None:
            raise InvalidInput("evaluate: early_stop needs best, which says what an improvement is")
        if self.early_stop is not None and not 1 <= self.early_stop < 2**31:
            raise InvalidInput(f"evaluate: early_stop {self.early_stop} is below 1")
        if self.export is not None and not 1 <= len(self.export) <= MAX_PATH:
            raise InvalidInput(f"evaluate: export has {len(self.export)} characters; 1 to {MAX_PATH} are allowed")

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> EvaluationSpec:
        """The description that `dataclasses.asdict` made plain."""
        goal = plain["best"]
        best = None if goal is None else Goal(goal["metric"], Mode(goal["mode"]))
        return cls(**{**plain, "metrics": tuple(plain["metrics"]), "best": best})


@dataclass(frozen=True)
class Result:
    """The metrics of one version of the model: that after `step` steps."""

    step: int
    metrics: Mapping[str, float]


def plain_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics as JSON, which has no word for what is not a number."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def about_version(result: Result, goal: Goal | None) -> str:
    """What stands beside exported weights, as JSON."""
    best = None if goal is None else str(goal)
    return json.dumps({"step": result.step, "metrics": plain_metrics(result.metrics), "best": best})


@dataclass(frozen=True)
class EvaluateShard:
    """Evaluate samples `start` to `end` (exclusive) with the weights in the file."""

    file: str
    start: int
    end: int


@dataclass(frozen=True)
class MergeStates:
    """Merge these states of the metrics, in this order."""

    states: tuple[str, ...]


@dataclass(frozen=True)
class ExportVersion:
    """Write the weights in the file, and `json` beside them, into the folder."""

    file: str
    folder: str
    json: str


@dataclass(frozen=True)
class Work:
    """What a node is to do for one task that is leased to it."""

    dataset: DatasetName
    task: TaskId
    what: EvaluateShard | MergeStates | ExportVersion


def version_file(step: int) -> str:
    """The name of the file that holds the weights after so many steps."""
    return f"step-{step}.safetensors"
