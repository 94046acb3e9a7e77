"""The master is killed at a named moment: the steps go on, another takes its place, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.faults import fail_at
from tests.integration.harness import Finished, Jobs, every_sample_once
from tests.integration.test_training import assert_nothing_lost, sizes, train
from tests.training_faults import fail_at_phase


def assert_only_the_master_died(done: Finished) -> None:
    assert done.of("master_restarted")
    assert {event["reason"] for event in done.of("node_ended")} == {"done"}, done.stdout
    assert not done.of("shard_returned")


def test_leases_and_progress_outlive_the_master(jobs: Jobs) -> None:
    kills = [fail_at(node="worker-0", step=step, how="kill-master") for step in (50, 150, 250)]
    done = jobs.run("--samples=20000", "--step-ms=2", *kills, options=("--workers=2",))
    assert done.code == 0, done.stderr + done.stdout
    assert done.committed() == every_sample_once(20_000)
    assert len(done.of("master_restarted")) == 3
    assert_only_the_master_died(done)


@pytest.mark.slow
def test_the_workers_keep_the_journal_of_a_master_whose_disk_is_lost(jobs: Jobs) -> None:
    losses = [fail_at(node="worker-0", step=step, how="lose-journal") for step in (50, 250)]
    done = jobs.run("--samples=20000", "--step-ms=2", *losses, options=("--workers=3", "--journal-copies=2"))
    assert done.code == 0, done.stderr + done.stdout
    assert done.committed() == every_sample_once(20_000)
    assert len(done.of("journal_found")) == len(done.of("master_restarted")) == 2
    assert_only_the_master_died(done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "size", "phase"), [(0, 1, "snapshot"), (-1, 0, "follow"), (0, 1, "move"), (0, 2, "moved")]
)
@pytest.mark.parametrize("how", ["kill-master", "lose-journal"])
def test_the_master_dies_while_the_world_changes(jobs: Jobs, rank: int, size: int, phase: str, how: str) -> None:
    join = fail_at_phase(rank=0, size=1, phase="step", how="join=2")
    kill = fail_at_phase(rank=rank, size=size, step=0, phase=phase, how=how)
    done = train(jobs, "--until", "1,2", join, kill, workers="1:2", copies=2 if how == "lose-journal" else 0)
    assert_only_the_master_died(done)
    assert_nothing_lost(done)
    assert 2 in sizes(done)


@pytest.mark.slow
def test_a_worker_that_dies_while_there_is_no_master_is_replaced(jobs: Jobs) -> None:
    both = fail_at_phase(rank=1, size=2, phase="finish", how="kill-master-and-self")
    done = train(jobs, "--until", "2,2", both, workers="2", restarts=1)
    assert_nothing_lost(done)
    assert done.of("node_ended", reason="killed")
    assert len(done.of("master_restarted")) == 1
    assert len(done.of("node_attended", node="worker-2")) == 1, "two processes are the same node"


@pytest.mark.slow
def test_training_ends_with_the_same_weights_though_its_master_dies(jobs: Jobs) -> None:
    data = (
        "--samples",
        "1600",
        "--global-batch-size",
        "16",
        "--deterministic",
        "--step-ms",
        "5",
        "--case",
        "exactly-once",
    )
    kills = [fail_at_phase(rank=0, size=2, step=step, phase="step", how="kill-master") for step in (20, 50, 80)]
    done = train(jobs, *data, *kills, workers="2")
    assert_nothing_lost(done)
    assert_only_the_master_died(done)
    assert done.committed() == every_sample_once(1600)
    assert "seen 1.000000000 to 1.000000000" in done.stdout
