"""What cannot be true of a job is refused by name, with its value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastane.model.errors import InvalidInput
from elastane.model.sizing import Budget, JobSize, Window, check_size, check_window

NAN, INFINITE = float("nan"), float("inf")
GOOD = Window(10.0, JobSize(4, 2, 2.0, 1.0), 64, 1000.0, 0.256, hottest_share=0.5, ps_cpu_used=0.4, duration_s=5.0)


def test_what_can_be_true_is_taken() -> None:
    check_window(GOOD, now_s=10.0)
    check_window(replace(GOOD, size=JobSize(1), hottest_share=0.0, ps_cpu_used=None), now_s=10.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples_per_s", NAN),
        ("samples_per_s", 0.0),
        ("samples_per_s", -5.0),
        ("samples_per_s", 1e15),
        ("step_s", INFINITE),
        ("step_s", 1e6),
        ("batch_size", 0),
        ("input_wait_s", -0.1),
        ("pull_s", NAN),
        ("push_s", 1e9),
        ("sync_s", -INFINITE),
        ("hottest_share", 1.5),
        ("worker_cpu_used", -1.0),
        ("ps_cpu_used", 1e6),
        ("duration_s", -1.0),
        ("at_s", 12.0),
        ("at_s", -1.0),
        ("at_s", NAN),
        ("batch_size", "64"),
        ("step_s", True),
    ],
)
def test_garbage_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        check_window(replace(GOOD, **{field: value}), now_s=10.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", 0), ("workers", 10**6), ("workers", 2.5), ("ps", -1), ("worker_cpu", 0.0), ("ps_cpu", NAN)],
)
def test_a_size_that_cannot_be_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"^size.{field}: "):
        check_size(replace(GOOD.size, **{field: value}))  # type: ignore[arg-type]


def test_a_budget_counts_nodes_and_cores() -> None:
    budget = Budget(max_workers=8, max_ps=2, min_ps=1, cpu=20.0)
    assert budget.allows(JobSize(8, 2, 2.0, 2.0))
    assert not budget.allows(JobSize(8, 2, 2.0, 3.0))
    assert not budget.allows(JobSize(9, 1, 1.0, 1.0))
    assert not budget.allows(JobSize(4, 0))


def test_a_size_reads_like_a_sentence() -> None:
    assert str(JobSize(1)) == "1 worker"
    assert str(JobSize(4, 2, 2.0, 0.5)) == "4 workers of 2 cores, 2 PS of 0.5 cores"
