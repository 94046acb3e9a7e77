"""The search for a size: each of its rules under every interleaving, and what it says."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from elastane.core.size_candidates import candidates, inside
from elastane.core.size_search import RULES, SearchRules, decide, first_size
from elastane.model.sizing import (
    NO_HISTORY,
    Budget,
    Change,
    Decision,
    History,
    JobKind,
    JobSize,
    NoDecision,
    Prediction,
    PriorWindow,
    Window,
)
from tests.property.sizing_machine import SizingMachine

RUNS = settings(max_examples=50, stateful_step_count=25, deadline=None)
HUNT = settings(RUNS, max_examples=1000, database=None, phases=[Phase.generate], report_multiple_bugs=False)
SERVERS, ALLREDUCE = JobKind.PARAMETER_SERVER, JobKind.ALLREDUCE


def test_every_decision_keeps_every_rule() -> None:
    run_state_machine_as_test(SizingMachine, settings=RUNS)


@pytest.mark.parametrize(
    "planted",
    [
        replace(RULES, pays_times=0.0),
        replace(RULES, stable_windows=2),
        replace(RULES, growth=3.0),
        replace(RULES, delivered_share=-100.0),
        replace(RULES, again_costs=0.0, reverse_costs=0.0),
    ],
    ids=["does not count the cost", "is hasty", "leaps", "never goes back", "does not rest"],
)
def test_a_planted_bug_is_found(planted: SearchRules) -> None:
    class Machine(SizingMachine):
        asked_by = planted

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=HUNT)


def stay(size: JobSize, step_s: float, begin_s: float = 0.0, count: int = 3, pull: float = 0.0) -> list[Window]:
    """So many windows at a size, of five seconds each."""
    return [
        Window(
            at_s=begin_s + 5 * (number + 1),
            size=size,
            batch_size=100,
            samples_per_s=size.workers * 100 / step_s,
            step_s=step_s,
            pull_s=pull * step_s,
            hottest_share=1 / size.ps if size.ps else 0.0,
            duration_s=5.0,
        )
        for number in range(count)
    ]


def grow(
    kind: JobKind, budget: Budget, step_s: dict[str, float], start: JobSize, history: History = NO_HISTORY
) -> list[JobSize]:
    """Let the rules size a job until they stay; its step is fixed, each worker, load per server, input and all."""
    windows: list[Window] = []
    changes: list[Change] = []
    size, now_s = start, 0.0
    sizes = [start]
    for _ in range(20):
        load_s = step_s.get("load", 0.0) * size.workers / max(size.ps, 1)
        whole_s = step_s.get("fixed", 0.0) + step_s.get("each", 0.0) * size.workers + load_s
        windows += stay(size, whole_s, now_s, pull=load_s / whole_s)
        now_s = windows[-1].at_s + 25
        answer = decide(kind, windows, changes, budget, 1e9, history, now_s)
        if isinstance(answer, NoDecision):
            return sizes
        now_s += 2
        if answer.is_rollback:
            changes[-1] = replace(changes[-1], rolled_back=True)
        changes.append(Change(now_s, size, answer.size, answer.prediction, 2.0))
        size = answer.size
        sizes.append(size)
    raise AssertionError(f"it never stays: {sizes}")


def test_a_job_that_scales_comes_to_its_budget_in_three_plans() -> None:
    assert grow(ALLREDUCE, Budget(8), {"fixed": 1.0}, JobSize(1))[-1].workers == 8
    assert len(grow(ALLREDUCE, Budget(8), {"fixed": 1.0}, JobSize(1))) <= 4


def test_a_job_bound_by_its_servers_gets_servers() -> None:
    sizes = grow(SERVERS, Budget(8, max_ps=4, min_ps=1), {"fixed": 0.2, "load": 0.8}, JobSize(1, 1))
    assert JobSize(4, 4) in sizes[:3]
    assert sizes[-1].ps == 4
    # Twice the workers give a tenth more, which is less than was hoped for; and that is tried once.
    assert len(sizes) <= 5


def test_a_job_with_a_shared_limit_stays_small() -> None:
    assert grow(ALLREDUCE, Budget(64), {"fixed": 0.05, "each": 1.0}, JobSize(2))[-1].workers <= 8


def test_a_history_that_covers_it_allows_more_than_double() -> None:
    known = History(tuple(PriorWindow(stay(JobSize(w), 1 + 0.01 * w)[0], 1.0) for w in (2, 8, 32)))
    answer = decide(ALLREDUCE, stay(JobSize(2), 1.02), [], Budget(64), 1e9, known, 15.0)
    assert isinstance(answer, Decision)
    assert answer.size.workers == 32


def test_the_line_can_be_checked_by_a_person() -> None:
    windows = [*stay(JobSize(2, 1), 1.2, pull=0.3), *stay(JobSize(4, 1), 1.5, 20, pull=0.4)]
    changes = [Change(20, JobSize(2, 1), JobSize(4, 1), Prediction(260, 200, 300), 10)]
    answer = decide(SERVERS, windows, changes, Budget(8, max_ps=1, min_ps=1), 1e6, now_s=40.0)
    assert isinstance(answer, Decision)
    line = (
        r"workers 4->8: 267->\d+ samples/s \(\+\d+% \+-\d+%, 2 observations\), \w.* limits at \d+, pays back in \d+ s"
    )
    assert re.fullmatch(line, answer.reason), answer.reason


def test_a_change_that_gave_too_little_is_rolled_back_once() -> None:
    windows = [*stay(JobSize(4), 1.0), *stay(JobSize(8), 1.9, 20)]
    changes = [Change(20, JobSize(4), JobSize(8), Prediction(700, 600, 800), 2)]
    answer = decide(ALLREDUCE, windows, changes, Budget(16), 1e6, now_s=35.0)
    assert isinstance(answer, Decision)
    assert answer.is_rollback
    assert answer.size == JobSize(4)
    assert "rolled back, 8 workers gave 421 samples/s of 700 predicted, 7% of the gain" in answer.reason
    windows += stay(JobSize(4), 1.0, 40)
    changes = [replace(changes[0], rolled_back=True), Change(40, JobSize(8), JobSize(4), answer.prediction, 2)]
    again = decide(ALLREDUCE, windows, changes, Budget(16), 1e6, now_s=55.0)
    assert not (isinstance(again, Decision) and again.is_rollback)


def test_a_job_at_its_end_is_left_alone() -> None:
    windows = stay(JobSize(2), 1.0)
    assert isinstance(decide(ALLREDUCE, windows, [], Budget(8), 1000.0, now_s=15.0), NoDecision)
    changes = [Change(1, JobSize(1), JobSize(2), Prediction(1, 1, 1), 0.0)]
    assert isinstance(decide(ALLREDUCE, windows, changes, Budget(8), 0.0, now_s=15.0), NoDecision)


def test_a_job_above_its_budget_goes_into_it() -> None:
    answer = decide(ALLREDUCE, stay(JobSize(8), 1.0), [], Budget(5), 0.0, now_s=15.0)
    assert isinstance(answer, Decision)
    assert answer.size == JobSize(5)
    assert answer.reason.endswith("the budget allows no more")


def test_a_new_job_begins_where_a_like_one_ended() -> None:
    known = tuple(PriorWindow(stay(JobSize(w), 1 + 0.01 * w)[0], 0.5) for w in (2, 4, 8))
    begun = first_size(ALLREDUCE, Budget(64), History(known, last_size=JobSize(8)))
    assert isinstance(begun, Decision)
    assert begun.size == JobSize(8)
    assert begun.prediction.samples_per_s == pytest.approx(741, rel=0.05)
    by_model = first_size(ALLREDUCE, Budget(6), History(known))
    assert isinstance(by_model, Decision)
    assert by_model.size == JobSize(6)
    assert isinstance(first_size(ALLREDUCE, Budget(6), NO_HISTORY), NoDecision)


budgets = st.builds(
    lambda low, more, ps_low, ps_more, cpu: Budget(low + more, low, ps_low + ps_more, ps_low, cpu),
    st.integers(1, 20),
    st.integers(0, 3000),
    st.integers(0, 5),
    st.integers(0, 300),
    st.none() | st.floats(100, 5000),
)


@given(budgets, st.integers(1, 5000), st.integers(0, 500))
def test_the_most_alike_size_in_a_budget_is_in_it(budget: Budget, workers: int, ps: int) -> None:
    size = inside(JobSize(workers, ps), budget)
    assert budget.allows(size)
    if budget.allows(JobSize(workers, ps)):
        assert size == JobSize(workers, ps)


@given(budgets, st.integers(1, 64), st.integers(0, 8))
def test_candidates_are_in_the_budget_and_not_too_many(budget: Budget, workers: int, ps: int) -> None:
    from elastane.core.size_candidates import Reach

    present = inside(JobSize(workers, ps), budget)
    found = candidates(present, budget, Reach.of(present, (), NO_HISTORY, 2.0))
    assert present not in found
    assert len(found) <= 12_000
    assert all(budget.allows(size) for size in found)
    assert all(size.workers <= 2 * present.workers and size.ps <= 2 * present.ps for size in found)
