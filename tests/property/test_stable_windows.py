"""Windows: of one size, after its warm-up, in order, and not moved by a few wild readings."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from elastane.core.stable_windows import RULES, StableWindows, WindowRules
from elastane.model.errors import InvalidInput
from elastane.model.sizing import JobSize, Reading, Window

RUNS = settings(max_examples=100, stateful_step_count=40, deadline=None)
HUNT = settings(RUNS, max_examples=400, database=None, phases=[Phase.generate], report_multiple_bugs=False)
SHORT = WindowRules(readings=4, warm_up_s=2.5)


def reading(at_s: float, size: JobSize, speed: float) -> Reading:
    return Reading(at_s, size, 10, speed, size.workers * 10 / speed, pull_s=0.001, hottest_share=0.5)


class WindowMachine(RuleBasedStateMachine):
    """Reads a job whose speed depends on its size alone, with wild readings, garbage and changes in between."""

    windows_class: type[StableWindows] = StableWindows

    def __init__(self) -> None:
        super().__init__()
        self.windows = self.windows_class(SHORT)
        self.now_s = 0.0
        self.size = JobSize(2, 1)
        self.read_size = self.size
        self.changed_s = 0.0
        self.last_end_s = 0.0
        self.wild_in_a_row = 0

    def _read(self, speed: float) -> None:
        self.now_s += 1.0
        self.read_size = self.size
        window = self.windows.add(reading(self.now_s, self.size, speed), self.now_s)
        if window is not None:
            self._check(window)

    def _check(self, window: Window) -> None:
        assert window.size == self.size
        assert window.at_s == self.now_s
        assert window.at_s - window.duration_s >= self.changed_s + SHORT.warm_up_s, "the warm-up is in it"
        assert window.at_s - window.duration_s >= self.last_end_s, "two windows overlap"
        assert window.samples_per_s == pytest.approx(100.0 * self.size.workers, rel=0.1), "a wild reading moved it"
        self.last_end_s = window.at_s

    @rule(noise=st.floats(0.97, 1.03))
    def read(self, noise: float) -> None:
        warm = self.now_s + 1 >= self.changed_s + SHORT.warm_up_s
        # Before it is warm, a job is slow.
        self._read(100.0 * self.size.workers * noise * (1.0 if warm else 0.2))
        self.wild_in_a_row = 0

    @precondition(lambda self: self.wild_in_a_row < 1)
    @rule(wild=st.sampled_from([0.1, 5.0]))
    def read_wild_once(self, wild: float) -> None:
        for _ in range(3):
            self.read(1.0)
        self._read(100.0 * self.size.workers * wild)
        for _ in range(3):
            self.read(1.0)
        self.wild_in_a_row = 1

    @rule(
        field=st.sampled_from(["samples_per_s", "step_s", "pull_s"]), value=st.sampled_from([float("nan"), -1.0, 1e30])
    )
    def read_garbage(self, field: str, value: float) -> None:
        wrong = replace(reading(self.now_s + 0.5, self.size, 100.0), **{field: value})  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=field):
            self.windows.add(wrong, self.now_s + 0.5)

    @rule()
    def read_from_the_future_and_from_the_past(self) -> None:
        with pytest.raises(InvalidInput, match=r"at_s.*future"):
            self.windows.add(reading(self.now_s + 100, self.size, 100.0), self.now_s)
        if self.now_s:
            with pytest.raises(InvalidInput, match=r"at_s|cannot be true"):
                self.windows.add(reading(self.now_s - 1, self.size, 100.0), self.now_s)

    @rule(workers=st.integers(1, 4), told=st.booleans())
    def change(self, workers: int, told: bool) -> None:
        if not told and JobSize(workers, 1) == self.read_size != self.size:
            return  # There and back between two readings, and nobody tells: that cannot be known.
        if told or JobSize(workers, 1) != self.size:
            # Nobody may tell of it: then the first reading of the new size does.
            if told:
                self.windows.changing(self.now_s)
            self.size = JobSize(workers, 1)
            self.changed_s = self.now_s


def test_a_window_is_of_one_size_and_of_its_steady_time() -> None:
    run_state_machine_as_test(WindowMachine, settings=RUNS)


class ForgetsTheWarmUp(StableWindows):
    """A planted bug: a change cuts the open window, and not the warm-up after it."""

    def _restart(self, at_s: float) -> None:
        super()._restart(at_s)
        self._warm_at_s = at_s


class MixesSizes(StableWindows):
    """A planted bug: what was gathered before a change stays."""

    def _restart(self, at_s: float) -> None:
        kept = self._open
        super()._restart(at_s)
        self._open = kept


class TakesGarbage(StableWindows):
    """A planted bug: a reading from the past is taken."""

    def add(self, reading: Reading, now_s: float) -> Window | None:
        self._last_at_s = float("-inf")
        return super().add(reading, now_s)


@pytest.mark.parametrize("planted", [ForgetsTheWarmUp, MixesSizes, TakesGarbage])
def test_a_planted_bug_is_found(planted: type[StableWindows]) -> None:
    class Machine(WindowMachine):
        windows_class = planted

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(Machine, settings=HUNT)


@given(st.lists(st.floats(0.9, 1.1), min_size=6, max_size=6), st.lists(st.floats(0.01, 50), min_size=2, max_size=2))
def test_a_quarter_of_wild_readings_does_not_move_a_window(noise: list[float], wild: list[float]) -> None:
    speeds = [100 * factor for factor in noise]
    speeds[2:2], speeds[5:5] = [100 * wild[0]], [100 * wild[1]]
    windows = StableWindows(replace(RULES, drift=10.0, warm_up_s=0.0))
    made = [windows.add(reading(float(at), JobSize(2, 1), speed), at) for at, speed in enumerate(speeds)]
    assert made[:-1] == [None] * 7
    assert made[-1] is not None
    assert 85 <= made[-1].samples_per_s <= 115


def test_a_job_that_has_not_settled_gives_no_window_but_in_the_end() -> None:
    windows = StableWindows()
    # It becomes faster by a tenth each second, for a while.
    speeds = [100 * 1.1 ** min(at, 20) for at in range(60)]
    made = [windows.add(reading(float(at), JobSize(2, 1), speed), at) for at, speed in enumerate(speeds)]
    first = next(window for window in made if window is not None)
    assert first.samples_per_s == pytest.approx(speeds[-1], rel=0.3)
    never = StableWindows()
    restless = [never.add(reading(float(at), JobSize(2, 1), 100 * 1.5**at), at) for at in range(40)]
    assert any(restless)


def test_a_window_is_the_medians_of_what_is_known() -> None:
    windows = StableWindows(replace(RULES, readings=3, warm_up_s=0.0))
    made = None
    for at, (wait, cores) in enumerate([(0.1, None), (0.3, 2.0), (0.2, 4.0)]):
        made = windows.add(replace(reading(float(at), JobSize(2, 1), 20.0), input_wait_s=wait, ps_cpu_used=cores), at)
    assert made is not None
    assert made.input_wait_s == 0.2
    assert made.ps_cpu_used == median([2.0, 4.0])
    assert made.worker_cpu_used is None
    assert made.duration_s == 2.0
