"""What was observed of a job's size and done about it: the memory of its optimizer, which outlives a master.

It takes no decision. It knows which windows belong to which size, when a change that was begun has come to its end,
what that cost, and what it gave; `core.size_search` decides from that.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastane.model.sizing import Change, Decision, JobSize, Prediction, Window

MOST_WINDOWS = 512
MOST_LINES = 200


class OptimizerStage(enum.StrEnum):
    """What a job has come to know of its size.

    CREATE: nothing but its configuration and what is known of like jobs. WORKER_INITIAL: one size was seen, so the
    number of workers is found, which is also what shows the need of the parameter servers. PS_INITIAL: several numbers
    of workers were seen, so that of the servers is found. RUNNING: whatever is the bottleneck.
    """

    CREATE = "create"
    WORKER_INITIAL = "worker_initial"
    PS_INITIAL = "ps_initial"
    RUNNING = "running"


@dataclass(frozen=True)
class Line:
    """One decision as people read it."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Pending:
    """A change that was begun, and is not through."""

    decision: Decision
    at_s: float
    samples_done: float
    """When it was begun."""


class SizingRecord:
    """The windows, the changes and the stage of one job, oldest first."""

    def __init__(self) -> None:
        self.stage = OptimizerStage.CREATE
        self.windows: list[Window] = []
        self.changes: list[Change] = []
        self.lines: list[Line] = []
        self.pending: Pending | None = None
        self.oom_kills = 0
        self.paused = False
        """Whether people want the job to keep its size for now."""
        self.run = ""
        """What this life of the job is called, unlike any other."""

    @property
    def size(self) -> JobSize | None:
        """The size that the job has, or is about to have; None before anything is known."""
        if self.pending is not None:
            return self.pending.decision.size
        if self.changes:
            return self.changes[-1].after
        return self.windows[-1].size if self.windows else None

    @property
    def present_samples_per_s(self) -> float | None:
        """The median of the newest windows of one size."""
        return _speed([window for window in self.windows if window.size == self.windows[-1].size][-3:])

    def named(self, run: str) -> None:
        """This life of the job has a name."""
        self.run = run

    def entered(self, stage: OptimizerStage) -> None:
        """The job has come to a stage."""
        self.stage = stage

    def observed(self, window: Window) -> None:
        """A window is complete. The newest change has given what its windows show."""
        self.windows = [*self.windows, window][-MOST_WINDOWS:]
        if self.changes and self.pending is None and window.size == self.changes[-1].after:
            change = self.changes[-1]
            since = [seen for seen in self.windows if seen.at_s > change.at_s and seen.size == change.after]
            self.changes[-1] = replace(change, realised_samples_per_s=_speed(since))

    def began(self, decision: Decision, at_s: float, samples_done: float) -> None:
        """A change was begun."""
        self.pending = Pending(decision, at_s, samples_done)
        self.said(at_s, decision.reason)
        if decision.is_rollback and self.changes:
            self.changes[-1] = replace(self.changes[-1], rolled_back=True)

    def settled(self, size: JobSize, at_s: float, samples_done: float) -> None:
        """The change that was begun is through, at this size: it cost what was not done meanwhile."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        elapsed_s = at_s - pending.at_s
        before = pending.decision.before or size
        rate = pending.decision.present_samples_per_s
        done = samples_done - pending.samples_done
        cost_s = 0.0 if not rate else min(elapsed_s, max(0.0, elapsed_s - done / rate))
        decision = pending.decision
        self.changes.append(Change(at_s, before, size, decision.prediction, cost_s, reason=decision.reason))

    def changed_by_others(self, size: JobSize, at_s: float, reason: str) -> None:
        """The job has another size than was decided here: a person said so, or a node was lost for good."""
        before = self.size or size
        speed = self.present_samples_per_s or 0.0
        self.pending = None
        self.changes.append(Change(at_s, before, size, Prediction(speed, speed, speed), 0.0, reason=reason))
        self.said(at_s, reason)

    def said(self, at_s: float, text: str) -> None:
        """Keep a line for people."""
        self.lines = [*self.lines, Line(at_s, text)][-MOST_LINES:]

    def pause(self, paused: bool) -> None:
        """Let the job keep its size, or go on."""
        self.paused = paused

    def killed_for_memory(self) -> None:
        self.oom_kills += 1

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {
            "stage": self.stage.value,
            "windows": [asdict(window) for window in self.windows],
            "changes": [asdict(change) for change in self.changes],
            "lines": [asdict(line) for line in self.lines],
            "pending": None if self.pending is None else asdict(self.pending),
            "oom_kills": self.oom_kills,
            "paused": self.paused,
            "run": self.run,
        }

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # its times are the job's own
        """Take the state of a snapshot."""
        self.stage = OptimizerStage(state["stage"])
        self.windows = [Window(**{**plain, "size": JobSize(**plain["size"])}) for plain in state["windows"]]
        self.changes = [_change(plain) for plain in state["changes"]]
        self.lines = [Line(**plain) for plain in state["lines"]]
        pending = state["pending"]
        self.pending = None if pending is None else Pending(**{**pending, "decision": _decision(pending["decision"])})
        self.oom_kills = state["oom_kills"]
        self.paused = state["paused"]
        self.run = state["run"]


def _speed(windows: Sequence[Window]) -> float | None:
    return statistics.median(window.samples_per_s for window in windows) if windows else None


def _change(plain: dict[str, Any]) -> Change:
    read = {name: JobSize(**plain[name]) for name in ("before", "after")}
    return Change(**{**plain, **read, "predicted": Prediction(**plain["predicted"])})


def _decision(plain: dict[str, Any]) -> Decision:
    before = plain["before"]
    read = {"size": JobSize(**plain["size"]), "before": None if before is None else JobSize(**before)}
    return Decision(**{**plain, **read, "prediction": Prediction(**plain["prediction"])})
