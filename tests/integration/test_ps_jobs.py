"""Jobs with parameter servers, as real processes: servers come, go, move and die while workers push, and rows count."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elastane.ps import keys
from elastane.ps.store import warm_up
from tests.integration.harness import Finished, Jobs

SCRIPT = str(Path(__file__).with_name("ps_script.py"))
CALM = ("even 2", "steps 30")


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Compiled once, and not by all servers and workers at the same time."""
    warm_up()
    keys.warm_up()


def count(jobs: Jobs, *plan: str, options: tuple[str, ...] = (), name: str = "job", workers: int = 2) -> Finished:
    """Run workers that count on two servers, while the first of them carries out the plan."""
    steps = [word for step in plan for word in ("--then", step)]
    started = ("--ps=2", f"--workers={workers}", "--ps-buckets=64", "--heartbeat-timeout=30", *options)
    done = jobs.run("--done", str(jobs.folder / f"{name}-done"), *steps, options=started, name=name, script=SCRIPT)
    assert done.code == 0, done.stderr + done.stdout
    return done


def lost(done: Finished) -> list[int]:
    """The most that each worker's rows ever lacked."""
    return [int(found) for found in re.findall(r"counted \d+ lost (\d+)", done.stdout)]


def clusters(done: Finished) -> list[list[int]]:
    """The servers of every change that was through."""
    return [event["servers"] for event in done.of("servers_published", settled=True)]


@pytest.mark.slow
def test_servers_grow_and_shrink_while_workers_count(jobs: Jobs) -> None:
    done = count(
        jobs, *CALM, "run scale JOB --ps 3", "even 3", "steps 30", "run scale JOB --ps 1", "even 1", "steps 100"
    )
    assert lost(done) == [0, 0]
    assert [0, 1] in clusters(done)
    assert [0, 1, 2] in clusters(done)
    assert clusters(done)[-1] == [0]
    left = done.of("node_ended", released=True)
    assert {event["node"] for event in left} >= {"job-ps-1", "job-ps-2"}
    versions = [event["version"] for event in done.of("servers_published")]
    assert versions == sorted(set(versions)), "every change has its own version"


@pytest.mark.slow
def test_a_server_is_removed_only_after_its_buckets_have_moved_and_all_have_confirmed(jobs: Jobs) -> None:
    done = count(jobs, *CALM, "run scale JOB --ps 1", "even 1", "steps 200")
    kinds = [(event["kind"], event) for event in done.events]
    through = next(place for place, (kind, event) in enumerate(kinds) if clusters_is(kind, event, [0]))
    asked = next(
        place for place, (kind, event) in enumerate(kinds) if kind == "node_leaving" and event["node"] == "job-ps-1"
    )
    assert asked > through
    assert lost(done) == [0, 0]


def clusters_is(kind: str, event: dict[str, object], servers: list[int]) -> bool:
    return kind == "servers_published" and bool(event["settled"]) and event["servers"] == servers


@pytest.mark.slow
def test_a_server_moves_to_one_with_more_memory(jobs: Jobs) -> None:
    done = count(
        jobs,
        *CALM,
        "run migrate JOB ps-1 --memory 3Gi",
        "moved 32",
        "even 2",
        "steps 100",
        options=("--ps-memory=2Gi",),
    )
    assert lost(done) == [0, 0]
    assert clusters(done)[-1] == [0, 2]
    (twin,) = done.of("node_launched", node="ps-2")
    assert twin["memory"] == "3Gi"


@pytest.mark.slow
def test_a_change_back_in_the_middle_of_another_ends_well(jobs: Jobs) -> None:
    done = count(
        jobs, *CALM, "run scale JOB --ps 3", "moved 4", "run scale JOB --ps 2", "moved 1", "even 2", "steps 100"
    )
    assert lost(done) == [0, 0]
    assert clusters(done)[-1] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["ps-0", "ps-1", "ps-2"])
def test_with_backups_nothing_is_lost_with_a_server_that_dies_in_a_move(jobs: Jobs, victim: str) -> None:
    done = count(
        jobs,
        *CALM,
        "run scale JOB --ps 3",
        "moved 4",
        f"fault kill-node={victim}",
        "steps 20",
        "even 3",
        "steps 50",
        options=("--ps-backups",),
    )
    assert lost(done) == [0, 0]
    assert done.of("node_ended", node=victim, reason="killed")
    assert len(clusters(done)[-1]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("backups", [(), ("--ps-backups",)])
def test_the_master_dies_in_a_move(jobs: Jobs, backups: tuple[str, ...]) -> None:
    done = count(
        jobs, *CALM, "run scale JOB --ps 3", "moved 4", "fault kill-master", "even 3", "steps 100", options=backups
    )
    assert lost(done) == [0, 0]
    assert done.of("master_restarted")
    assert {event["reason"] for event in done.of("node_ended", released=False)} == {"done"}


@pytest.mark.slow
def test_a_worker_dies_in_a_move(jobs: Jobs) -> None:
    done = count(
        jobs,
        *CALM,
        "run scale JOB --ps 3",
        "moved 4",
        "fault kill-node=worker-1",
        "even 3",
        "run scale JOB --ps 1",
        "even 1",
        "steps 300",
    )
    assert lost(done) == [0, 0]
    assert clusters(done)[-1] == [0]
    assert done.of("node_ended", node="worker-1", reason="killed")


@pytest.mark.slow
def test_without_backups_a_dead_servers_rows_come_back_from_the_checkpoint(jobs: Jobs) -> None:
    folder = jobs.folder / "checkpoints"
    done = count(
        jobs,
        *CALM,
        "run save JOB",
        f"file {folder}/00000001/manifest.json",
        "steps 100",
        "fault kill-node=ps-0",
        "steps 20",
        "even 2",
        "steps 20",
        options=(f"--ps-checkpoint={folder}",),
        workers=1,
    )
    (most,) = lost(done)
    saved_after = int(re.findall(r"plan: file \S+ at step (\d+)", done.stdout)[0])
    assert 90 <= most <= 200 + saved_after
    assert [event["folder"] for event in done.of("servers_saved")] == [f"{folder}/00000001", f"{folder}/00000002"]


@pytest.mark.slow
def test_a_job_goes_on_from_the_servers_checkpoint_with_another_number_of_servers(jobs: Jobs) -> None:
    folder = jobs.folder / "checkpoints"
    saves = (f"--ps-checkpoint={folder}",)
    first = count(jobs, "even 2", "steps 50", options=saves, name="first", workers=1)
    again = count(jobs, "even 3", "steps 5", options=(*saves, "--ps=3"), name="second", workers=1)
    (begun,) = again.of("servers_restored")
    assert begun["folder"] == f"{folder}/00000001"
    (position,) = again.of("position_restored")
    committed = sum(event["end"] - event["start"] for event in first.of("samples_committed"))
    assert position["now"] == committed
    (found,) = re.findall(r"began with (\d+)", again.stdout)
    (pushed,) = re.findall(r"counted (\d+)", first.stdout)
    assert found == pushed


def test_requests_that_make_no_sense_are_refused_with_one_line(jobs: Jobs) -> None:
    def refusal(*words: str) -> str:
        done = jobs.command(*words)
        assert done.returncode != 0
        (line,) = done.stderr.splitlines()
        return line

    run = ("run", "--name", "job")
    assert "parameter servers are not used with" in refusal(*run, "--ps=2", "--strategy=ring-allreduce", SCRIPT)
    assert "ps-memory: there are no parameter servers without --ps" in refusal(*run, "--ps-memory=1Gi", SCRIPT)
    assert 'ps: "two" is neither a number' in refusal(*run, "--ps=two", SCRIPT)
    assert "scale: say --workers, or --ps" in refusal("scale", "job")


@pytest.mark.slow
def test_a_job_without_servers_says_so_and_one_with_them_keeps_to_its_limits(jobs: Jobs) -> None:
    plain = jobs.run(
        "--samples=100000",
        "--fault=worker-0@5:command=scale JOB --ps 2",
        "--fault=worker-0@6:command=migrate JOB ps-0 --memory 1Gi",
        "--break-at=8",
    )
    assert plain.stdout.count("has no parameter servers; it was started without --ps") == 2
    done = count(
        jobs,
        "even 2",
        "run scale JOB --ps 0",
        "run migrate JOB ps-7",
        "run save JOB",
        "run status JOB --json",
        "steps 1500",
        name="limits",
        workers=1,
    )
    assert 'ps: 0 is below min 1 in job "limits"' in done.stdout
    assert 'node "ps-7" is not in job "limits"; it has ps-0, ps-1' in done.stdout
    assert "has no folder for checkpoints" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if '"servers"' in line]
    view = json.loads(line[line.index("{") :])["servers"]
    assert view["wanted"] == 2
    assert sum(node["buckets"] for node in view["nodes"]) == 64
    assert [table["name"] for table in view["tables"]] == ["counting"]
    assert all(node["memory_bytes"] > 0 for node in view["nodes"])
