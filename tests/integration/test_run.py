"""`elastane run` end to end: real processes, killed, drained, stopped and starved at a named worker and step."""

from __future__ import annotations

import json
import os

import psutil
import pytest

from tests.faults import fail_at
from tests.integration.harness import Jobs, event_time, every_sample_once


def test_every_sample_counts_once_though_two_workers_are_killed_and_one_is_drained(jobs: Jobs) -> None:
    done = jobs.run(
        *("--samples=100000", "--batch-size=64", "--step-ms=3", "--epochs=2"),
        fail_at(node="worker-0", step=100, how="kill"),
        fail_at(node="worker-1", step=200, how="kill"),
        fail_at(node="worker-2", step=300, how="command=drain JOB worker-2"),
        options=("--workers=3",),
    )
    assert done.code == 0, done.stderr
    assert done.committed() == every_sample_once(100_000, epochs=2)
    assert [event["reason"] for event in done.of("node_ended", reason="killed")] == ["killed", "killed"]
    (left,) = done.of("node_ended", released=True)
    assert left["node"] == "job-worker-2"
    assert left["reason"] == "done"
    assert done.of("node_left", node="worker-2")
    assert len(done.of("epoch_finished")) == 2


def test_shuffled_data_counts_once_too(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=5003", "--shuffle", fail_at(node="worker-1", step=20, how="kill"), options=("--workers=2",)
    )
    assert done.code == 0, done.stderr
    assert done.committed() == every_sample_once(5003)


def test_an_error_in_user_code_is_shown_and_not_retried_beyond_its_restarts(jobs: Jobs) -> None:
    faults = [fail_at(node=f"worker-{number}", step=3, how="raise") for number in range(10)]
    done = jobs.run(*faults, options=("--workers=1", "--restarts=2", "--max-task-retries=100"))
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "ValueError: planted" in done.stderr
    assert "error: worker-2 ended (error) and has used its 2 restarts" in done.stderr
    assert len(done.of("node_launched")) == 3
    assert max(done.committed().values()) == 1


def test_a_shard_that_always_fails_ends_the_job_with_its_name(jobs: Jobs) -> None:
    done = jobs.run("--samples=1000", "--poison=555", options=("--workers=2", "--restarts=20", "--max-task-retries=2"))
    assert done.code == 1
    assert 'error: data set "batches-0", epoch 0 samples 550..' in done.stderr
    assert "failed on 2 tries: ValueError: sample 555 is broken; ValueError: sample 555 is broken" in done.stderr
    assert 555 not in {position for _, position in done.committed()}


def test_running_out_of_memory_is_told_from_a_crash_and_answered_with_more(jobs: Jobs) -> None:
    done = jobs.run(
        fail_at(node="worker-0", step=5, how="allocate=300"),
        fail_at(node="worker-1", step=5, how="allocate=300"),
        options=("--workers=1", "--memory=256Mi"),
    )
    assert done.code == 0, done.stderr
    assert [event["reason"] for event in done.of("node_ended")] == ["oom", "done"]
    assert [event["memory"] for event in done.of("node_launched")] == ["256Mi", "512Mi"]
    assert "the limit is 256 MiB" in done.stdout
    assert done.committed() == every_sample_once(2000)


@pytest.mark.parametrize(
    ("how", "reason"), [("segfault", "error"), ("exit=3", "error"), ("kill", "killed"), ("terminate", "preempted")]
)
def test_each_way_to_end_has_its_reason_and_a_replacement(jobs: Jobs, how: str, reason: str) -> None:
    done = jobs.run(fail_at(node="worker-0", step=5, how=how), options=("--workers=1",))
    assert done.code == 0, done.stderr
    assert [event["reason"] for event in done.of("node_ended")] == [reason, "done"]
    assert [event["restarts"] for event in done.of("node_launched")] == [0, 0 if reason == "preempted" else 1]
    assert done.committed() == every_sample_once(2000)


def test_a_stopped_worker_is_lost_within_its_heartbeat_limit_and_replaced(jobs: Jobs) -> None:
    limit_s = 2.0
    done = jobs.run(
        fail_at(node="worker-0", step=5, how="stop"), options=("--workers=2", f"--heartbeat-timeout={limit_s}")
    )
    assert done.code == 0, done.stderr
    (lost,) = done.of("node_lost")
    assert lost["reason"] == "not heard for 2 s"
    assert event_time(lost) - done.fault_time("stop") < limit_s + 1.0
    assert done.of("node_ended", node="worker-0", reason="lost")
    assert done.committed() == every_sample_once(2000)
    (stopped,) = done.of("node_running", node="worker-0")
    assert not psutil.pid_exists(stopped["pid"])


def test_a_job_that_fails_through_a_lost_worker_ends(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=1000000",
        fail_at(node="worker-0", step=5, how="stop"),
        options=("--workers=2", "--heartbeat-timeout=1", "--max-task-retries=1"),
    )
    assert done.code == 1
    assert "failed on 1 tries: worker-0 ended (lost)" in done.stderr


def test_a_drained_worker_that_goes_silent_fails_nothing(jobs: Jobs) -> None:
    done = jobs.run(
        fail_at(node="worker-1", step=5, how="command=drain JOB worker-1"),
        fail_at(node="worker-1", step=5, how="stop"),
        options=("--workers=2", "--heartbeat-timeout=1", "--max-task-retries=1"),
    )
    assert done.code == 0, done.stderr
    (ended,) = done.of("node_ended", node="worker-1")
    assert (ended["status"], ended["reason"]) == ("deleted", "lost")
    assert done.committed() == every_sample_once(2000)


def test_an_interrupted_worker_does_not_fail_its_shard(jobs: Jobs) -> None:
    done = jobs.run(fail_at(node="worker-0", step=5, how="interrupt"), options=("--workers=1", "--max-task-retries=1"))
    assert done.code == 0, done.stderr
    assert [event["reason"] for event in done.of("node_ended")] == ["preempted", "done"]
    assert done.committed() == every_sample_once(2000)


def test_a_log_folder_that_is_gone_ends_the_job_with_a_word(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=1000000",
        fail_at(node="worker-0", step=5, how="remove-logs"),
        fail_at(node="worker-0", step=5, how="kill"),
        options=("--workers=1", "--restarts=2"),
    )
    assert done.code == 1
    assert "No such file or directory" in done.stderr


@pytest.mark.slow
def test_ranks_and_the_size_of_the_world_follow_who_comes_and_goes(jobs: Jobs) -> None:
    done = jobs.run(
        *("--samples=40000", "--step-ms=2"),
        fail_at(node="worker-1", step=10, how="command=scale JOB --workers 3"),
        fail_at(node="worker-2", step=5, how="place"),
        fail_at(node="worker-2", step=6, how="kill-node=worker-1"),
        fail_at(node="worker-3", step=5, how="place"),
        fail_at(node="worker-3", step=6, how="command=status JOB --json"),
        options=("--workers=2",),
    )
    assert done.code == 0, done.stderr
    printed = [line.split("] ", 1)[1] for line in done.stdout.splitlines() if "] rank " in line]
    assert printed == ["rank 2 of 3", "rank 2 of 3"], "the newcomer, and then the replacement"
    settled = [set(event["members"]) for event in done.of("world_settled")]
    before, without, after = (
        {"job-worker-0", "job-worker-2", *more} for more in (["job-worker-1"], [], ["job-worker-3"])
    )
    assert settled.index(before) < settled.index(without) < settled.index(after)
    assert done.of("world_next", recover=True)
    status = json.loads(next(line.split("] ", 1)[1] for line in done.stdout.splitlines() if '] {"' in line))
    assert status["world"]["size"] == 3
    ranks = {node["id"]: node["rank"] for node in status["nodes"]}
    assert ranks[1] is None
    assert ranks[3] == 2
    assert {ranks[0], ranks[2]} == {0, 1}


def test_a_worker_that_makes_no_progress_is_replaced(jobs: Jobs) -> None:
    done = jobs.run(fail_at(node="worker-0", step=5, how="hang"), options=("--workers=2", "--task-timeout=1"))
    assert done.code == 0, done.stderr
    (lost,) = done.of("node_lost")
    assert lost["reason"] == "no progress in its shard"
    assert done.committed() == every_sample_once(2000)


def test_a_worker_that_may_not_restart_is_not_replaced_and_the_job_goes_on(jobs: Jobs) -> None:
    done = jobs.run(fail_at(node="worker-1", step=5, how="kill"), options=("--workers=3", "--restarts=0"))
    assert done.code == 0, done.stderr
    assert len(done.of("node_launched")) == 3
    assert done.committed() == every_sample_once(2000)


def test_the_job_fails_below_its_minimum(jobs: Jobs) -> None:
    done = jobs.run(fail_at(node="worker-1", step=5, how="kill"), options=("--workers=2:4", "--restarts=0"))
    assert done.code == 1
    assert "1 workers are left, below min 2" in done.stderr


def test_a_critical_chief_ends_the_job(jobs: Jobs) -> None:
    options = ("--workers=2", "--restarts=0", "--critical=chief")
    done = jobs.run(fail_at(node="worker-0", step=5, how="kill"), options=options)
    assert done.code == 1
    assert "worker-0 ended (killed) and has used its 0 restarts" in done.stderr


def test_leaving_the_loop_early_counts_its_batch_and_says_what_is_left(jobs: Jobs) -> None:
    done = jobs.run("--samples=1000", "--break-at=5", options=("--workers=1",))
    assert done.code == 0, done.stderr
    assert sum(done.committed().values()) == 50
    (left,) = done.of("data_left")
    assert left["samples"] == 950


def test_workers_that_describe_the_data_differently_are_told(jobs: Jobs) -> None:
    done = jobs.run("--differ", options=("--workers=2", "--restarts=0"))
    assert done.code == 1
    assert 'DatasetMismatch: data set "batches-0": size 200' in done.stderr


def test_a_command_that_cannot_start_says_so(jobs: Jobs) -> None:
    done = jobs.command("run", "--restarts=0", "-m", "no_such_module_anywhere")
    assert done.returncode == 1
    assert "No module named no_such_module_anywhere" in done.stderr


def test_the_launcher_killed_leaves_no_process_behind(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=1000000",
        fail_at(node="worker-1", step=3, how="spawn=600"),
        fail_at(node="worker-0", step=50, how="kill-launcher"),
        options=("--workers=2",),
    )
    assert done.code == -9
    left = [process for process in psutil.process_iter() if _is_of(process, jobs.env["ELASTANE_STATE_DIR"])]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive
    assert "the launcher died" in jobs.command("status", "job").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"), [("spoil-journal", "the journal is damaged in line 3"), ("kill-agent", "the agent that owns")]
)
def test_an_agent_that_died_or_a_damaged_journal_end_the_job_with_a_word(jobs: Jobs, how: str, message: str) -> None:
    done = jobs.run("--samples=1000000", fail_at(node="worker-0", step=20, how=how), options=("--workers=2",))
    assert done.code == 1
    assert message in done.stderr
    left = [process for process in psutil.process_iter() if _is_of(process, jobs.env["ELASTANE_STATE_DIR"])]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive


def test_ctrl_c_drains_the_job(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=1000000", fail_at(node="worker-0", step=20, how="interrupt-launcher"), options=("--workers=1",)
    )
    assert done.code == 130
    (ended,) = done.of("node_ended")
    assert ended["released"]
    assert ended["reason"] == "done"
    assert done.of("node_left")
    assert max(done.committed().values()) == 1
    (ended,) = done.of("job_ended")
    assert ended["end"] == "stopped"


def test_ctrl_c_twice_kills_a_worker_that_does_not_leave(jobs: Jobs) -> None:
    done = jobs.run(
        "--samples=1000000",
        fail_at(node="worker-0", step=20, how="interrupt-launcher"),
        fail_at(node="worker-0", step=-1, how="interrupt-launcher"),
        fail_at(node="worker-0", step=-1, how="hang"),
        options=("--workers=1", "--grace=300"),
    )
    assert done.code == 130
    (killed,) = done.of("node_ended")
    assert killed["code"] == -9


def _is_of(process: psutil.Process, state_dir: str) -> bool:
    """Whether a process belongs to the jobs of one state folder: nodes inherit the variable, as master and agent do."""
    if process.pid == os.getpid():
        return False
    try:
        return process.environ().get("ELASTANE_STATE_DIR") == state_dir
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
