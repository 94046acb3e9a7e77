"""Evaluation under every order of events: the best is kept, nothing piles up, and the job comes to its end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from elastane.core.evaluation import Decision, Drop, Evaluations, StopTraining
from elastane.model.errors import InvalidInput
from elastane.model.evaluation import EvaluationSpec, Goal
from tests.property.evaluation_machine import EvaluationMachine

RUNS = settings(max_examples=150, stateful_step_count=40, deadline=None)
HUNT = settings(RUNS, max_examples=4000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_evaluation_keeps_its_promises() -> None:
    run_state_machine_as_test(EvaluationMachine, settings=RUNS)


class KeepsEverything(Evaluations):
    """A planted bug: the best before stays on the disk."""

    def evaluated(self, step: int, metrics: Mapping[str, float], now: float) -> list[Decision]:
        before = self.best
        decisions = super().evaluated(step, metrics, now)
        return [decision for decision in decisions if before is None or decision != Drop(before.step)]


class StopsTooSoon(Evaluations):
    """A planted bug: an improvement does not restore the patience."""

    def evaluated(self, step: int, metrics: Mapping[str, float], now: float) -> list[Decision]:
        worse = self._since_best
        decisions = super().evaluated(step, metrics, now)
        self._since_best = max(self._since_best, worse)
        return decisions


class ForgetsTheTime(Evaluations):
    """A planted bug: time counts from the start, not from the last version."""

    def taken(self, step: int, now: float) -> list[Decision]:
        before = self._taken_at
        decisions = super().taken(step, now)
        self._taken_at = before
        return decisions


@pytest.mark.parametrize("planted", [KeepsEverything, StopsTooSoon, ForgetsTheTime])
def test_a_planted_bug_is_found(planted: type[Evaluations]) -> None:
    class Machine(EvaluationMachine):
        evaluations_class = planted

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=HUNT)


def test_patience_counts_evaluations_that_are_no_better() -> None:
    spec = EvaluationSpec(10, 10, ("loss",), every_steps=1, best=Goal.parse("loss:min"), early_stop=2)
    rules = Evaluations(spec, 0.0)
    rules.begin(0.0)
    told = []
    for step, loss in enumerate([1.0, 1.0, 0.9, 0.9, float("nan")], start=1):
        rules.taken(step, 0.0)
        told.append([type(one) for one in rules.evaluated(step, {"loss": loss}, 0.0)].count(StopTraining))
    assert told == [0, 0, 0, 0, 1]
    assert rules.best is not None
    assert rules.best.step == 3


@pytest.mark.parametrize("text", ["auc", "auc:high", ":max", "max"])
def test_a_goal_is_a_metric_and_a_mode(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a metric and a mode"):
        Goal.parse(text)
