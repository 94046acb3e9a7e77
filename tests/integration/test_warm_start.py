"""Warm starts: a worker forked from the nursery is in nothing to be told from one that was started plainly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.agent_driver import DrivenAgent
from tests.integration.harness import ROOT, Finished, Jobs, read_events

ENDS = Path(__file__).with_name("ending_script.py")
TRAINS = Path(__file__).with_name("torch_script.py")
NEVER_ALIKE = {"seeds"}


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenAgent]:
    with DrivenAgent(tmp_path_factory.mktemp("cold"), _command(), "--no-warm-start") as agent:
        yield agent


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenAgent]:
    with DrivenAgent(tmp_path_factory.mktemp("warm"), _command()) as agent:
        agent.run_until_warm("returns")
        yield agent


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("returns", 0),
        ("raises", 1),
        ("raises_with_hook", 1),
        ("raises_in_thread", 0),
        ("exits", 3),
        ("exits_with_text", 1),
        ("exits_at_once", 4),
        ("outlived_by_thread", 0),
        ("interrupted", -signal.SIGINT),
        ("terminated", -signal.SIGTERM),
        ("killed", -signal.SIGKILL),
        pytest.param("spawns", 0, marks=pytest.mark.slow),
        pytest.param("forkservers", 0, marks=pytest.mark.slow),
        ("loads_data", 0),
    ],
)
def test_an_end_is_the_same_however_the_worker_was_started(
    cold: DrivenAgent, warm: DrivenAgent, how: str, code: int
) -> None:
    plain, forked = cold.run(how), warm.run(how)
    assert (plain.warm, forked.warm) == (False, True)
    assert (forked.code, forked.printed) == (plain.code, plain.printed)
    assert forked.code == code, forked.printed
    assert "begins\n" in forked.printed


def test_a_warm_worker_finds_what_a_plain_one_finds(cold: DrivenAgent, warm: DrivenAgent) -> None:
    plain, forked = (_told(agent.run("tells").printed) for agent in (cold, warm))
    assert {name for name, value in plain.items() if forked[name] != value} == NEVER_ALIKE


def test_siblings_have_no_randomness_in_common(warm: DrivenAgent) -> None:
    first, second = (_told(warm.run("tells").printed)["seeds"] for _ in range(2))
    assert not set(first.values()) & set(second.values())


@pytest.mark.slow
def test_a_warm_worker_on_one_core_has_the_threads_of_a_plain_one(tmp_path: Path) -> None:
    with DrivenAgent(tmp_path, _command(), cpu=1) as agent:
        plain = _told(agent.run("tells").printed)
        agent.run_until_warm("returns")
        forked = agent.run("tells-again")
        assert forked.warm
        told = _told(forked.printed)
    assert told["threads"] == plain["threads"]
    assert told["threads"]["torch"] == 1
    assert told["cores"] == plain["cores"] == 1


def test_a_node_with_other_variables_is_started_plainly(warm: DrivenAgent) -> None:
    other = warm.run("tells", OMP_NUM_THREADS="1")
    assert not other.warm
    assert _told(other.printed)["threads"]["torch"] == 1
    assert warm.run("returns").warm


@pytest.mark.slow
def test_a_nursery_that_hangs_costs_no_more_than_a_plain_start(tmp_path: Path) -> None:
    with DrivenAgent(tmp_path, _command()) as agent:
        agent.run_until_warm("returns")
        nursery = agent.nursery()
        nursery.suspend()
        plain = agent.run("exits")
        assert (plain.warm, plain.code) == (False, 3)
        psutil.wait_procs([nursery], timeout=5)
        assert not nursery.is_running()
        assert plain.printed.count("begins") == 1, "the late one and its substitute are not both"


@pytest.mark.slow
def test_a_warm_worker_outlives_the_nursery_and_the_next_is_started_plainly(tmp_path: Path) -> None:
    with DrivenAgent(tmp_path, _command()) as agent:
        agent.run_until_warm("returns")
        waiting = agent.launch("waits")
        assert waiting["warm"]
        agent.nursery().kill()
        assert not agent.run("returns").warm
        worker = psutil.Process(waiting["pid"])
        assert worker.ppid() == agent.process.pid
        worker.terminate()
        assert agent.report()["code"] == -signal.SIGTERM


@pytest.mark.slow
def test_an_agent_that_is_killed_takes_nursery_and_warm_workers_along(tmp_path: Path) -> None:
    with DrivenAgent(tmp_path, _command()) as agent:
        agent.run_until_warm("returns")
        assert agent.launch("waits")["warm"]
        family = agent.process.children(recursive=True)
        assert len(family) == 2
        agent.process.kill()
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive


@pytest.mark.slow
def test_a_module_of_the_users_is_not_passed_over(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport wave\nprint(wave.__file__)\nimport calendar\nprint(calendar.__file__)\n")
    mine = {tmp_path / "wave.py", tmp_path / "calendar.py"}
    for path in mine:
        path.touch()
    with DrivenAgent(tmp_path, [sys.executable, str(script)]) as agent:
        first = agent.launch("first")
        nursery = agent.nursery()
        psutil.wait_procs([nursery], timeout=30)
        assert "has the name of a module that is in use; workers are started plainly" in agent.log.read_text()
        assert agent.report()["code"] == 0
        second = agent.run("second")
        assert not first["warm"]
        assert not second.warm
        assert set(map(Path, second.printed.split())) == mine


def test_a_killed_worker_is_replaced_by_a_warm_one_and_nothing_is_left_of_the_job(jobs: Jobs) -> None:
    done = _train(jobs, "kill-self")
    assert done.code == 0, done.stderr
    assert _said(done) == ["started plainly by the agent", "started warm by the agent"]
    assert [event["reason"] for event in done.of("node_ended")] == ["killed", "done"]
    assert sum(done.committed().values()) == 1000
    assert max(done.committed().values()) == 1
    assert not _left_of(jobs)


@pytest.mark.slow
def test_a_job_whose_nursery_is_killed_goes_on(jobs: Jobs) -> None:
    done = _train(jobs, "kill-nursery")
    assert done.code == 0, done.stderr
    assert _said(done) == ["started plainly by the agent", "started plainly by the agent"]
    assert sum(done.committed().values()) == 1000
    assert not _left_of(jobs)


def test_without_warm_start_there_is_no_nursery(jobs: Jobs) -> None:
    done = _train(jobs, "count-children", "--no-warm-start")
    assert done.code == 0, done.stderr
    assert "] the agent has 1 children" in done.stdout


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_no_nursery_behind(jobs: Jobs) -> None:
    done = _train(jobs, "kill-launcher")
    assert done.code == -signal.SIGKILL
    _, alive = psutil.wait_procs(_left_of(jobs), timeout=5)
    assert not alive


def _command() -> list[str]:
    return [sys.executable, str(ENDS.relative_to(ROOT)), "an argument", "--another"]


def _told(printed: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(printed.splitlines()[1])
    return told


def _train(jobs: Jobs, how: str, *options: str) -> Finished:
    events = jobs.folder / "events.jsonl"
    words = ("--name", "job", "--events", str(events), *options, str(TRAINS), how)
    done: subprocess.CompletedProcess[str] = jobs.command("run", *words)
    return Finished(done.returncode, done.stdout, done.stderr, read_events(events))


def _said(done: Finished) -> list[str]:
    return [line.split("] ", 1)[1] for line in done.stdout.splitlines() if "] started" in line]


def _left_of(jobs: Jobs) -> list[psutil.Process]:
    """The processes of the jobs of one state folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ELASTANE_STATE_DIR") == jobs.env["ELASTANE_STATE_DIR"]:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
