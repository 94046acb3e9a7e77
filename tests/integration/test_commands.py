"""The commands beside `run`: what they print, what they refuse, and that they reach a job from another process."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys

import pytest

from tests.faults import fail_at
from tests.integration.harness import ROOT, SCRIPT, TIMEOUT_S, Jobs, every_sample_once


def test_scaling_up_and_down_takes_effect(jobs: Jobs) -> None:
    done = jobs.run(
        *("--samples=80000", "--step-ms=1"),
        fail_at(node="worker-0", step=10, how="command=scale JOB --workers 5"),
        fail_at(node="worker-0", step=100, how="command=scale JOB --workers 2"),
        options=("--workers=3",),
    )
    assert done.code == 0, done.stderr
    assert [(event["before"], event["workers"]) for event in done.of("scaled")] == [(0, 3), (3, 5), (5, 2)]
    assert len(done.of("node_launched")) == 5
    leavers = [event["node"] for event in done.of("node_leaving")]
    assert leavers == ["job-worker-2", "job-worker-3", "job-worker-4"]
    assert done.committed() == every_sample_once(80_000)


def test_requests_outside_the_limits_are_refused_with_one_line(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=200",
        fail_at(node="worker-0", step=1, how="command=scale JOB --workers 0"),
        fail_at(node="worker-0", step=2, how="command=scale JOB --workers 5"),
        fail_at(node="worker-0", step=3, how="command=drain JOB worker-0"),
        fail_at(node="worker-0", step=4, how="command=drain JOB worker-7"),
        options=("--workers=1:4",),
    )
    assert done.code == 0, done.stderr
    lines = [line.removeprefix("[worker-0] ") for line in done.stdout.splitlines() if "error:" in line]
    assert lines == [
        'error: workers: 0 is below min 1 in job "job"',
        'error: workers: 5 is above max 4 in job "job"',
        'error: workers: 0 would be below min 1 in job "job"',
        'error: node "worker-7" is not in job "job"; it has worker-0',
    ]
    assert len(done.of("scaled")) == 1


@pytest.mark.slow
def test_status_jobs_and_logs_tell_of_a_running_and_of_an_ended_job(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=200",
        fail_at(node="worker-0", step=3, how="command=status JOB --json"),
        fail_at(node="worker-0", step=4, how="command=jobs"),
        fail_at(node="worker-0", step=5, how="command=logs JOB worker-0 --tail 1"),
    )
    assert done.code == 0, done.stderr
    printed = [line.removeprefix("[worker-0] ") for line in done.stdout.splitlines()]
    running = json.loads(next(line for line in printed if line.startswith("{")))
    assert running["state"] == "running"
    (node,) = running["nodes"]
    (started,) = done.of("node_running")
    assert (node["id"], node["pid"], node["status"], node["attending"]) == (0, started["pid"], "running", True)
    assert any(line.split()[:3] == ["job", "running", "1"] for line in printed)

    ended = json.loads(jobs.command("status", "job", "--json").stdout)
    assert ended["state"] == "succeeded"
    assert ended["datasets"][0]["committed"] == 200
    assert ended["datasets"][0]["finished"]
    assert "job: succeeded" in jobs.command("status", "job").stdout
    assert "fault" in jobs.command("logs", "job", "worker-0").stdout
    assert jobs.command("logs", "job", "job-worker-0", "--tail", "0").stdout == ""
    assert "job_started" in jobs.command("logs", "job", "master").stdout


def test_delete_ends_a_running_job_and_forgets_it(jobs: Jobs) -> None:
    with jobs.start("--samples=1000000") as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if "has joined" in line:
                break
        deleted = jobs.command("delete", "job")
        assert deleted.stdout.splitlines() == ["job: draining", "job: deleted"]
        assert "job stopped" in launcher.stdout.read()
        assert launcher.wait(TIMEOUT_S) == 1
    assert 'error: job "job" is not known here; known: none' in jobs.command("status", "job").stderr


def test_names_that_look_alike_and_names_given_twice_are_understood(jobs: Jobs) -> None:
    assert jobs.run("--samples=10", fail_at(node="worker-0", step=1, how="place"), name="worker").code == 0
    for node in ("worker-0", "worker-worker-0"):
        assert "rank 0 of 1" in jobs.command("logs", "worker", node).stdout
    assert jobs.command("delete", "worker", "worker").stdout == "worker: deleted\n"


def test_a_jobs_secrets_are_for_its_user_alone(jobs: Jobs) -> None:
    jobs.run("--samples=10")
    folder = jobs.folder / "state" / "jobs" / "job"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "job.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "end.json").stat().st_mode) == 0o600


def test_a_name_is_used_once_until_it_is_deleted(jobs: Jobs) -> None:
    assert jobs.run("--samples=10").code == 0
    again = jobs.run("--samples=10")
    assert again.code == 1
    assert 'error: job "job" has ended; `elastane delete` removes its record' in again.stderr
    assert jobs.command("delete", "job").returncode == 0
    assert jobs.run("--samples=10").code == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "no-such-file.py"), 2, 'error: script: there is no file "no-such-file.py"'),
        (("run", "--workers", "x", SCRIPT), 2, 'error: workers: "x" is neither a number such as 3 nor a range'),
        (("run", "--workers", "0", SCRIPT), 2, 'error: spec.worker.replicas: "0" cannot be used'),
        (("run", "--workers", "4:2", SCRIPT), 2, "error: spec.worker.minReplicas: 4 is above maxReplicas 2"),
        (("run", "--memory", "2Q", SCRIPT), 2, 'error: spec.worker.resource.memory: "2Q" is not an amount of memory'),
        (("run", "--name", "A b", SCRIPT), 2, 'error: metadata.name: "A b" is not a job name'),
        (("run", "--events", "/nowhere/x", SCRIPT), 2, 'error: events: "/nowhere/x" cannot be written: No such file'),
        (("scale", "ghost", "--workers", "2"), 1, 'error: job "ghost" is not known here; known: none'),
    ],
)
def test_bad_input_is_answered_with_one_line(jobs: Jobs, words: tuple[str, ...], code: int, message: str) -> None:
    done = jobs.command(*words)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not list(jobs.folder.glob("state/jobs/*"))


def test_a_terminal_gets_a_live_view(jobs: Jobs) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "elastane", "run", "--name", "job", SCRIPT, "--samples=1000", "--step-ms=5"],
        env={**jobs.env, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        screen = b""
        try:
            while chunk := os.read(ours, 65536):
                screen += chunk
        except OSError:  # Linux says so when the other side of a terminal is closed.
            pass
        assert process.wait(TIMEOUT_S) == 0
    os.close(ours)
    text = screen.decode()
    assert "job: running" in text
    assert "1 of 1 workers" in text
    assert "worker-0" in text
    assert "\x1b[" in text
    assert "job succeeded after" in text


@pytest.mark.slow
def test_help_names_every_command(jobs: Jobs) -> None:
    text = jobs.command("--help").stdout
    for command in ("run", "master", "jobs", "status", "logs", "scale", "drain", "delete"):
        assert command in text
        assert "Usage" in jobs.command(command, "--help").stdout
