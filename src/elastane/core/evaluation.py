"""The rules of evaluation: when a version of the model is due, which one is best, when to stop, and what is exported.

A version is the model after so many steps. One is evaluated at a time, while training goes on. The next is wanted once
the one before is evaluated: at the next multiple of `every_steps`, or as soon as `every_s` have passed. An evaluation
that takes longer than that makes the job skip versions; it never makes them queue.

`Evaluations` is told what happened and answers with what to do about it, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastane.model.evaluation import EvaluationSpec, Result


@dataclass(frozen=True)
class Take:
    """The first worker is to write the version at the next step that is a multiple of this; 0: none is wanted."""

    multiple_of: int


@dataclass(frozen=True)
class TakeFinal:
    """Training has ended, and what it came to is wanted: one of those who trained is to write it."""


@dataclass(frozen=True)
class Evaluate:
    """The version after so many steps is there: evaluate it."""

    step: int


@dataclass(frozen=True)
class Finished:
    """A version is evaluated; `best` if it is the best so far."""

    result: Result
    best: bool


@dataclass(frozen=True)
class Drop:
    """This version's weights are not needed any more."""

    step: int


@dataclass(frozen=True)
class StopTraining:
    """So many evaluations in a row were no improvement: training is to end, and to end well."""

    evaluations: int


@dataclass(frozen=True)
class Export:
    """The weights of this version are the job's outcome."""

    result: Result


@dataclass(frozen=True)
class Over:
    """Nothing is left to evaluate or to export."""


_RESULTS = ("last", "best")
"""The parts of the state that are results."""

Decision = Take | TakeFinal | Evaluate | Finished | Drop | StopTraining | Export | Over


class Evaluations:
    """The evaluations of one job."""

    def __init__(self, spec: EvaluationSpec, now: float) -> None:
        self.spec = spec
        self.wanted = 0
        """As in `Take`."""
        self.running: int | None = None
        """The version that is evaluated now."""
        self.last: Result | None = None
        self.best: Result | None = None
        """The best by the goal; without one, the last."""
        self.stopping = False
        self.over = False
        self._since_best = 0
        self._taken_at = now
        self.end: int | None = None
        """The step at which training ended."""
        self._final_asked = False
        self._exporting = False
        self._exported = False

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        plain = {name: value for name, value in vars(self).items() if name not in ("spec", *_RESULTS)}
        return {**plain, **{name: _plain(getattr(self, name)) for name in _RESULTS}}

    def load(self, state: dict[str, Any], now: float) -> None:
        """Take the state of a snapshot, at the time it is now."""
        del now  # The job's time goes on.
        for name, value in state.items():
            setattr(self, name, _result(value) if name in _RESULTS else value)

    @property
    def exporting(self) -> Result | None:
        """What is being exported."""
        return self.best if self._exporting and not self._exported else None

    def begin(self, now: float) -> list[Decision]:
        """Evaluation was described: from now on versions are due."""
        return self._advance(now)

    def tick(self, now: float) -> list[Decision]:
        """Time has passed."""
        return self._advance(now)

    def next_tick(self) -> float | None:
        """When `tick` has something to do."""
        if self.spec.every_s is None or self.wanted == 1 or self._idle:
            return None
        return self._taken_at + self.spec.every_s

    def taken(self, step: int, now: float) -> list[Decision]:
        """The version after so many steps is written. One that nobody waits for is dropped."""
        if step == self.running or (self.best is not None and step == self.best.step):
            return []
        known = self.last is not None and step <= self.last.step
        asked = step == self.end and self._final_asked if self.end is not None else bool(self.wanted)
        if known or not asked or self.running is not None or self._exporting or self.over:
            return [Drop(step)]
        self.running = step
        self._taken_at = now
        return [*self._advance(now), Evaluate(step)]

    def evaluated(self, step: int, metrics: Mapping[str, float], now: float) -> list[Decision]:
        """The version that is running is evaluated; a word on any other changes nothing."""
        if step != self.running:
            return []
        self.running = None
        result = self.last = Result(step, dict(metrics))
        goal, before = self.spec.best, self.best
        best = goal is None or goal.improves(
            result.metrics[goal.metric], None if before is None else before.metrics[goal.metric]
        )
        decisions: list[Decision] = [Finished(result, best and goal is not None)]
        if best:
            self.best = result
            self._since_best = 0
            decisions += [] if before is None else [Drop(before.step)]
        else:
            self._since_best += 1
            decisions.append(Drop(step))
        patience = self.spec.early_stop
        if patience is not None and self._since_best >= patience and self.end is None:
            self.stopping = True
            decisions.append(StopTraining(self._since_best))
        return decisions + self._advance(now)

    def training_ended(self, step: int, now: float) -> list[Decision]:
        """Nobody trains any more, and the model has made so many steps; only the first word on it counts."""
        if self.end is None:
            self.end = step
        return self._advance(now)

    def no_final(self, now: float) -> list[Decision]:
        """Nobody is left who could write the final version: what was evaluated before is the outcome."""
        if self.end is None or not self._final_asked or self.running is not None:
            return []
        self.end = self.last.step if self.last is not None else -1
        return self._advance(now)

    def exported(self, now: float) -> list[Decision]:
        """The export is done."""
        self._exported = self._exporting
        return self._advance(now)

    @property
    def awaits_final(self) -> bool:
        """Whether the final version was asked for, and has not come."""
        return self._final_asked and self._needs_final and self.running is None and not self.over

    @property
    def _idle(self) -> bool:
        """Whether no version is to be taken from training."""
        return self.running is not None or self.stopping or self.end is not None or self.over

    def _advance(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        wanted = self._want(now)
        if wanted != self.wanted:
            self.wanted = wanted
            decisions.append(Take(wanted))
        if self.end is not None and self.running is None and not self.over:
            decisions += self._conclude()
        return decisions

    def _want(self, now: float) -> int:
        if self._idle:
            return 0
        if self.wanted == 1 or (self.spec.every_s is not None and now >= self._taken_at + self.spec.every_s):
            return 1
        return self.spec.every_steps or 0

    def _conclude(self) -> list[Decision]:
        """Training has ended: the final version, then the export, then the end."""
        if self._needs_final:
            if self._final_asked:
                return []
            self._final_asked = True
            return [TakeFinal()]
        if self.spec.export is not None and self.best is not None and not self._exported:
            if self._exporting:
                return []
            self._exporting = True
            return [Export(self.best)]
        self.over = True
        return [Over()]

    @property
    def _needs_final(self) -> bool:
        if self.end == -1 or (self.last is not None and self.last.step == self.end):
            return False
        # An export without a goal is of the last weights, and one needs something to export.
        exports = self.spec.export is not None and (self.spec.best is None or self.best is None)
        return self.spec.at_end or exports


def _plain(result: Result | None) -> list[Any] | None:
    return None if result is None else [result.step, dict(result.metrics)]


def _result(plain: list[Any] | None) -> Result | None:
    return None if plain is None else Result(*plain)
