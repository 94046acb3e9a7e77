"""The replay that sizing is judged by: the same each time, fair to each policy, and its oracle is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.report import Report
from benchmarks.sizing import POLICIES
from benchmarks.sizing_replay.jobs import SETS, make_job
from benchmarks.sizing_replay.points import FILE, load_points, measure_points
from benchmarks.sizing_replay.policies import Elastane, Request, Thresholds, free_completion_s
from benchmarks.sizing_replay.replay import replay

from elastane.model.errors import InvalidInput


def test_a_replay_is_the_same_each_time_and_nobody_beats_the_oracle() -> None:
    for number in range(2):
        job = make_job("choose", number)
        outcomes = replay(job, POLICIES)
        assert outcomes == replay(make_job("choose", number), POLICIES)
        for outcome in outcomes.values():
            assert outcome.completed_s >= 0.999 * free_completion_s(job)
            assert job.budget.allows(outcome.last_size)


def test_on_a_few_jobs_the_rules_are_near_the_oracle_and_before_thresholds() -> None:
    jobs = [make_job("choose", number) for number in range(4)]
    outcomes = [replay(job, (Request(), Thresholds(), Elastane())) for job in jobs]
    ours, thresholds = (sum(one[name].completed_s for one in outcomes) for name in ("elastane", "thresholds"))
    assert ours < 0.9 * thresholds
    assert ours < 1.2 * sum(free_completion_s(job) for job in jobs)


def test_no_job_is_in_both_sets() -> None:
    apart = abs(SETS["judge"] - SETS["choose"])
    assert apart >= 100_000
    assert make_job("judge", 0) != make_job("choose", 0)


def test_the_measured_points_are_predicted() -> None:
    report = Report()
    measure_points(report, FILE, repeats=1)
    for panel in ("a-top", "b-top", "c-top"):
        points = len([point for point in load_points(FILE) if point.panel == panel])
        assert report.row("leave one out", panel=panel, points=points).median("mape_percent") <= 10


def test_a_file_of_another_shape_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text("panel,workers,ps,worker_cpu,ps_cpu\na,1,1,,\n")
    with pytest.raises(InvalidInput, match="no column throughput_1e5_samples_per_s"):
        load_points(file)
    file.write_text("panel,workers,ps,worker_cpu,ps_cpu,throughput_1e5_samples_per_s\na,one,1,,,0.5\n")
    with pytest.raises(InvalidInput, match="one"):
        load_points(file)
