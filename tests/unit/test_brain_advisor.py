"""Which runs the Brain believes, and how far."""

from __future__ import annotations

from typing import Any

import pytest

from elastane.brain.advisor import HALF_LIFE_S, advise, learn, own_windows, thinned, weight
from elastane.brain.runs import PastRun
from elastane.model.brain import Likeness, ReportedWindow
from elastane.model.quantity import Memory
from elastane.model.sizing import Budget, Decision, JobKind, JobSize, NoDecision, Window

NOW = 1e9


def make_rows(*workers: int, **more: Any) -> tuple[ReportedWindow, ...]:
    """A window for each of these numbers of workers; each worker brings a thousand samples a second."""
    return tuple(
        ReportedWindow(Window(10.0 * number, JobSize(count), 100.0, 1000.0 * count, 0.1, duration_s=10.0), **more)
        for number, count in enumerate(workers, 1)
    )


def make_past(
    run: str = "a", *, ended_at: int = 4, age_s: float = 0.0, errors: tuple[float, ...] = (), **more: Any
) -> PastRun:
    return PastRun(run, NOW - age_s, more.pop("exit_reason", "succeeded"), make_rows(1, 2, ended_at), errors, **more)


def test_the_more_alike_a_run_is_the_more_it_is_believed() -> None:
    weights = [weight(make_past(), likeness, NOW) for likeness in Likeness]
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) == 3
    assert 0 < weights[-1] < weights[0] <= 1


def test_a_run_is_believed_half_as_much_after_its_half_life() -> None:
    new, old = (weight(make_past(age_s=age_s), Likeness.KIND, NOW) for age_s in (0.0, HALF_LIFE_S))
    assert old == pytest.approx(new / 2)


def test_a_run_from_the_future_is_as_good_as_new() -> None:
    assert weight(make_past(age_s=-1000.0), Likeness.KIND, NOW) == weight(make_past(), Likeness.KIND, NOW)


def test_a_run_that_was_predicted_well_is_believed_more() -> None:
    exact, unknown, poor = (
        weight(make_past(errors=errors), Likeness.KIND, NOW) for errors in ((0.0, 0.01, 5.0), (), (0.5, 0.4))
    )
    assert exact > unknown > poor > 0


def test_the_most_believed_run_of_the_same_code_says_where_to_begin() -> None:
    pasts = [make_past("new", ended_at=8), make_past("old", ended_at=30, age_s=HALF_LIFE_S)]
    history, like = learn(Likeness.CODE_AND_DATA, pasts, NOW)
    assert history.last_size == like.last_size == JobSize(8)
    poorly = [
        make_past("new", ended_at=8, errors=(3.0,)),
        make_past("old", ended_at=30, age_s=HALF_LIFE_S, errors=(0.0,)),
    ]
    assert learn(Likeness.CODE_AND_DATA, poorly, NOW)[0].last_size == JobSize(30)


def test_of_runs_less_alike_the_weighted_median_says_where_to_begin() -> None:
    pasts = [make_past(str(count), ended_at=count) for count in (50, 4, 5)]
    assert learn(Likeness.KIND, pasts, NOW)[0].last_size == JobSize(5)
    pasts[1] = make_past("4", ended_at=4, age_s=20 * HALF_LIFE_S)
    pasts[2] = make_past("5", ended_at=5, age_s=20 * HALF_LIFE_S)
    assert learn(Likeness.KIND, pasts, NOW)[0].last_size == JobSize(50)


@pytest.mark.parametrize("exit_reason", ["failed", "oom"])
def test_a_run_that_ended_badly_teaches_speeds_but_no_size(exit_reason: str) -> None:
    history, like = learn(Likeness.CODE_AND_DATA, [make_past(exit_reason=exit_reason)], NOW)
    assert history.last_size is None
    assert len(history.windows) == 3
    assert like.runs == 1


def test_a_run_that_still_runs_teaches_too() -> None:
    assert learn(Likeness.CODE_AND_DATA, [make_past(exit_reason=None)], NOW)[0].last_size == JobSize(4)


def test_a_long_run_teaches_no_more_than_a_short_one_and_the_most_believed_teach() -> None:
    long = PastRun("long", NOW, None, make_rows(*[1] * 50, *[2] * 50))
    assert [prior.window.size.workers for prior in learn(Likeness.KIND, [long], NOW)[0].windows] == [1, 2]
    pasts = [make_past(str(days), age_s=86_400.0 * days) for days in (9, 1, 2, 3, 8)]
    weights = [prior.weight for prior in learn(Likeness.KIND, pasts, NOW)[0].windows]
    assert sorted(set(weights)) == sorted(weight(pasts[index], Likeness.KIND, NOW) for index in (1, 2, 3))


def test_the_largest_memory_of_all_is_told() -> None:
    pasts = [
        PastRun("a", NOW, None, make_rows(1, worker_memory=Memory.mib(10), ps_memory=Memory.mib(4))),
        PastRun("b", NOW, None, make_rows(1, worker_memory=Memory.mib(30))),
    ]
    like = learn(Likeness.KIND, pasts, NOW)[1]
    assert (like.worker_memory, like.ps_memory) == (Memory.mib(30), Memory.mib(4))


def test_of_a_long_stretch_the_first_and_the_last_windows_stay() -> None:
    rows = make_rows(*[2] * 6, *[3] * 2, *[2] * 6)
    assert thinned(rows, 1, 2) == [rows[0], *rows[4:9], *rows[12:]]
    assert thinned(rows, 0, 3) == [*rows[3:8], *rows[11:]]
    assert own_windows(rows) == [row.window for row in rows]
    assert len(own_windows(make_rows(*[2] * 50))) == 9


def test_before_the_first_window_the_history_gives_the_size_inside_the_budget() -> None:
    history, _ = learn(Likeness.CODE_AND_DATA, [make_past(ended_at=8)], NOW)
    for most, wanted in ((20, 8), (6, 6)):
        decision = advise(JobKind.ALLREDUCE, (), (), Budget(max_workers=most), None, history, 0.0)
        assert isinstance(decision, Decision)
        assert decision.size == JobSize(wanted)


def test_without_history_and_windows_nothing_is_advised() -> None:
    history, _ = learn(Likeness.KIND, [], NOW)
    assert isinstance(advise(JobKind.ALLREDUCE, (), (), Budget(max_workers=8), None, history, 0.0), NoDecision)
