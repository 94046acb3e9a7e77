"""Elastic all-reduce: real workers join, leave and die in the middle of training, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Finished, Jobs, every_sample_once
from tests.training_faults import fail_at_phase

SCRIPT = str(Path(__file__).with_name("training_script.py"))

CASES = [
    "sgd-momentum,scheduler,clipping",
    "adam,accumulation,scaler",
    "adamw,batch-norm,tied",
    "adafactor,frozen",
]
"""Every model of the script has parameters that no gradient comes to, too."""


def train(
    jobs: Jobs, *arguments: str, workers: str = "3", restarts: int = 0, copies: int = 0, **settings: str
) -> Finished:
    limits = ("--workers", workers, "--restarts", str(restarts), "--heartbeat-timeout", "2")
    options = ("--check-replicas", "--journal-copies", str(copies), *limits)
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


@pytest.mark.parametrize("case", [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])])
def test_a_worker_that_joins_in_the_middle_is_bit_equal(jobs: Jobs, case: str) -> None:
    join = fail_at_phase(rank=0, size=1, phase="step", how="join=2")
    done = train(jobs, "--case", case, "--until", "1,2", join, workers="1:2")
    assert_nothing_lost(done)
    assert sizes(done)[:2] == [1, 2]
    assert "full copy" not in done.stdout


@pytest.mark.slow
def test_an_unknown_optimizer_is_copied_and_says_so_once(jobs: Jobs) -> None:
    join = fail_at_phase(rank=0, size=1, phase="step", how="join=2")
    done = train(jobs, "--case", "own-optimizer", "--until", "1,2", join, workers="1:2")
    assert_nothing_lost(done)
    assert sizes(done)[:2] == [1, 2]
    assert done.stdout.count("gets a full copy of the state") == 2, done.stdout  # each worker says it once


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["begin", "sums", "finished"])
def test_each_worker_in_turn_dies_in_a_step_and_the_others_finish_it(jobs: Jobs, phase: str) -> None:
    kills = [fail_at_phase(rank=rank, size=3, step=15 + 20 * rank, phase=phase) for rank in (0, 1, 2)]
    done = train(jobs, "--until", "3", *kills, restarts=3)
    assert_nothing_lost(done)
    assert len(done.of("node_ended", reason="killed")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("global_batch", [(), ("--global-batch-size", "16")])
def test_all_samples_are_in_one_step_each(jobs: Jobs, global_batch: tuple[str, ...]) -> None:
    kill = fail_at_phase(rank=1, size=3, phase="finish")
    done = train(jobs, "--samples", "1003", "--epochs", "2", "--step-ms", "10", kill, *global_batch)
    assert_nothing_lost(done)
    assert done.committed() == every_sample_once(1003, 2)


@pytest.mark.slow
@pytest.mark.parametrize("after", [20, 21])
def test_a_worker_that_quits_a_global_batch_leaves_the_rest_to_the_others(jobs: Jobs, after: int) -> None:
    """One of the two numbers is in the middle of a global batch, of which each worker has two parts."""
    data = ("--samples", "1600", "--epochs", "2", "--global-batch-size", "16", "--step-ms", "10")
    done = train(jobs, "--case", "exactly-once", *data, "--quit-after", str(after))
    assert_nothing_lost(done)
    assert done.committed() == every_sample_once(1600, 2)
    assert "seen 2.000000000 to 2.000000000" in done.stdout


@pytest.mark.slow
def test_statistics_of_a_batch_norm_may_differ_in_the_middle_of_a_step(jobs: Jobs) -> None:
    done = train(jobs, "--case", "adamw,batch-norm", "--until", "3,2", fail_at_phase(rank=1, size=3, phase="finish"))
    assert_nothing_lost(done)


@pytest.mark.slow
def test_what_only_one_worker_did_not_finish_it_gets_from_the_others(jobs: Jobs) -> None:
    half = fail_at_phase(rank=1, size=3, phase="summed", how="break")
    done = train(jobs, "--until", "3,3", half)
    assert_nothing_lost(done)
    assert not done.of("node_ended", reason="killed")
    assert sizes(done).count(3) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["snapshot", "move", "moved"])
def test_the_donor_dies(jobs: Jobs, phase: str) -> None:
    join = fail_at_phase(rank=0, size=2, phase="step", how="command=scale JOB --workers 3")
    kill = fail_at_phase(rank=0, size=3 if phase == "moved" else 2, step=0, phase=phase)
    done = train(jobs, "--until", "2,2", join, kill, workers="2")
    assert_nothing_lost(done)
    assert done.of("node_ended", reason="killed")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["follow-state", "follow"])
def test_the_newcomer_dies_before_it_is_a_member_and_nobody_stops(jobs: Jobs, phase: str) -> None:
    join = fail_at_phase(rank=0, size=2, phase="step", how="command=scale JOB --workers 3")
    done = train(
        jobs, "--until", "2,3", join, fail_at_phase(rank=-1, size=0, step=0, phase=phase), workers="2:3", restarts=1
    )
    assert_nothing_lost(done)
    # Who follows may be ready already, and voted in: then the others must form a world without it.
    assert phase == "follow" or not [event for event in done.of("world_next") if event["recover"]]


@pytest.mark.slow
def test_an_error_while_a_newcomer_follows_is_its_own(jobs: Jobs) -> None:
    join = fail_at_phase(rank=0, size=1, phase="step", how="join=2")
    error = fail_at_phase(rank=-1, size=0, step=0, phase="follow", how="raise")
    done = train(jobs, "--until", "1,2", join, error, workers="1:2", restarts=1)
    assert_nothing_lost(done)
    (ended,) = done.of("node_ended", reason="error")
    assert "ValueError: planted" in ended["error"]


@pytest.mark.slow
def test_two_die_at_once(jobs: Jobs) -> None:
    kills = [fail_at_phase(rank=rank, size=4, phase="finish") for rank in (1, 3)]
    done = train(jobs, "--until", "4,2", *kills, workers="4")
    assert_nothing_lost(done)
    assert len(done.of("node_ended", reason="killed")) == 2


@pytest.mark.slow
def test_another_dies_while_the_rest_recover(jobs: Jobs) -> None:
    first = fail_at_phase(rank=1, size=4, phase="sums")
    second = fail_at_phase(rank=0, size=3, step=0, phase="compare")
    done = train(jobs, "--until", "4,2", first, second, workers="4")
    assert_nothing_lost(done)
    assert len(done.of("node_ended", reason="killed")) == 2


@pytest.mark.slow
def test_a_stopped_worker_is_given_up_and_the_others_go_on(jobs: Jobs) -> None:
    done = train(jobs, "--until", "3,2", fail_at_phase(rank=2, size=3, phase="finish", how="stop"))
    assert_nothing_lost(done)
    assert done.of("node_lost")


@pytest.mark.slow
def test_an_error_in_one_worker_is_its_own(jobs: Jobs) -> None:
    done = train(jobs, "--until", "3,3", fail_at_phase(rank=1, size=3, phase="step", how="raise"), restarts=1)
    assert_nothing_lost(done)
    (ended,) = done.of("node_ended", reason="error")
    assert "ValueError: planted" in ended["error"]


@pytest.mark.slow
def test_a_drained_worker_works_on_until_the_others_can_do_without_it(jobs: Jobs) -> None:
    drain = fail_at_phase(rank=0, size=3, phase="step", how="command=drain JOB worker-1")
    done = train(jobs, "--until", "3,2", drain)
    assert_nothing_lost(done)
    assert not [event for event in done.of("world_next") if event["recover"]]
    assert done.of("node_ended", node="worker-1", reason="done")


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_losses_are_the_same_with_and_without_membership_changes(jobs: Jobs, deterministic: bool) -> None:
    arguments = ["--samples", "1600", "--global-batch-size", "32", "--batch-size", "8", "--double"]
    arguments += ["--case", "adamw,batch-norm", "--deterministic"] if deterministic else []
    undisturbed = train(jobs, *arguments, "--losses", str(jobs.folder / "one"), name="one", workers="1")
    assert_nothing_lost(undisturbed)
    join = fail_at_phase(rank=0, size=1, step=2, phase="step", how="join=2")
    again = fail_at_phase(rank=0, size=2, step=2, phase="step", how="join=3")
    kill = fail_at_phase(rank=1, size=3, step=3, phase="finish")
    resized = train(
        jobs, *arguments, "--losses", str(jobs.folder / "many"), join, again, kill, name="many", workers="1:3"
    )
    assert_nothing_lost(resized)
    assert {2, 3} <= set(sizes(resized))
    one, many = losses(jobs.folder / "one"), losses(jobs.folder / "many")
    assert one.keys() == many.keys()
    if deterministic:
        assert one == many
    else:
        assert max(abs(one[key] - many[key]) for key in one) < 1e-6


def losses(path: Path) -> dict[tuple[int, int], float]:
    """Each sample's loss in its step."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {(int(step), int(sample)): float(loss) for step, sample, loss in lines}
