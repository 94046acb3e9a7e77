"""Which size a job should have next, if any: the best one inside its budget that is worth going to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from elastane.core import size_words as words
from elastane.core.size_candidates import Reach, candidates, closed, directions, inside
from elastane.core.step_terms import SHIFT, Array
from elastane.core.throughput import ThroughputModel, fit
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
    Window,
)


@dataclass(frozen=True)
class SearchRules:
    """When a change is worth making."""

    pays_times: float = 3.0
    """The lower bound of what a change gains over the remaining work must be so many times what it costs."""
    stable_windows: int = 3
    """So many windows at a size before the next change."""
    growth: float = 2.0
    """At most so many times the largest size seen, unless history covers more."""
    delivered_share: float = 0.5
    """A change that gave less than this share of what was predicted is rolled back."""
    assumed_cost_s: float = 30.0
    """What a change costs until one was measured."""
    least_cost_s: float = 0.5
    """No change counts as cheaper than this, even if none of it was measured."""
    again_costs: float = 2.0
    """A direction is closed for so many times its cost after a change."""
    reverse_costs: float = 10.0
    """The opposite direction is closed for so many; and one that was rolled back, doubled with each time."""
    near: float = 0.02
    """Of sizes that are so much slower than the best one, the least is taken."""


RULES = SearchRules()


def decide(
    kind: JobKind,
    windows: Sequence[Window],
    changes: Sequence[Change],
    budget: Budget,
    remaining_samples: float | None,
    history: History = NO_HISTORY,
    now_s: float = 0.0,
    rules: SearchRules = RULES,
) -> Decision | NoDecision:
    """What to do next with a running job; a pure function of what was observed and done, both oldest first.

    The present size is that of the newest change, or of the newest window where nothing was changed since. Of a job
    whose `remaining_samples` nobody knows, it is assumed to have half of its time before it.
    """
    last = changes[-1] if changes else None
    present = _present_size(windows, last)
    if present is None:
        return NoDecision("nothing was observed yet")
    here = [
        window
        for window in windows
        if window.size == present and (last is None or window.at_s - window.duration_s >= last.at_s)
    ]
    if len(here) < rules.stable_windows:
        return NoDecision(f"{len(here)} of {rules.stable_windows} stable windows at {present}")
    speed = median(window.samples_per_s for window in here[-rules.stable_windows :])
    model = fit(kind, windows, history)
    search = _Search(model, present, speed, budget, history, windows, changes, now_s, rules)
    if not budget.allows(present):
        return search.into_budget()
    if last is not None and budget.allows(last.before):
        fallen = _fallen_short(windows, changes, here, rules)
        if fallen is not None:
            return search.back(last, *fallen)
    remaining_s = now_s if remaining_samples is None else remaining_samples / speed
    return search.best(remaining_s)


def first_size(kind: JobKind, budget: Budget, history: History) -> Decision | NoDecision:
    """Where a job should begin, from what is known of like jobs; no decision where nothing is."""
    if not history.windows:
        if history.last_size is None:
            return NoDecision("no job like this one is known")
        size = inside(history.last_size, budget)
        return Decision(size, f"{size}: where a job like this one ended", Prediction(0.0, 0.0, 0.0))
    model = fit(kind, (), history)
    if history.last_size is not None:
        size = inside(history.last_size, budget)
        why = "where a job like this one ended"
    else:
        known = [prior.window.size for prior in history.windows]
        start = inside(max(known, key=lambda size: (size.workers, size.ps)), budget)
        sizes = [start, *candidates(start, budget, Reach.of(start, (), history, 1.0))]
        best, _, _ = model.predict_many(sizes)
        size = _least_of(sizes, best, RULES.near)
        why = "the best by what like jobs gave"
    prediction = model.predict(size)
    seen = f"{model.observations} observation{'' if model.observations == 1 else 's'}"
    line = f"{size}: {why}, {words.speed(prediction.samples_per_s)} samples/s expected ({seen}), {model.limit(size)}"
    return Decision(size, line, prediction, observations=model.observations)


@dataclass(frozen=True)
class _Search:
    model: ThroughputModel
    present: JobSize
    speed: float
    budget: Budget
    history: History
    windows: Sequence[Window]
    changes: Sequence[Change]
    now_s: float
    rules: SearchRules

    def best(self, remaining_s: float) -> Decision | NoDecision:
        """The best size that pays, if there is one."""
        reach = Reach.of(self.present, self.windows, self.history, self.rules.growth)
        sizes = candidates(self.present, self.budget, reach)
        shut = closed(self.changes, self.now_s, self.rules.again_costs, self.rules.reverse_costs)
        open_ = [size for size in sizes if not any(way in shut for way in directions(self.present, size))]
        if not open_:
            waits = f", {len(sizes)} are cooling down" if sizes else ""
            return NoDecision(f"{self.present}: no other size in reach{waits}")
        best, low, high = self.model.predict_many(open_, beside=self.present)
        cost_s = self._cost_s()
        gains_s = remaining_s * (1 - 1 / np.maximum(low, 1e-9))
        fresh = self._not_refuted(open_, best)
        pays = (low > 1) & (gains_s >= self.rules.pays_times * cost_s) & fresh
        if not pays.any():
            index = int(np.argmax(best))
            prediction = self._prediction(best[index], low[index], high[index])
            gained = words.gain(self.speed, prediction, self.model.observations)
            what = f"{words.change(self.present, open_[index])} would give {gained}"
            if best[index] <= 1:
                return NoDecision(f"{self.present}: the best size in reach; {what}")
            if not fresh[index]:
                return NoDecision(f"{self.present}: stays; {what}, which was not enough when it was tried")
            left = f"with {words.seconds(remaining_s)} of work left"
            return NoDecision(f"{self.present}: stays; {what} and cost {words.seconds(cost_s)}, {left}")
        paying = [size for size, good in zip(open_, pays, strict=True) if good]
        size = _least_of(paying, best[pays], self.rules.near)
        index = open_.index(size)
        return self._decision(size, self._prediction(best[index], low[index], high[index]), cost_s)

    def _not_refuted(self, sizes: Sequence[JobSize], best: Array) -> npt.NDArray[np.bool_]:
        """Which sizes promise more than what was not enough when a change from here was rolled back."""
        promising = np.ones(len(sizes), dtype=np.bool_)
        for change in self.changes:
            if not change.rolled_back or change.before != self.present:
                continue
            before = _speed_before(self.windows, change, self.rules.stable_windows)
            if before is None or not 1 / SHIFT < self.speed / before < SHIFT:
                continue  # Those were other times.
            enough = 1 + self.rules.delivered_share * (change.predicted.samples_per_s / before - 1)
            failed = set(directions(change.before, change.after))
            alike = np.array([bool(failed & set(directions(self.present, size))) for size in sizes])
            promising &= (best >= enough) | ~alike
        return promising

    def into_budget(self) -> Decision:
        """The job has more than it may have: the best size that it may have, whatever it costs."""
        start = inside(self.present, self.budget)
        sizes = [start, *candidates(start, self.budget, Reach.of(start, (), self.history, 1.0))]
        best, low, high = self.model.predict_many(sizes, beside=self.present)
        size = _least_of(sizes, best, self.rules.near)
        index = sizes.index(size)
        prediction = self._prediction(best[index], low[index], high[index])
        gained = words.gain(self.speed, prediction, self.model.observations)
        line = f"{words.change(self.present, size)}: {gained}, the budget allows no more"
        return self._made(size, line, prediction)

    def back(self, last: Change, before: float, realised: float) -> Decision:
        """The last change did not give what it was to give: undo it."""
        predicted = last.predicted.samples_per_s
        line = (
            f"{words.change(self.present, last.before)}: rolled back, {last.after} gave {words.speed(realised)}"
            f" samples/s of {words.speed(predicted)} predicted,"
            f" {100 * (realised - before) / (predicted - before):.0f}% of the gain"
        )
        return self._made(last.before, line, Prediction(before, before, before), is_rollback=True)

    def _decision(self, size: JobSize, prediction: Prediction, cost_s: float) -> Decision:
        gained = words.gain(self.speed, prediction, self.model.observations)
        pays_back_s = cost_s * self.speed / (prediction.samples_per_s - self.speed)
        line = (
            f"{words.change(self.present, size)}: {gained}, {self.model.limit(size)},"
            f" pays back in {words.seconds(pays_back_s)}"
        )
        return self._made(size, line, prediction, pays_back_s)

    def _made(
        self,
        size: JobSize,
        line: str,
        prediction: Prediction,
        pays_back_s: float | None = None,
        is_rollback: bool = False,
    ) -> Decision:
        return Decision(
            size,
            line,
            prediction,
            before=self.present,
            present_samples_per_s=self.speed,
            pays_back_s=pays_back_s,
            observations=self.model.observations,
            is_rollback=is_rollback,
        )

    def _prediction(self, best: float, low: float, high: float) -> Prediction:
        return Prediction(float(best) * self.speed, float(low) * self.speed, float(high) * self.speed)

    def _cost_s(self) -> float:
        costs = [change.cost_s for change in self.changes]
        return max(median(costs), self.rules.least_cost_s) if costs else self.rules.assumed_cost_s


def _present_size(windows: Sequence[Window], last: Change | None) -> JobSize | None:
    newest = windows[-1] if windows else None
    if last is not None and (newest is None or newest.at_s <= last.at_s):
        return last.after
    return None if newest is None else newest.size


def _fallen_short(
    windows: Sequence[Window], changes: Sequence[Change], here: Sequence[Window], rules: SearchRules
) -> tuple[float, float] | None:
    """The speeds before and after the last change, if it gave too little of what was predicted."""
    last = changes[-1]
    undoes = len(changes) > 1 and changes[-2].rolled_back and last.after == changes[-2].before
    if undoes or last.rolled_back or here[0].size != last.after:
        return None
    before = _speed_before(windows, last, rules.stable_windows)
    if before is None:
        return None
    realised = last.realised_samples_per_s
    if realised is None:
        # The first ones: if the job slows down hours later, that was not the change.
        realised = median(window.samples_per_s for window in here[: rules.stable_windows])
    predicted_gain = last.predicted.samples_per_s - before
    if predicted_gain <= 0 or realised - before >= rules.delivered_share * predicted_gain:
        return None
    if realised >= before and last.after.cpu <= last.before.cpu:
        return None  # It is faster for no more nodes: going back would only cost.
    return before, realised


def _speed_before(windows: Sequence[Window], change: Change, count: int) -> float | None:
    """The job's speed before a change; None if it was not seen."""
    earlier = [one.samples_per_s for one in windows if one.size == change.before and one.at_s <= change.at_s]
    return median(earlier[-count:]) if earlier else None


def _least_of(sizes: Sequence[JobSize], speeds: Array, near: float) -> JobSize:
    """Of the sizes that are nearly the fastest, the one that takes the least."""
    enough = (1 - near) * max(speeds)
    fast = [(size.cpu, size) for size, speed in zip(sizes, speeds, strict=True) if speed >= enough]
    return min(fast, key=lambda pair: (pair[0], pair[1].workers, pair[1].ps, pair[1].worker_cpu or 0))[1]
