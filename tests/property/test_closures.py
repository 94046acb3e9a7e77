"""The rules of closures under every order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings

from elastane.core.closures import ClosureRules
from elastane.model.errors import ClosureFailedWorkers, IllegalTransition
from tests.property.closure_machine import MOST_LOSSES, ClosureMachine

TestClosures = ClosureMachine.TestCase
TestClosures.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


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
