"""The ways to run a master: each set of components is started for real, and does what it is there for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.guests import LoneMaster
from tests.integration.harness import Finished, Jobs, every_sample_once

GUEST = Path(__file__).with_name("guest_script.py")
EVALUATION = str(Path(__file__).with_name("evaluation_script.py"))
OWN_SHARDING = Path(__file__).with_name("own_sharding.py")


def run(jobs: Jobs, *options: str, script: Path, arguments: str) -> Finished:
    """`elastane run` with two workers of a framework of their own, of which the first to get there is killed once."""
    command = f"{sys.executable} {script} {arguments}"
    done = jobs.run(options=("--workers=2", f"--worker-command={command}", *options), script=None)
    assert done.code == 0, done.stdout + done.stderr
    assert len(done.of("node_ended", reason="killed")) == (1 if "died" in arguments else 0)
    assert len(done.of("node_ended", reason="done")) == 2
    return done


def worlds(done: Finished) -> set[str]:
    return set(re.findall(r"world rank=\d size=2 peers=(\S+)", done.stdout))


def tasks_alone(jobs: Jobs) -> list[str]:
    """1: a sharding service. A dead guest's shards come back by the task time-out, and by nothing else."""
    alone = ("--no-pod-manager", "--no-task-fault-tolerance", "--strategy=none", "--task-timeout=1")
    with LoneMaster(jobs, *alone) as master:
        with master.guest(GUEST, "--samples=200", "--kill-at=2", f"--marker={jobs.folder / 'died'}") as dying:
            assert dying.wait() == -9
        with master.guest(GUEST, "--samples=200") as guest:
            assert guest.wait() == 0, guest.output
        returned = [event["error"] for event in master.events("shard_returned")]
        assert "no progress for 1 s" in returned
        assert not master.events("node_ended")  # There is nobody who follows the nodes.
        assert master.committed() == every_sample_once(200)
        assert master.terminate() == 0, master.output
        (started,) = master.events("job_started")
        return list(started["components"])


def nodes(jobs: Jobs) -> list[str]:
    """2: workers that shard their data themselves, and are relaunched."""
    options = ("--no-task-manager", "--strategy=none")
    done = run(jobs, *options, script=OWN_SHARDING, arguments=str(jobs.folder / "died"))
    assert done.stdout.count("trains") == 2
    return components(done)


def nodes_and_rendezvous(jobs: Jobs) -> list[str]:
    """3: the same, with a place in a world for each."""
    done = run(jobs, "--no-task-manager", script=GUEST, arguments="--members=2")
    assert worlds(done) == {"job-worker-0:1,job-worker-1:1"}
    return components(done)


def nodes_and_tasks(jobs: Jobs) -> list[str]:
    """4: workers that lease shards. A killed worker's go to others at once."""
    arguments = f"--samples=200 --kill-at=2 --marker={jobs.folder / 'died'}"
    done = run(jobs, "--strategy=none", "--no-training-service", script=GUEST, arguments=arguments)
    assert done.committed() == every_sample_once(200)
    assert not done.of("world_next")
    return components(done)


def nodes_rendezvous_and_tasks(jobs: Jobs) -> list[str]:
    """5: both."""
    done = run(jobs, "--no-training-service", script=GUEST, arguments="--samples=200 --members=2")
    assert worlds(done) == {"job-worker-0:1,job-worker-1:1"}
    assert done.committed() == every_sample_once(200)
    return components(done)


def nodes_tasks_and_training(jobs: Jobs) -> list[str]:
    """6: the training service waits for somebody to evaluate, and is in nobody's way."""
    done = run(jobs, "--strategy=none", "--training-service", script=GUEST, arguments="--samples=200")
    assert done.committed() == every_sample_once(200)
    return components(done)


def all_four(jobs: Jobs) -> list[str]:
    """7: workers train one model, and it is evaluated meanwhile. What a job has unless it says otherwise."""
    done = jobs.run("--every-steps", "50", options=("--workers=2",), script=EVALUATION)
    assert done.code == 0, done.stdout + done.stderr
    assert done.of("evaluation_finished")
    assert len(done.of("world_settled")[0]["members"]) > 0
    return components(done)


def components(done: Finished) -> list[str]:
    (started,) = done.of("job_started")
    return list(started["components"])


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (tasks_alone, ["task-manager"]),
        (nodes, ["pod-manager"]),
        (nodes_and_rendezvous, ["pod-manager", "rendezvous"]),
        (nodes_and_tasks, ["pod-manager", "task-manager", "task-fault-tolerance"]),
        (nodes_rendezvous_and_tasks, ["pod-manager", "task-manager", "rendezvous", "task-fault-tolerance"]),
        (
            nodes_tasks_and_training,
            ["pod-manager", "task-manager", "training-service", "task-fault-tolerance"],
        ),
        (all_four, ["pod-manager", "task-manager", "rendezvous", "training-service", "task-fault-tolerance"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_job_runs_on_the_components_that_it_needs(
    jobs: Jobs, way: Callable[[Jobs], list[str]], expected: list[str]
) -> None:
    assert way(jobs) == expected


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("master", "--no-task-manager", "--training-service"), "spec.trainingService: evaluation is made of tasks"),
        (("master", "--no-pod-manager"), "spec.distributionStrategy: ring-allreduce needs the pod manager"),
        (("run", "--no-pod-manager", str(GUEST)), "script: nobody runs it without the pod manager"),
        (("run",), "script: give one, or a --worker-command"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(jobs: Jobs, words: tuple[str, ...], reason: str) -> None:
    refused = jobs.command(*words)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: {reason}")
    assert refused.stderr.count("\n") == 1
