"""A job that is sized by the rules, and every rule of the search checked by hand at each decision."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from elastane.core.size_search import RULES, SearchRules, decide
from elastane.model.sizing import Budget, Change, Decision, JobKind, JobSize, Window

WINDOW_S = 5.0


class SizingMachine(RuleBasedStateMachine):
    """Runs a job of made-up speed, asks for decisions at any time, and carries them out."""

    asked_by: SearchRules = RULES
    """What is asked with; the checks are always by the right ones."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.windows: list[Window] = []
        self.changes: list[Change] = []
        self.slowness = 1.0

    @initialize(
        kind=st.sampled_from(JobKind),
        fixed_s=st.sampled_from([0.01, 0.1, 1.0]),
        each_s=st.sampled_from([0.0, 0.01, 0.1]),
        load_s=st.sampled_from([0.0, 0.1, 1.0]),
        max_workers=st.integers(1, 40),
        max_ps=st.integers(1, 6),
        cost_s=st.sampled_from([0.0, 2.0, 30.0]),
        remaining_s=st.sampled_from([10.0, 100.0, 1e4, 1e6]),
    )
    def begin(
        self,
        kind: JobKind,
        fixed_s: float,
        each_s: float,
        load_s: float,
        max_workers: int,
        max_ps: int,
        cost_s: float,
        remaining_s: float,
    ) -> None:
        by_servers = kind is JobKind.PARAMETER_SERVER
        self.kind, self.cost_s = kind, cost_s
        self.terms = (fixed_s, each_s, load_s if by_servers else 0.0)
        self.budget = Budget(max_workers, max_ps=max_ps if by_servers else 0, min_ps=1 if by_servers else 0)
        self.size = JobSize(1, 1 if by_servers else 0)
        self.remaining = remaining_s * self._speed(self.size)

    def _speed(self, size: JobSize) -> float:
        fixed_s, each_s, load_s = self.terms
        step_s = fixed_s + each_s * size.workers + load_s * size.workers / max(size.ps, 1)
        return size.workers * 10 / (self.slowness * step_s)

    @rule(noise=st.floats(0.97, 1.03), count=st.integers(1, 4))
    def train(self, noise: float, count: int) -> None:
        for _ in range(count):
            self.now_s += WINDOW_S
            speed = self._speed(self.size) * noise
            step_s = self.size.workers * 10 / speed
            share = 1 / self.size.ps if self.size.ps else 0.0
            self.windows.append(
                Window(self.now_s, self.size, 10, speed, step_s, hottest_share=share, duration_s=WINDOW_S)
            )

    @rule(count=st.integers(2, 4))
    def train_and_ask(self, count: int) -> None:
        """What a job does nearly always."""
        self.train(1.0, count)
        self.ask()

    @rule(slowness=st.sampled_from([0.5, 1.0, 3.0]))
    def the_machines_change(self, slowness: float) -> None:
        self.slowness = slowness

    @rule(max_workers=st.integers(1, 40))
    def the_budget_changes(self, max_workers: int) -> None:
        self.budget = replace(self.budget, max_workers=max_workers)

    @rule(seconds=st.sampled_from([1.0, 60.0, 3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.windows)
    @rule()
    def ask(self) -> None:
        answer = decide(
            self.kind, self.windows, self.changes, self.budget, self.remaining, now_s=self.now_s, rules=self.asked_by
        )
        assert answer == decide(
            self.kind, self.windows, self.changes, self.budget, self.remaining, now_s=self.now_s, rules=self.asked_by
        )
        assert answer.reason
        assert "\n" not in answer.reason
        here = self._windows_here()
        fallen = self._fell_short()
        if not isinstance(answer, Decision):
            assert len(here) < 3 or (self.budget.allows(self.size) and not fallen), answer.reason
            return
        assert len(here) >= 3, "decided before three windows"
        assert answer.before == self.size
        if not self.budget.allows(self.size):
            assert self.budget.allows(answer.size)
        elif fallen:
            assert answer.is_rollback, "what did not deliver was kept"
            assert answer.size == self.changes[-1].before
        else:
            self._check_worth(answer)
        self._carry_out(answer)

    def _check_worth(self, answer: Decision) -> None:
        assert not answer.is_rollback
        assert answer.size != self.size
        assert self.budget.allows(answer.size)
        known = [self.size, *(window.size for window in self.windows)]
        for what in ("workers", "ps"):
            assert getattr(answer.size, what) <= 2 * max(getattr(size, what) for size in known), "more than double"
        speed = median(window.samples_per_s for window in self._windows_here()[-3:])
        cost_s = max(self.cost_s, 0.5) if self.changes else 30.0
        gained_s = self.remaining / speed - self.remaining / answer.prediction.low
        assert gained_s >= 3 * cost_s - 1e-6, "it does not pay"
        for what in ("workers", "ps"):
            self._check_cool(what, getattr(answer.size, what) - getattr(self.size, what))

    def _check_cool(self, what: str, step: int) -> None:
        """A direction rests after each change in it, longer after one in the other, and ever longer after failures."""
        failures = 0
        for change in self.changes:
            moved = getattr(change.after, what) - getattr(change.before, what)
            if moved * step > 0:
                failures += change.rolled_back
                rest_s = 2.0**failures * (10 if change.rolled_back else 2) * change.cost_s
                assert self.now_s >= change.at_s + rest_s, "the direction is not cool"
            if moved * step < 0 and not change.rolled_back:
                assert self.now_s >= change.at_s + 10 * change.cost_s, "the opposite direction is not cool"

    def _carry_out(self, answer: Decision) -> None:
        self.now_s += self.cost_s
        if answer.is_rollback:
            self.changes[-1] = replace(self.changes[-1], rolled_back=True)
        self.changes.append(Change(self.now_s, self.size, answer.size, answer.prediction, self.cost_s))
        self.size = answer.size

    def _windows_here(self) -> list[Window]:
        since_s = self.changes[-1].at_s if self.changes else 0.0
        return [one for one in self.windows if one.size == self.size and one.at_s - one.duration_s >= since_s]

    def _fell_short(self) -> bool:
        if not self.changes:
            return False
        last = self.changes[-1]
        is_undoing = len(self.changes) > 1 and self.changes[-2].rolled_back
        before = [one.samples_per_s for one in self.windows if one.size == last.before and one.at_s <= last.at_s]
        here = self._windows_here()
        if is_undoing or not before or len(here) < 3 or not self.budget.allows(last.before):
            return False
        old, new = median(before[-3:]), median(one.samples_per_s for one in here[:3])
        short = new - old < 0.5 * (last.predicted.samples_per_s - old) and last.predicted.samples_per_s > old
        return short and (new < old or last.after.cpu > last.before.cpu)
