"""A chart's memory under any values: bounded, and still true at its ends and extremes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from elastane.core.series import Series
from elastane.dashboard.marks import Marks

VALUES = st.one_of(st.floats(-1e9, 1e9), st.sampled_from([math.nan, math.inf, 0.0]))


@given(st.integers(8, 40), st.lists(VALUES, max_size=400))
def test_a_series_is_bounded_and_keeps_first_last_and_extremes(most: int, values: list[float]) -> None:
    series = Series(most)
    added = []
    for at, value in enumerate(values):
        series.add(float(at), value)
        if math.isfinite(value):
            added.append((float(at), value))
        assert len(series) <= most
    points = list(series.points)
    assert set(points) <= set(added)
    assert [at for at, _ in points] == sorted({at for at, _ in points})
    if added:
        assert (points[0], points[-1], series.last) == (added[0], added[-1], added[-1])
        kept = [value for _, value in points]
        assert (min(kept), max(kept)) == (min(value for _, value in added), max(value for _, value in added))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_what_comes_late_is_left_out(times: list[float]) -> None:
    series = Series(8)
    newest = -math.inf
    for at in times:
        before = list(series.points)
        series.add(at, 1.0)
        if at <= newest:
            assert list(series.points) == before
        newest = max(newest, at)
    assert series.last == (newest, 1.0)


@given(st.integers(8, 100), st.integers(0, 3000))
def test_points_are_thinned_evenly_not_only_at_one_end(most: int, count: int) -> None:
    series = Series(most)
    for at in range(count):
        series.add(float(at), float(at % 7))
    if count > most:
        gaps = [after - before for (before, _), (after, _) in zip(series.points, series.points[1:], strict=False)]
        assert max(gaps) <= 16 * count / most


@given(st.integers(1, 30), st.integers(0, 200))
def test_marks_are_bounded_and_the_newest_stay(most: int, count: int) -> None:
    marks = Marks(most)
    for number in range(count):
        marks.add(float(number), "join", f"worker-{number} joined", version=number)
        assert len(marks) <= most
    assert marks.dropped + len(marks) == count
    assert [mark.number for mark in marks] == list(range(count - len(marks) + 1, count + 1))
    if count:
        assert [mark.stall_ms for mark in marks.cost(count - 1, count - 1, 12.5)] == [12.5]
    assert marks.cost(-2, -1, 1.0) == []
