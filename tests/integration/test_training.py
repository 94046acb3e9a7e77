"""Elastic all-reduce: real workers join, leave and die in the middle of training, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Finished, Jobs, every_sample_once
from tests.training_faults import fail_at_phase

SCRIPT = str(Path(__file__).with_name("training_script.py"))

CASES = [
    "sgd-momentum",
    "adam",
    "adamw",
    "adafactor",
    "scheduler",
    "clipping",
    "accumulation",
    "batch-norm",
    "tied",
    "frozen",
    "scaler",
]
"""Every model of the script has parameters that no gradient comes to, too."""


def train(jobs: Jobs, *arguments: str, workers: str = "3", restarts: int = 0, **settings: str) -> Finished:
    options = ("--check-replicas", "--workers", workers, "--restarts", str(restarts), "--heartbeat-timeout", "2")
    return jobs.run(*arguments, options=options, script=SCRIPT, **settings)


def assert_nothing_lost(done: Finished) -> None:
    """The job succeeded, no sample was in two steps, none was left out, and all replicas were equal."""
    assert done.code == 0, done.stdout + done.stderr
    committed = done.committed()
    assert set(committed.values()) <= {1}, done.stdout
    assert not done.of("position_reset")
    for event in done.of("world_settled"):
        assert len(set(event["checksums"].values())) <= 1
        assert len(event["checksums"]) == len(event["members"])


def sizes(done: Finished) -> list[int]:
    return [len(event["members"]) for event in done.of("world_settled")]


@pytest.mark.parametrize("case", CASES)
def test_a_worker_that_joins_in_the_middle_is_bit_equal(jobs: Jobs, case: str) -> None:
    join = fail_at_phase(rank=0, size=1, phase="step", how="command=scale JOB --workers 2")
    done = train(jobs, "--case", case, "--until", "1,2", join, workers="1:2")
    assert_nothing_lost(done)
    assert sizes(done)[:2] == [1, 2]
    assert "full copy" not in done.stdout


def test_an_unknown_optimizer_is_copied_and_says_so_once(jobs: Jobs) -> None:
    join = fail_at_phase(rank=0, size=1, phase="step", how="command=scale JOB --workers 2")
    done = train(jobs, "--case", "own-optimizer", "--until", "1,2", join, workers="1:2")
    assert_nothing_lost(done)
    assert sizes(done)[:2] == [1, 2]
    assert done.stdout.count("gets a full copy of the state") == 2, done.stdout  # each worker says it once


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("phase", ["begin", "backward", "sums", "finish", "finished", "advanced"])
def test_a_worker_dies_in_a_step_and_the_others_finish_it(jobs: Jobs, rank: int, phase: str) -> None:
    done = train(jobs, "--until", "3,2", fail_at_phase(rank=rank, size=3, step=10, phase=phase))
    assert_nothing_lost(done)
    assert done.of("node_ended", reason="killed")
    assert 2 in sizes(done)[sizes(done).index(3) :]


@pytest.mark.parametrize("global_batch", [(), ("--global-batch-size", "16")])
def test_all_samples_are_in_one_step_each(jobs: Jobs, global_batch: tuple[str, ...]) -> None:
    kill = fail_at_phase(rank=1, size=3, step=10, phase="finish")
    done = train(jobs, "--samples", "2003", "--epochs", "2", "--step-ms", "10", kill, *global_batch)
    assert_nothing_lost(done)
    assert done.committed() == every_sample_once(2003, 2)


def test_what_only_one_worker_did_not_finish_it_gets_from_the_others(jobs: Jobs) -> None:
    half = fail_at_phase(rank=1, size=3, step=10, phase="summed", how="break")
    done = train(jobs, "--until", "3,3", half)
    assert_nothing_lost(done)
    assert not done.of("node_ended", reason="killed")
    assert sizes(done).count(3) >= 2


@pytest.mark.parametrize("phase", ["snapshot", "move", "moved"])
def test_the_donor_dies(jobs: Jobs, phase: str) -> None:
    join = fail_at_phase(rank=0, size=2, phase="step", how="command=scale JOB --workers 3")
    kill = fail_at_phase(rank=0, size=3 if phase == "moved" else 2, step=6, phase=phase)
    done = train(jobs, "--until", "2,2", join, kill, workers="2:3")
    assert_nothing_lost(done)
    assert done.of("node_ended", reason="killed")


@pytest.mark.parametrize("phase", ["follow-state", "follow"])
def test_the_newcomer_dies_before_it_is_a_member_and_nobody_stops(jobs: Jobs, phase: str) -> None:
    join = fail_at_phase(rank=0, size=2, phase="step", how="command=scale JOB --workers 3")
    done = train(
        jobs, "--until", "2,3", join, fail_at_phase(rank=-1, size=0, step=0, phase=phase), workers="2:3", restarts=1
    )
    assert_nothing_lost(done)
    assert not [event for event in done.of("world_next") if event["recover"]]


def test_two_die_at_once(jobs: Jobs) -> None:
    kills = [fail_at_phase(rank=rank, size=4, step=10, phase="finish") for rank in (1, 3)]
    done = train(jobs, "--until", "4,2", *kills, workers="4")
    assert_nothing_lost(done)
    assert len(done.of("node_ended", reason="killed")) == 2


def test_another_dies_while_the_rest_recover(jobs: Jobs) -> None:
    first = fail_at_phase(rank=1, size=4, step=10, phase="sums")
    second = fail_at_phase(rank=0, size=3, step=10, phase="compare")
    done = train(jobs, "--until", "4,2", first, second, workers="4")
    assert_nothing_lost(done)
    assert len(done.of("node_ended", reason="killed")) == 2


def test_a_stopped_worker_is_given_up_and_the_others_go_on(jobs: Jobs) -> None:
    done = train(jobs, "--until", "3,2", fail_at_phase(rank=2, size=3, step=10, phase="finish", how="stop"))
    assert_nothing_lost(done)
    assert done.of("node_lost")


def test_an_error_in_one_worker_is_its_own(jobs: Jobs) -> None:
    done = train(jobs, "--until", "3,3", fail_at_phase(rank=1, size=3, step=10, phase="step", how="raise"), restarts=1)
    assert_nothing_lost(done)
    (ended,) = done.of("node_ended", reason="error")
    assert "ValueError: planted" in ended["error"]


def test_a_drained_worker_works_on_until_the_others_can_do_without_it(jobs: Jobs) -> None:
    drain = fail_at_phase(rank=0, size=3, step=10, phase="step", how="command=drain JOB worker-1")
    done = train(jobs, "--until", "3,2", drain)
    assert_nothing_lost(done)
    assert not [event for event in done.of("world_next") if event["recover"]]
    assert done.of("node_ended", node="worker-1", reason="done")
