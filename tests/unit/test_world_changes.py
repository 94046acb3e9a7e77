"""Why worlds follow each other."""

from __future__ import annotations

import pytest

from elastane.core.world_changes import WorldCause, WorldChange, WorldChanges, cause_of
from elastane.model.ids import NodeName

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


@pytest.mark.parametrize(
    ("before", "after", "recover", "cause"),
    [
        ((), (A,), False, WorldCause.START),
        ((A,), (A, B), False, WorldCause.JOIN),
        ((A, B), (A,), False, WorldCause.LEAVE),
        ((A, B), (A, C), False, WorldCause.REPLACE),
        ((A, B), (A,), True, WorldCause.CRASH),
        ((A, B), (A, C), True, WorldCause.CRASH),
        ((A, B), (A, B), True, WorldCause.REPAIR),
        ((A, B), (B, A), False, WorldCause.REPAIR),
    ],
)
def test_the_cause_of_a_change_is_who_came_and_who_went(
    before: tuple[NodeName, ...], after: tuple[NodeName, ...], recover: bool, cause: WorldCause
) -> None:
    assert cause_of(before, after, recover=recover) is cause


def test_a_change_lasts_from_the_first_world_that_was_published_for_it() -> None:
    changes = WorldChanges()
    changes.published(0.0, recover=False)
    assert changes.settled((A, B), 0.5) == WorldChange(WorldCause.START, 0.5)
    changes.published(2.0, recover=True)
    changes.published(2.5, recover=False)
    assert changes.settled((A,), 3.0) == WorldChange(WorldCause.CRASH, 1.0)
    changes.published(4.0, recover=False)
    assert changes.settled((A, C), 4.25) == WorldChange(WorldCause.JOIN, 0.25)
