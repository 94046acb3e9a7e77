"""Jobs with a coordinator: `elastane scale` and relaunches reach it, with no code for them in the script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.harness import Finished, Jobs

SCRIPT = Path(__file__).with_name("coordinated_script.py")


def run(jobs: Jobs, options: str, arguments: str) -> Finished:
    command = f"{sys.executable} -m elastane coordinate {options} {SCRIPT} {arguments}"
    flags = ("--workers=1:4", "--strategy=parameter_server", f"--worker-command={command}")
    done = jobs.run(options=flags, script=None)
    assert done.code == 0, done.stdout + done.stderr
    return done


def test_scaling_and_a_relaunch_reach_a_running_coordinator(jobs: Jobs) -> None:
    done = run(jobs, "", "--sizes 3 2 --kill")
    assert "trained with 3 workers" in done.stdout
    assert "trained with 2 workers" in done.stdout
    assert "trained with a relaunched worker" in done.stdout
    ended = [(event["reason"], event["released"]) for event in done.of("node_ended")]
    assert sorted(ended) == [("done", False), ("done", False), ("done", True), ("killed", False)]
    assert len(done.of("worker_serves")) == 3


@pytest.mark.slow
def test_scaling_reaches_a_running_tensorflow_job(jobs: Jobs) -> None:
    done = run(jobs, "--tensorflow-ps=2", "--tensorflow --sizes 3 2")
    assert "trained with 3 workers" in done.stdout
    assert "trained with 2 workers" in done.stdout


def test_a_node_outside_of_a_job_is_told_how_it_is_run(jobs: Jobs) -> None:
    done = jobs.command("coordinate", "train.py")
    assert done.returncode != 0
    assert "--worker-command 'elastane coordinate SCRIPT'" in done.stderr.replace("\n", " ")
