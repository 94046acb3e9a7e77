"""Real processes that serve metrics, read while they run: a master, parameter servers, a Brain."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastane.master.brain_client import BrainClient
from elastane.model.sizing import Budget
from elastane.prometheus.of_brain import BRAIN
from elastane.prometheus.of_master import MASTER
from elastane.prometheus.of_ps import PS
from elastane.ps import keys
from elastane.ps.store import warm_up
from tests.faults import fail_at
from tests.integration.brains import BrainProcess, make_report, make_run, until
from tests.integration.harness import ROOT, Jobs
from tests.scraping import Scraped, fetch, promtool, status_of

HERE = Path(__file__).parent
TIMEOUT_S = 60


class Running:
    """A job that runs, and where its metrics are."""

    def __init__(self, jobs: Jobs, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._jobs = jobs
        self._folder = folder
        assert process.stdout is not None
        said = next(line for line in process.stdout if line.startswith("metrics of "))
        found = re.fullmatch(r"metrics of job: at http://(127\.0\.0\.1:\d+)/metrics\n", said)
        assert found is not None, said
        self.address = found[1]

    def status(self) -> dict[str, Any]:
        done = self._jobs.command("status", "job", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_for(self, condition: Callable[[Scraped], bool]) -> Scraped:
        """Read the metrics until they are so."""
        ends = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found = fetch(self.address)
                if condition(found):
                    return found
            except OSError:
                pass  # There is no master now.
            assert time.monotonic() < ends, found.text
            time.sleep(0.02)

    def log(self, node: str) -> str:
        return (self._folder / "logs" / f"{node}.log").read_text()


@contextmanager
def running(jobs: Jobs, *words: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    """Start a job that serves metrics; whatever is left of it at the end is killed."""
    command = [sys.executable, "-m", "elastane", "run", "--name", "job", "--metrics-port", "0", *words]
    process = subprocess.Popen(command, env={**jobs.env, **(env or {})}, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield Running(jobs, process, jobs.folder / "state" / "jobs" / "job")
    finally:
        process.kill()
        process.communicate()


def agree(found: Scraped, status: dict[str, Any]) -> None:
    """What is served is what `elastane status --json` says."""
    assert found.value("elastane_job_state", job="job", state=status["state"]) == 1
    assert found.value("elastane_workers_wanted", job="job") == status["workers_wanted"]
    assert found.value("elastane_world_size", job="job") == status["world"]["size"]
    assert found.value("elastane_world_version", job="job") == status["world"]["version"]
    assert found.value("elastane_steps_total", job="job") == status["steps"]
    for node_status in ("running", "succeeded", "failed", "deleted"):
        count = sum(node["type"] == "worker" and node["status"] == node_status for node in status["nodes"])
        assert found.value("elastane_nodes", job="job", role="worker", status=node_status) == count
    for reason in ("done", "killed", "error"):
        count = sum(node["exit_reason"] == reason for node in status["nodes"])
        assert found.value("elastane_node_exits_total", job="job", role="worker", reason=reason) == count
    living = {node["name"].removeprefix("job-"): node for node in status["nodes"] if not node["exit_reason"]}
    ranks = {name: node["rank"] for name, node in living.items() if node["rank"] is not None}
    assert found.by("elastane_node_rank", "node") == ranks
    assert found.by("elastane_node_restarts", "node") == {name: node["restarts"] for name, node in living.items()}
    committed = {name: node["committed_samples"] for name, node in living.items()}
    assert found.by("elastane_node_samples_committed_total", "node") == committed
    for dataset in status["datasets"]:
        labels = {"job": "job", "dataset": dataset["name"]}
        assert found.value("elastane_samples_committed_total", **labels) == dataset["committed"]
        assert found.value("elastane_dataset_epoch", **labels) == dataset["epoch"]
        assert found.value("elastane_dataset_epochs", **labels) == dataset["epochs"]
        assert found.value("elastane_dataset_epoch_samples", **labels) == dataset["epoch_size"]
        assert found.value("elastane_dataset_finished", **labels) == dataset["finished"]
        assert found.value("elastane_shards_leased", **labels) == dataset["leased_shards"]


def test_a_jobs_metrics_are_its_status_and_outlive_its_master(jobs: Jobs) -> None:
    go = jobs.folder / "go"
    words = (str(HERE / "holding_script.py"), "--until", str(go), fail_at(node="worker-1", step=3, how="kill"))
    with running(jobs, "--workers", "2", "--memory", "1Gi", "--cpu", "1", *words) as job:
        done = job.wait_for(
            lambda found: (
                set(found.by("elastane_dataset_finished", "dataset").values()) == {1}
                and found.value("elastane_node_relaunches_total", job="job", role="worker") == 1
                and found.by("elastane_node_rank", "node").keys() == {"worker-0", "worker-2"}
            )
        )
        done.check(MASTER)
        status = job.status()
        assert status["metrics"] == job.address
        agree(done, status)
        assert sum(done.by("elastane_samples_committed_total", "dataset").values()) == 4000
        assert done.value("elastane_node_exits_total", job="job", role="worker", reason="killed") == 1
        assert done.value("elastane_node_relaunches_total", job="job", role="worker") == 1
        assert done.by("elastane_node_memory_limit_bytes", "node") == {"worker-0": 2.0**30, "worker-2": 2.0**30}
        assert done.by("elastane_node_cpu_limit_cores", "node") == {"worker-0": 1, "worker-2": 1}
        assert min(done.by("elastane_tasks_leased_total", "dataset").values()) > 0
        assert done.value("elastane_events_total", job="job", kind="node_ended") == 1
        assert done.value("elastane_journal_bytes", job="job") > 0
        for method, path in [("GET", "/"), ("GET", "/metrics/x"), ("POST", "/metrics"), ("DELETE", "/metrics")]:
            assert status_of(job.address, method, path) == 404
        record = json.loads((jobs.folder / "state" / "jobs" / "job" / "job.json").read_text())
        assert record["token"] not in done.text
        promtool("check", "metrics", text=done.text)

        (master,) = [
            child for child in psutil.Process(job.process.pid).children() if "elastane.master" in child.cmdline()
        ]
        os.kill(master.pid, signal.SIGKILL)
        again = job.wait_for(
            lambda found: (
                found.by("elastane_events_total", "kind").get("master_restarted") == 1
                and sum(found.by("elastane_node_attending", "node").values()) == 2
            )
        )
        agree(again, job.status())
        go.touch()
        job.process.communicate(timeout=TIMEOUT_S)
        assert job.process.returncode == 0
        ended = job.status()
        assert ended["metrics"] is None
        assert ended["datasets"] == status["datasets"]


def test_a_port_for_metrics_that_is_taken_is_one_clear_line(jobs: Jobs) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = jobs.command("run", "--metrics-port", port, str(HERE / "counting_script.py"))
    assert done.returncode == 2
    assert done.stderr == f"error: metrics-port: {port} cannot be listened on: Address already in use\n"
    assert jobs.command("jobs", "--json").stdout == "[]\n"


@pytest.mark.slow
def test_what_changes_of_the_world_cost_is_told_by_their_cause(jobs: Jobs) -> None:
    script = (str(HERE / "training_script.py"), "--step-ms", "10")
    stalled = "elastane_world_stall_seconds_count"
    with running(jobs, "--workers", "2:3", "--heartbeat-timeout", "5", *script) as job:
        job.wait_for(lambda found: "elastane_step_seconds" in found.families)
        assert jobs.command("scale", "job", "--workers", "3").returncode == 0
        joined = job.wait_for(lambda found: found.value(stalled, job="job", cause="join") == 1)
        assert joined.value("elastane_world_size", job="job") == 3
        before = joined.value("elastane_steps_total", job="job")
        job.wait_for(lambda found: found.value("elastane_steps_total", job="job") > before + 10)
        victim = next(node for node in job.status()["nodes"] if node["rank"] == 1)
        os.kill(victim["pid"], signal.SIGKILL)
        crashed = job.wait_for(lambda found: found.value(stalled, job="job", cause="crash") == 1)
        assert crashed.value("elastane_world_change_seconds_count", job="job", cause="start") == 1
        assert crashed.value("elastane_world_change_seconds_count", job="job", cause="join") >= 1
        assert crashed.value("elastane_world_change_seconds_count", job="job", cause="crash") == 1
        assert 0 <= crashed.value("elastane_world_stall_seconds_sum", job="job", cause="crash") < 10
        used = job.wait_for(lambda found: "elastane_step_seconds" in found.families)
        used.check(MASTER)
        assert set(used.by("elastane_step_seconds", "part")) == {"whole", "input", "pull", "push", "sync"}
        assert min(used.by("elastane_node_memory_bytes", "node").values()) > 2**20
        assert used.by("elastane_node_cpu_cores", "node").keys() <= used.by("elastane_node_rank", "node").keys()
        promtool("check", "metrics", text=used.text)


@pytest.mark.slow
def test_parameter_servers_serve_what_they_have_and_the_master_what_they_say(jobs: Jobs) -> None:
    warm_up()
    keys.warm_up()
    go = jobs.folder / "go"
    plan = ("--then", "even 2", "--then", "steps 10", "--then", f"file {go}")
    script = (str(HERE / "ps_script.py"), "--done", str(jobs.folder / "done"), "--rows", "50", *plan)
    words = ("--workers", "1", "--ps", "2", "--ps-buckets", "64", "--ps-backups", "--heartbeat-timeout", "30", *script)
    with running(jobs, *words, env={"ELASTANE_METRICS": "127.0.0.1:0"}) as job:
        found = job.wait_for(
            lambda found: (
                found.by("elastane_server_buckets", "node") == {"ps-0": 32, "ps-1": 32}
                and found.by("elastane_server_backups", "node") == {"ps-0": 32, "ps-1": 32}
                and found.by("elastane_table_rows", "table") == {"counting": 100}
                and sum(found.by("elastane_server_rows_per_second", "node").values()) > 0
            )
        )
        found.check(MASTER)
        assert found.value("elastane_servers_wanted", job="job") == 2
        assert found.value("elastane_servers_settled", job="job") == 1
        assert found.value("elastane_buckets", job="job") == 64
        assert found.value("elastane_buckets_moving", job="job") == 0
        assert min(found.by("elastane_server_memory_bytes", "node").values()) > 2**20
        assert found.value("elastane_nodes", job="job", role="ps", status="running") == 2
        promtool("check", "metrics", text=found.text)
        rows = 0.0
        for node in ("ps-0", "ps-1"):
            (address,) = re.findall(r'"address": "(127\.0\.0\.1:\d+)", "event": "serves_metrics"', job.log(node))
            own = fetch(address)
            own.check(PS)
            labels = {"job": "job", "node": node}
            assert own.value("elastane_ps_attends", **labels) == 1
            assert own.value("elastane_ps_rows_total", **labels) > 0
            assert own.value("elastane_ps_buckets", state="owned", **labels) == 32
            assert own.value("elastane_ps_buckets", state="replica", **labels) == 32
            assert own.value("elastane_ps_moves_total", outcome="failed", **labels) == 0
            rows += own.value("elastane_ps_table_rows", table="counting", **labels)
            assert status_of(address, "GET", "/") == 404
            promtool("check", "metrics", text=own.text)
        assert rows == 100, "50, and the backups of them"
        go.touch()
        job.process.communicate(timeout=TIMEOUT_S)
        assert job.process.returncode == 0


async def test_a_brain_serves_what_it_was_asked_and_told(tmp_path: Path) -> None:
    process = BrainProcess(None, tmp_path, "--metrics-port", "0")
    process.start()
    try:
        said = re.fullmatch(r"metrics of the Brain: at http://(.*)/metrics\n", process.next_line())
        assert said is not None
        client = BrainClient(process.address, process.token, make_run("ctr-1"), lambda: 100.0)
        client.start()
        for at_s in (10.0, 20.0, 30.0):
            client.report(make_report(at_s))
        await until(lambda: client.waiting == 0)
        await client.plan(Budget(max_workers=4), None, timeout_s=30.0)
        await client.close()
        stranger = BrainClient(process.address, "not-the-token-of-it", make_run("ctr-2"), lambda: 100.0)
        stranger.start()
        stranger.report(make_report())
        requests = "elastane_brain_requests_total"
        await until(lambda: ("Register", "unauthenticated") in asked(fetch(said[1])))
        await stranger.close()
        found = fetch(said[1])
        found.check(BRAIN)
        assert found.value("elastane_brain_rows_total") == 3
        assert found.value("elastane_brain_reports_total", outcome="not_stored") == 0
        assert 1 <= found.value("elastane_brain_reports_total", outcome="stored") <= 3
        assert sum(found.by("elastane_brain_plans_total", "outcome").values()) == 1
        assert found.value(requests, method="Register", outcome="ok") == 1
        assert found.value(requests, method="Plan", outcome="ok") == 1
        assert found.value("elastane_brain_request_seconds_count", method="Plan") == 1
        assert found.value("elastane_brain_plans_waiting") == 0
        assert process.token not in found.text
        assert status_of(said[1], "GET", "/") == 404
        promtool("check", "metrics", text=found.text)
    finally:
        process.close()


def asked(found: Scraped) -> set[tuple[str, str]]:
    """The methods that were called, and how they were answered."""
    labels = [dict(labels) for name, labels in found.samples if name == "elastane_brain_requests_total"]
    return {(one["method"], one["outcome"]) for one in labels}


def test_a_jobs_scalars_are_in_the_folder_that_was_named(jobs: Jobs) -> None:
    folder = jobs.folder / "runs" / "first"
    done = jobs.run("--samples", "500", options=("--tensorboard", str(folder)))
    assert done.code == 0, done.stderr
    (file,) = folder.iterdir()
    assert b"job/samples_per_s" in file.read_bytes()
    taken = jobs.command("run", "--tensorboard", str(file), str(HERE / "counting_script.py"))
    assert (taken.returncode, taken.stderr) == (2, f'error: tensorboard: "{file}" cannot be made: File exists\n')
