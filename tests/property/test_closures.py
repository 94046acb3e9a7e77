"""The rules of closures under every order of events."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from elastane.core.closures import ClosureRules, WorkerState
from elastane.model.errors import ClosureFailedWorkers, IllegalTransition
from tests.property.closure_machine import MOST_LOSSES, ClosureMachine

RUNS = settings(max_examples=100, stateful_step_count=50, deadline=None)
HUNT = settings(RUNS, max_examples=1000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_every_closure_leaves_once_whatever_happens() -> None:
    run_state_machine_as_test(ClosureMachine, settings=RUNS)


class DropsOnStop(ClosureRules[int]):
    """A planted bug: a worker that is told to stop lets go of what it has in hand."""

    def stop(self, worker: int) -> None:
        super().stop(worker)
        if self._hands.pop(worker, None) is not None:
            self._states[worker] = WorkerState.STOPPED


class RunsTwiceOnStop(ClosureRules[int]):
    """A planted bug: what a stopping worker has in hand is given to others, and it finishes it all the same."""

    def stop(self, worker: int) -> None:
        super().stop(worker)
        if worker in self._hands:
            self._queued.appendleft(self._hands[worker])


class KeepsQueueAfterFailure(ClosureRules[int]):
    """A planted bug: the first error does not cancel what is queued."""

    def cancel(self) -> tuple[int, ...]:
        return ()


@pytest.mark.parametrize("planted", [DropsOnStop, RunsTwiceOnStop, KeepsQueueAfterFailure])
def test_the_machine_finds_planted_bugs(planted: type[ClosureRules[int]]) -> None:
    class Machine(ClosureMachine):
        make = planted

    with pytest.raises((AssertionError, IllegalTransition)):
        run_state_machine_as_test(Machine, settings=HUNT)


def test_a_closure_that_is_lost_with_every_worker_fails_in_the_end() -> None:
    rules: ClosureRules[str] = ClosureRules(10, MOST_LOSSES)
    rules.put("deadly")
    rules.put("harmless")
    cancelled: tuple[str, ...] = ()
    for worker in range(MOST_LOSSES + 1):
        assert cancelled == ()
        rules.admit(worker)
        assert rules.take(worker) == "deadly"
        cancelled = rules.lose(worker, "killed")
    assert cancelled == ("deadly", "harmless")
    assert isinstance(rules.take_error(), ClosureFailedWorkers)
    assert rules.repeats == MOST_LOSSES


def test_a_lost_worker_has_no_way_back_and_a_running_one_is_not_forgotten() -> None:
    rules: ClosureRules[str] = ClosureRules(10, MOST_LOSSES)
    rules.admit(0)
    with pytest.raises(IllegalTransition, match="worker 0 is running"):
        rules.forget(0)
    rules.lose(0, "killed")
    with pytest.raises(IllegalTransition, match="worker 0 is lost"):
        rules.restart(0)
