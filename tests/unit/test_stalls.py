"""What a change of the world cost, from what the workers say of their steps; the time is an argument."""

from __future__ import annotations

from elastane.core.stalls import SEEN_S, Stall, StallMeter
from elastane.model.ids import NodeName

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


def measured() -> StallMeter:
    """Two workers with steps of 50 ms."""
    meter = StallMeter()
    for node in (A, B):
        assert meter.heard(node, 0.05, 0.06, now=0.0) is None
    return meter


def test_the_longest_step_of_those_who_stay_counts_beyond_a_usual_one() -> None:
    meter = measured()
    assert meter.coming([A, B]) is None
    assert meter.heard(A, 0.06, 0.3, now=1.0) is None
    meter.settled(2, [A, B, C], now=1.5)
    assert meter.heard(C, 0.07, 9.0, now=2.1) is None
    assert meter.heard(A, 0.07, 0.09, now=2.1) is None
    stall = meter.heard(B, 0.07, 0.08, now=2.2)
    assert stall is not None
    assert (stall.version, stall.size, stall.step_s) == (2, 3, 0.05)
    assert round(stall.stall_s, 9) == 0.25


def test_a_word_right_after_the_change_is_waited_past() -> None:
    meter = measured()
    meter.coming([A, B])
    meter.settled(2, [A], now=1.0)
    assert meter.heard(A, 0.05, 0.05, now=1.0 + SEEN_S / 2) is None
    assert meter.heard(A, 0.05, 0.04, now=2.0) == Stall(2, 2, 1, 0.0, 0.05)


def test_a_next_change_ends_the_measurement_of_the_last() -> None:
    meter = measured()
    meter.coming([A, B])
    meter.settled(2, [A, B, C], now=1.0)
    meter.heard(A, 0.05, 0.15, now=1.6)
    stall = meter.coming([A, B, C])
    assert stall is not None
    assert (stall.version, round(stall.stall_s, 9)) == (2, 0.1)
    assert meter.coming([A, B, C]) is None


def test_a_first_world_costs_nobody_anything() -> None:
    meter = StallMeter()
    assert meter.coming([]) is None
    meter.settled(1, [A, B], now=1.0)
    assert meter.heard(A, 0.05, 5.0, now=2.0) is None
    assert meter.heard(B, 0.05, 5.0, now=2.0) is None


def test_nothing_is_said_of_a_world_in_which_nobody_stayed() -> None:
    meter = measured()
    meter.coming([A, B])
    meter.settled(2, [C], now=1.0)
    assert meter.heard(C, 0.05, 5.0, now=2.0) is None


def test_worlds_that_follow_each_other_fast_are_measured_together() -> None:
    meter = measured()
    meter.coming([A, B])
    meter.settled(2, [A], now=1.0)
    assert meter.coming([A]) is None
    meter.settled(3, [A, C], now=1.2)
    stall = meter.heard(A, 0.05, 0.15, now=2.0)
    assert stall is not None
    assert (stall.first, stall.version, stall.size, round(stall.stall_s, 9)) == (2, 3, 2, 0.1)
