"""Jobs with a coordinator: `elastane scale` and relaunches reach it, with no code for them in the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, Finished, Jobs, read_events

SCRIPT = Path(__file__).with_name("coordinated_script.py")
TIMEOUT_S = 240
"""Each of a TensorFlow job's seven processes imports TensorFlow, which takes them a minute on a busy machine."""


def run(jobs: Jobs, options: str, arguments: str) -> Finished:
    command = f"{sys.executable} -m elastane coordinate {options} {SCRIPT} {arguments}"
    events = jobs.folder / "events.jsonl"
    flags = ["--workers=1:4", "--strategy=parameter_server", f"--worker-command={command}", f"--events={events}"]
    done = subprocess.run(
        [sys.executable, "-m", "elastane", "run", "--name", "job", *flags],
        env=jobs.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Finished(done.returncode, done.stdout, done.stderr, read_events(events))


def test_scaling_and_a_relaunch_reach_a_running_coordinator(jobs: Jobs) -> None:
    done = run(jobs, "", "--sizes 3 2 --kill")
    assert "trained with 3 workers" in done.stdout
    assert "trained with 2 workers" in done.stdout
    assert "trained with a relaunched worker" in done.stdout
    ended = [(event["reason"], event["released"]) for event in done.of("node_ended")]
    assert sorted(ended) == [("done", False), ("done", False), ("done", True), ("killed", False)]
    assert len(done.of("worker_serves")) == 3


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_scaling_reaches_a_running_tensorflow_job(jobs: Jobs) -> None:
    done = run(jobs, "--tensorflow-ps=2", "--tensorflow --sizes 3 2")
    assert "trained with 3 workers" in done.stdout
    assert "trained with 2 workers" in done.stdout


def test_a_node_outside_of_a_job_is_told_how_it_is_run(jobs: Jobs) -> None:
    done = jobs.command("coordinate", "train.py")
    assert done.returncode != 0
    assert "--worker-command 'elastane coordinate SCRIPT'" in done.stderr.replace("\n", " ")
