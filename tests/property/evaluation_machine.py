"""A model of evaluation that is too simple to be wrong: every version that is on the disk, and every result."""

from __future__ import annotations

import json
import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.core.evaluation import (
    Decision,
    Drop,
    Evaluate,
    Evaluations,
    Export,
    Finished,
    Over,
    StopTraining,
    Take,
    TakeFinal,
)
from elastane.model.evaluation import EvaluationSpec, Goal, Mode

values = st.one_of(st.integers(-3, 3).map(float), st.just(math.nan))


class EvaluationMachine(RuleBasedStateMachine):
    """Drives the rules with every event there is. Training makes steps all the while."""

    evaluations_class: type[Evaluations] = Evaluations

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.step = 0
        self.wanted = 0
        self.on_disk: set[int] = set()
        self.running: int | None = None
        self.values: list[tuple[int, float]] = []
        self.stopped = 0
        self.ended = False
        self.final_wanted = False
        self.exports: list[int] = []
        self.overs = 0
        self.taken_at = 0.0

    @initialize(
        every_steps=st.sampled_from([None, 1, 3]),
        every_s=st.sampled_from([None, 10.0]),
        at_end=st.booleans(),
        mode=st.sampled_from([None, *Mode]),
        early_stop=st.sampled_from([None, 1, 2]),
        export=st.sampled_from([None, "out"]),
    )
    def describe(
        self,
        every_steps: int | None,
        every_s: float | None,
        at_end: bool,
        mode: Mode | None,
        early_stop: int | None,
        export: str | None,
    ) -> None:
        self.spec = EvaluationSpec(
            size=10,
            shard_size=5,
            metrics=("m",),
            every_steps=every_steps,
            every_s=every_s,
            at_end=at_end,
            best=None if mode is None else Goal("m", mode),
            early_stop=None if mode is None else early_stop,
            export=export,
        )
        self.evaluations = self.evaluations_class(self.spec, self.now)
        self._carry_out(self.evaluations.begin(self.now))

    @precondition(lambda self: not self.ended)
    @rule(steps=st.integers(1, 4))
    def steps_are_made(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            if self.wanted and self.step % self.wanted == 0:
                self._take(self.step)

    @rule(seconds=st.sampled_from([1.0, 9.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.evaluations.next_tick()
        if due is not None and due <= self.now:
            self._carry_out(self.evaluations.tick(self.now))

    @rule(back=st.integers(0, 4))
    def a_version_comes_that_was_taken_before(self, back: int) -> None:
        """A worker that is no longer the first had begun to write it."""
        step = max(0, self.step - back)
        if step not in self.on_disk and not (self.wanted or self.final_wanted):
            self._take(step)
            assert step not in self.on_disk

    @precondition(lambda self: self.running is not None)
    @rule(value=values)
    def it_is_evaluated(self, value: float) -> None:
        assert self.running is not None
        step, self.running = self.running, None
        assert self.evaluations.evaluated(step + 1, {"m": 0.0}, self.now) == []
        before = self._best()
        self.values.append((step, value))
        decisions = self.evaluations.evaluated(step, {"m": value}, self.now)
        (finished,) = [decision for decision in decisions if isinstance(decision, Finished)]
        assert finished.result.step == step
        assert finished.best == (self.spec.best is not None and self._best() != before)
        self._carry_out(decisions)

    @precondition(lambda self: self.wanted and not self.ended)
    @rule(several=st.lists(values, min_size=1, max_size=4))
    def training_and_evaluation_go_on(self, several: list[float]) -> None:
        for value in several:
            if self.wanted:
                self.steps_are_made(self.wanted)
            if self.running is not None:
                self.it_is_evaluated(value)

    @rule(chance=st.integers(0, 7))
    def training_may_end(self, chance: int) -> None:
        if chance == 0:
            self._end_training()

    def _end_training(self) -> None:
        self.ended = True
        self._carry_out(self.evaluations.training_ended(self.step, self.now))

    @precondition(lambda self: self.final_wanted)
    @rule(lost=st.booleans())
    def the_final_version_comes_or_is_lost(self, lost: bool) -> None:
        self.final_wanted = False
        if lost:
            self._carry_out(self.evaluations.no_final(self.now))
        else:
            self._take(self.step)
            assert self.running == self.step

    @precondition(lambda self: self.exports and not self.overs)
    @rule()
    def it_is_exported(self) -> None:
        self._carry_out(self.evaluations.exported(self.now))

    @rule()
    def the_master_dies_and_another_goes_on(self) -> None:
        state = json.loads(json.dumps(self.evaluations.snapshot()))
        self.evaluations = self.evaluations_class(self.spec, 0.0)
        self.evaluations.load(state, self.now)
        # As text, for what is not a number is not equal to itself.
        assert json.dumps(self.evaluations.snapshot()) == json.dumps(state)

    @invariant()
    def the_disk_holds_what_is_needed_and_no_more(self) -> None:
        if not hasattr(self, "evaluations"):
            return
        best = self._best()
        needed = {step for step in (self.running, best) if step is not None}
        assert self.on_disk == needed
        assert (None if self.evaluations.best is None else self.evaluations.best.step) == best
        assert self.evaluations.running == self.running

    @invariant()
    def versions_are_wanted_when_they_are_due(self) -> None:
        if not hasattr(self, "evaluations"):
            return
        if self.ended or self.stopped or self.running is not None:
            assert not self.wanted
        elif self.spec.every_s is not None and self.now >= self.taken_at + self.spec.every_s:
            assert self.wanted == 1
        else:
            assert self.wanted == (self.spec.every_steps or 0)

    @invariant()
    def training_is_stopped_when_nothing_improves(self) -> None:
        if not hasattr(self, "evaluations") or self.spec.early_stop is None:
            return
        if not self.ended:
            assert bool(self.stopped) == (self._longest_without_better() >= self.spec.early_stop)
        assert self.stopped <= 1

    def teardown(self) -> None:
        """Whatever happened, the job comes to its end: once, with its last version evaluated and its best exported."""
        if not hasattr(self, "evaluations"):
            return
        lost = self.ended and not self.final_wanted and self.evaluations._final_asked
        self._end_training()
        for _ in range(4):
            if self.running is not None:
                self.it_is_evaluated(1.0)
            if self.final_wanted:
                self.the_final_version_comes_or_is_lost(False)
            if self.exports and not self.overs:
                self.it_is_exported()
        assert self.overs == 1
        assert self.evaluations.over
        if self.spec.at_end and not lost:
            assert self.values[-1][0] == self.step
        if self.spec.export is None or self._best() is None:
            assert not self.exports
        else:
            assert self.exports == [self._best()]

    def _take(self, step: int) -> None:
        self.on_disk.add(step)
        decisions = self.evaluations.taken(step, self.now)
        if Evaluate(step) in decisions:
            self.taken_at = self.now
        self._carry_out(decisions)

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Take(multiple_of):
                    self.wanted = multiple_of
                case TakeFinal():
                    assert self.ended
                    self.final_wanted = True
                case Evaluate(step):
                    assert self.running is None
                    assert step in self.on_disk
                    self.running = step
                case Drop(step):
                    self.on_disk.remove(step)
                case StopTraining():
                    self.stopped += 1
                case Export(result):
                    assert result.step in self.on_disk
                    self.exports.append(result.step)
                case Over():
                    assert self.ended
                    self.overs += 1
                case Finished():
                    pass

    def _best(self) -> int | None:
        if self.spec.best is None:
            return self.values[-1][0] if self.values else None
        sign = 1 if self.spec.best.mode is Mode.MAX else -1
        real = [(sign * value, -place) for place, (_, value) in enumerate(self.values) if not math.isnan(value)]
        return self.values[-max(real)[1]][0] if real else None

    def _longest_without_better(self) -> int:
        assert self.spec.best is not None
        best: float | None = None
        longest = now = 0
        for _, value in self.values:
            if self.spec.best.improves(value, best):
                best, now = value, 0
            else:
                now += 1
            longest = max(longest, now)
        return longest
