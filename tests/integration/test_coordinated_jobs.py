"""Jobs with a coordinator: `elastane scale` and relaunches reach it, with no code for them in the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, Finished, Jobs, read_events

SCRIPT = Path(__file__).with_name("coordinated_script.py")
ASKS_FOR_SERVERS = """
from elastane.coordinator import ClusterCoordinator
from elastane.model.errors import RequestRefused
from elastane.ps.closure_client import job_client


def ask():
    try:
        job_client()
    except RequestRefused as error:
        return str(error)


with ClusterCoordinator() as coordinator:
    print(ask(), coordinator.schedule(ask).fetch())
"""
TIMEOUT_S = 240
"""Each of a TensorFlow job's seven processes imports TensorFlow, which takes them a minute on a busy machine."""


def run(jobs: Jobs, options: str, arguments: str, *job_options: str) -> Finished:
    command = f"{sys.executable} -m elastane coordinate {options} {SCRIPT} {arguments}"
    events = jobs.folder / "events.jsonl"
    flags = ["--workers=1:4", "--strategy=parameter_server", f"--worker-command={command}", f"--events={events}"]
    flags += job_options
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
    assert "Fatal Python error" not in done.stdout + done.stderr
    return Finished(done.returncode, done.stdout, done.stderr, read_events(events))


@pytest.mark.slow
def test_scaling_and_a_relaunch_reach_a_running_coordinator(jobs: Jobs) -> None:
    done = run(jobs, "", "--sizes 3 2 --kill")
    assert "trained with 3 workers" in done.stdout
    assert "trained with 2 workers" in done.stdout
    assert "trained with a relaunched worker" in done.stdout
    ended = [(event["reason"], event["released"]) for event in done.of("node_ended")]
    assert sorted(ended) == [("done", False), ("done", False), ("done", True), ("killed", False)]
    assert len(done.of("worker_serves")) == 3


@pytest.mark.slow
def test_closures_count_exactly_once_on_the_servers_of_the_job(jobs: Jobs) -> None:
    done = run(jobs, "", "--sizes 3 2 --ps-sizes 3 1 --kill", "--ps=2", "--ps-buckets=32")
    for line in ("3 workers", "2 workers", "3 servers", "1 servers", "a relaunched worker"):
        assert f"trained with {line}" in done.stdout


def test_closures_are_told_that_a_job_has_no_servers(jobs: Jobs) -> None:
    script = jobs.folder / "asks.py"
    script.write_text(ASKS_FOR_SERVERS)
    command = f"{sys.executable} -m elastane coordinate {script}"
    done = jobs.command("run", "--strategy=parameter_server", "--restarts=0", f"--worker-command={command}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("this job has no parameter servers; start it with --ps") == 2


def test_a_bound_on_staleness_is_refused_with_a_coordinator(jobs: Jobs) -> None:
    command = f"{sys.executable} -m elastane coordinate {SCRIPT}"
    done = jobs.command("run", "--ps=1", "--ps-staleness=0", "--restarts=0", f"--worker-command={command}")
    assert done.returncode != 0
    assert "--ps-staleness: 0 has no meaning with a coordinator" in (done.stdout + done.stderr).replace("\n", " ")


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
