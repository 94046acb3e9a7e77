"""`elastane.Client` on this machine: real jobs in processes, submitted, followed, changed and ended by a program."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastane.cli.app import main
from elastane.client import Client, JobState, JobView
from elastane.client.client import _lines
from elastane.model.errors import (
    InvalidInput,
    InvalidJobSpec,
    JobExists,
    JobNotFound,
    NotInTime,
    PlatformError,
    RequestRefused,
)
from elastane.model.event import Event
from elastane.model.job_spec import load_job
from elastane.platform.local.registry import STATE_ENV
from tests.faults import fail_at
from tests.integration.harness import ROOT, SCRIPT, Jobs, left_behind, read_events

TIMEOUT_S = 60.0
ENDLESS = "--samples=100000000"


@pytest.fixture
def client(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client with a state folder of its own, which it shares with the commands of `jobs`; nothing outlives it."""
    for name in (STATE_ENV, "PYTHONPATH"):
        monkeypatch.setenv(name, jobs.env[name])
    monkeypatch.chdir(ROOT)
    with Client() as found:
        yield found
        found.delete(*(job.name for job in found.list_jobs()), at_once=True)
    assert left_behind(Path(jobs.env[STATE_ENV])) == []


def document(*arguments: str, name: str = "job", workers: int = 1, **spec: Any) -> dict[str, Any]:
    """A job of the counting script."""
    container = {"command": [sys.executable, SCRIPT, *arguments]}
    worker = {"replicas": workers, "maxReplicas": 4, "template": {"spec": {"containers": [container]}}}
    return {"metadata": {"name": name}, "spec": {"worker": worker, **spec}}


def until(events: Iterator[Event], kind: str, **fields: object) -> Event:
    """The next event of a kind whose fields have these values."""
    return next(event for event in events if event.kind == kind and fields.items() <= event.fields.items())


def launcher_of(jobs: Jobs) -> psutil.Process:
    """The launcher of the one job that was submitted."""
    (found,) = (
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if "elastane.client.launcher" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get(STATE_ENV) == jobs.env[STATE_ENV]
    )
    return found


def test_a_submitted_job_runs_to_its_end_and_is_remembered(client: Client, tmp_path: Path) -> None:
    file, events_file = tmp_path / "job.json", tmp_path / "events.jsonl"
    places = [fail_at(node=f"worker-{number}", step=1, how="place") for number in (0, 1)]
    file.write_text(json.dumps(document("--samples=2000", *places, workers=2)))
    submitted = client.submit(file, name="named", events_file=events_file)
    assert (submitted.name, submitted.state) == ("named", JobState.RUNNING)

    lines = list(client.get_job_logs("named", follow=True))
    events = list(client.get_job_events("named", follow=True))
    job = client.wait_for_job("named", timeout_s=TIMEOUT_S)
    assert (job.state, job.ended, job.committed, job.reason) == (JobState.SUCCEEDED, True, 2000, "")
    assert [(node.name, node.role, node.status, node.reason) for node in job.nodes] == [
        (f"named-worker-{number}", "worker", "succeeded", "done") for number in (0, 1)
    ]
    assert sum(node.committed_samples for node in job.nodes) == 2000
    assert client.get_job("named") == job
    assert client.list_jobs() == [job]

    assert {line.split()[0] for line in lines} == {"[worker-0]", "[worker-1]"}
    own = [line.removeprefix("[worker-0] ") for line in lines if line.startswith("[worker-0]")]
    assert list(client.get_job_logs("named", "worker-0")) == own
    assert list(client.get_job_logs("named", "named-worker-0", tail=1)) == own[-1:]
    assert "".join(client.get_job_output("named", "worker-0")) == "".join(f"{line}\n" for line in own)

    assert list(client.get_job_events("named")) == events
    written = [event for event in read_events(events_file) if event["kind"] != "samples_committed"]
    assert [event.kind for event in events] == [event["kind"] for event in written]
    for line, event in zip(written, events, strict=True):
        assert line == {"time": line["time"], "kind": event.kind, **event.fields}
    assert sum(event["kind"] == "samples_committed" for event in read_events(events_file)) > 0


def test_a_running_job_is_followed_scaled_and_drained(client: Client) -> None:
    client.submit(document(ENDLESS, fail_at(node="worker-0", step=1, how="place")))
    events = client.get_job_events("job", follow=True)
    lines = client.get_job_logs("job", "worker-0", follow=True)  # It may not have printed yet.
    assert until(events, "world_settled").fields["members"] == ["job-worker-0"]
    assert [next(lines).split(" at ")[0], next(lines)] == ["fault place", "rank 0 of 1"]

    client.scale("job", workers=2)
    assert until(events, "scaled", workers=2).fields["before"] == 1
    assert client.wait_for_job("job", TIMEOUT_S, lambda job: job.world_size == 2).workers_wanted == 2
    client.drain("job", "worker-0")
    assert until(events, "node_ended", node="job-worker-0").fields["released"]
    job = client.wait_for_job("job", TIMEOUT_S, lambda job: job.world_size == 1)
    assert [node.name for node in job.running()] == ["job-worker-1"]
    assert job.nodes[1].pid is not None
    assert psutil.pid_exists(job.nodes[1].pid)
    assert client.wait_for_job("job", until=JobState.RUNNING).state is JobState.RUNNING

    with pytest.raises(NotInTime, match=r'^job "job" is running, not ended, after 0.1 s$') as late:
        client.wait_for_job("job", timeout_s=0.1)
    assert isinstance(late.value, TimeoutError)
    with pytest.raises(NotInTime, match=r'^job "job" is running, not suspended, after 0 s$'):
        client.wait_for_job("job", 0, JobState.SUSPENDED)
    with pytest.raises(RequestRefused, match=r'^workers: 5 is above max 4 in job "job"$'):
        client.scale("job", workers=5)
    with pytest.raises(RequestRefused, match=r'^node "worker-7" is not in job "job"; it has worker-1$'):
        client.drain("job", "worker-7")
    with pytest.raises(RequestRefused, match=r'^job "job" has no parameter servers'):
        client.migrate("job", "ps-0", memory="1Gi")
    with pytest.raises(RequestRefused, match=r'^job "job" has no parameter servers'):
        client.save("job")
    for follow in (False, True):
        with pytest.raises(InvalidInput, match=r'^node: "worker-7" has no log in job "job"; there are agent, launcher'):
            client.get_job_logs("job", "worker-7", follow=follow)

    told: list[tuple[str, str]] = []
    watched = client.watch_job("job")
    assert next(watched).state is JobState.RUNNING
    client.delete("job", tell=lambda name, text: told.append((name, text)))
    assert told == [("job", "draining"), ("job", "deleted")]
    with pytest.raises(JobNotFound, match=r'^job "job" was deleted before its end was seen$'):
        list(watched)
    assert client.list_jobs() == []


def test_a_job_outlives_its_submitter_and_ends_when_its_launcher_is_told_to(client: Client, jobs: Jobs) -> None:
    script = f"import elastane; print(elastane.Client().submit({document(ENDLESS)!r}).state)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=jobs.env)
    assert (done.stdout, done.stderr) == ("running\n", "")
    events = client.get_job_events("job", follow=True)
    until(events, "world_settled")
    launcher_of(jobs).terminate()
    assert [event.fields["end"] for event in events if event.kind == "job_ended"] == ["stopped"]
    job = client.wait_for_job("job", TIMEOUT_S)
    assert (job.state, job.nodes[0].reason) == (JobState.STOPPED, "done")

    with pytest.raises(RequestRefused, match=r'^job "job" has ended$'):
        client.scale("job", workers=2)
    with pytest.raises(RequestRefused, match=r'^job "job" has ended$'):
        client.drain("job", "worker-0")
    with pytest.raises(JobExists, match=r'^job "job" has ended; `elastane delete` removes its record$'):
        client.submit(document())
    told: list[str] = []
    client.delete("job", "job", tell=lambda _, text: told.append(text))
    assert told == ["deleted"]


def test_a_job_whose_master_dies_is_followed_all_the_same(client: Client, jobs: Jobs) -> None:
    client.submit(document(ENDLESS))
    events, views = client.get_job_events("job", follow=True), client.watch_job("job")
    until(events, "world_settled")
    (master,) = (child for child in launcher_of(jobs).children() if "elastane.master" in child.cmdline())
    master.kill()
    assert until(events, "master_restarted").fields["job"] == "job"
    until(events, "node_attended", resumed=True)
    assert next(view for view in views if view.state is JobState.RUNNING and view.world_size == 1).nodes
    client.delete("job", at_once=True)


def test_a_job_that_fails_says_why(client: Client) -> None:
    client.submit(load_job(document("--poison=5", maxTaskRetries=1)))
    job = client.wait_for_job("job", TIMEOUT_S, until=JobState.SUCCEEDED)
    assert (job.state, job.reason) == (JobState.FAILED, job.reason)
    assert job.reason.startswith('data set "batches-0", epoch 0 samples 0..')
    assert any("ValueError: sample 5 is broken" in line for line in client.get_job_logs("job", "worker-0"))


async def test_a_client_works_inside_a_running_event_loop(client: Client) -> None:
    client.submit(document("--samples=500"))
    assert client.wait_for_job("job", TIMEOUT_S).committed == 500
    assert [job.state for job in client.list_jobs()] == [JobState.SUCCEEDED]


def test_the_commands_and_the_client_say_the_same(
    client: Client, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit(document("--samples=300", fail_at(node="worker-0", step=1, how="place")))
    job = client.wait_for_job("job", TIMEOUT_S)
    assert jobs.run("--samples=20", name="run").code == 0

    def command(*words: str) -> tuple[int, str, str]:
        """The command in this process, which is much faster than another."""
        monkeypatch.setattr(sys, "argv", ["elastane", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    def said(view: JobView) -> dict[str, Any]:
        return {
            **{key: getattr(view, key) for key in ("state", "reason", "elapsed_s", "workers_wanted", "steps")},
            "job": view.name,
            "samples_per_s": view.samples_per_s,
            "world": {"version": view.world_version, "size": view.world_size},
            "nodes": [(node.name, node.rank, node.status, node.reason) for node in view.nodes],
            "datasets": [asdict(dataset) for dataset in view.datasets],
        }

    def printed(status: dict[str, Any]) -> dict[str, Any]:
        keys = ("name", "rank", "status", "exit_reason")
        nodes = [tuple(node[key] for key in keys) for node in status["nodes"]]
        return {key: nodes if key == "nodes" else status[key] for key in said(job)}

    assert printed(json.loads(command("status", "job", "--json")[1])) == said(job)
    listed = json.loads(command("jobs", "--json")[1])
    assert [printed(status) for status in listed] == [said(view) for view in client.list_jobs()]
    assert [view.name for view in client.list_jobs()] == ["job", "run"]
    assert command("logs", "job", "worker-0")[1] == "".join(client.get_job_output("job", "worker-0"))
    assert command("logs", "job", "worker-0", "--tail=1")[1].splitlines() == list(
        client.get_job_logs("job", "worker-0", tail=1)
    )
    for words, ask in (
        (("status", "ghost"), lambda: client.get_job("ghost")),
        (("logs", "ghost", "worker-0"), lambda: client.get_job_logs("ghost", "worker-0")),
        (("logs", "job", "worker-5"), lambda: client.get_job_logs("job", "worker-5")),
        (("scale", "job", "--workers=2"), lambda: client.scale("job", 2)),
        (("drain", "run", "worker-0"), lambda: client.drain("run", "worker-0")),
        (("migrate", "run", "ps-0", "--cpu=1"), lambda: client.migrate("run", "ps-0", cpu=1)),
        (("save", "run"), lambda: client.save("run")),
        (("delete", "job", "ghost"), lambda: client.delete("job", "ghost")),
    ):
        with pytest.raises((JobNotFound, InvalidInput, RequestRefused)) as error:
            ask()
        code = 2 if isinstance(error.value, InvalidInput) else 1
        assert command(*words) == (code, "", f"error: {error.value}\n")
    assert command("delete", "job") == (0, "job: deleted\n", "")
    assert [view.name for view in client.list_jobs()] == ["run"]


def test_a_job_that_is_not_known_is_said_at_once(client: Client) -> None:
    for ask in (
        client.get_job,
        client.wait_for_job,
        client.watch_job,
        client.get_job_logs,
        client.get_job_events,
        client.delete,
        client.save,
        lambda name: client.scale(name, 1),
        lambda name: client.drain(name, "worker-0"),
        lambda name: client.get_job_logs(name, "worker-0", follow=True),
    ):
        with pytest.raises(JobNotFound, match=r'^job "ghost" is not known here; known: none$'):
            ask("ghost")


def test_what_cannot_be_used_is_said_in_one_line_and_starts_nothing(client: Client, tmp_path: Path) -> None:
    spec = document()["spec"]
    with pytest.raises(InvalidJobSpec) as several:
        client.submit({"metadata": {"name": "A b"}, "spec": {**spec, "replica": 2}})
    assert [problem.split(":")[0] for problem in several.value.problems] == ["metadata.name", "spec.replica"]
    with pytest.raises(InvalidJobSpec, match=r"^metadata.name: missing$"):
        client.submit({"metadata": {}, "spec": spec})
    with pytest.raises(InvalidJobSpec, match=r'^metadata.name: "No!" is not a job name'):
        client.submit({"spec": spec}, name="No!")
    with pytest.raises(InvalidInput, match=r'^file: "/nowhere/job.yaml" cannot be read: No such file or directory$'):
        client.submit("/nowhere/job.yaml")
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(InvalidInput, match=r'^file: ".*job.json" is not JSON: '):
        client.submit(tmp_path / "job.json")
    with pytest.raises(InvalidInput, match=r'^spec.worker: nobody launches workers of job "guests"'):
        client.submit({"metadata": {"name": "guests"}, "spec": {"worker": {"guests": True}}})
    with pytest.raises(InvalidInput, match=r'^events_file: "/nowhere/events" cannot be written: No such file'):
        client.submit(document(), events_file="/nowhere/events")
    with pytest.raises(InvalidInput, match=r"^scale: say workers, or ps, or both$"):
        client.scale("job")
    with pytest.raises(InvalidInput, match=r"^workers: -1 is not from 0 to 10000$"):
        client.scale("job", workers=-1)
    with pytest.raises(InvalidInput, match=r"^tail: -1 is not a number of lines$"):
        client.get_job_logs("job", tail=-1)
    with pytest.raises(InvalidInput, match=r'^"lots" is not an amount of memory'):
        client.migrate("job", "ps-0", memory="lots")
    with pytest.raises(InvalidInput, match=r'^namespace: "x" is of a cluster; say kubernetes=True too$'):
        Client(namespace="x")
    assert client.list_jobs() == []


def test_a_place_that_cannot_be_written_is_said_in_one_line(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as place:
        place.setenv(STATE_ENV, "/dev/null")
        with pytest.raises(PlatformError, match=r"^the job cannot be started: .*Not a directory: '/dev/null/jobs'$"):
            client.submit(document())


def test_importing_elastane_imports_next_to_nothing_and_a_client_only_what_it_needs(jobs: Jobs) -> None:
    heavy = ("grpc", "httpx2", "kopf", "lightkube", "numpy", "pydantic", "rich", "torch", "typer", "yaml")
    script = "import sys, elastane; {}; print(*({!r} & set(sys.modules)))"
    imported = [
        subprocess.run(
            [sys.executable, "-c", script.format(use, set(heavy))],
            capture_output=True,
            text=True,
            check=True,
            env=jobs.env,
        ).stdout.split()
        for use in ("pass", "elastane.Client()")
    ]
    assert imported[0] == []
    assert set(imported[1]) == {"grpc", "pydantic"}


def test_lines_are_whole_however_their_text_comes() -> None:
    text = "one\ntwo\n\nthree"
    for first, second in itertools.combinations(range(len(text) + 1), 2):
        pieces = (text[:first], text[first:second], text[second:])
        assert list(_lines(iter(pieces))) == ["one", "two", "", "three"]


@pytest.mark.slow
def test_the_example_says_what_each_change_of_its_size_cost(client: Client, jobs: Jobs) -> None:
    done = subprocess.run(
        [sys.executable, "examples/client.py"], capture_output=True, text=True, check=False, env=jobs.env
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "succeeded after" in done.stdout
    for change in ("1 -> 2 workers: in the world after ", "2 -> 1 workers: in the world after "):
        assert change in done.stdout
    assert client.list_jobs() == []


@pytest.mark.slow
def test_the_guide_runs_as_it_is_written(client: Client, jobs: Jobs, tmp_path: Path) -> None:
    def blocks(page: str) -> list[str]:
        return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)

    (tmp_path / "train.py").write_text(blocks("getting-started.md")[0])
    guide = "\n".join(blocks("client.md"))
    done = subprocess.run(
        [sys.executable, "-c", guide], capture_output=True, text=True, check=False, env=jobs.env, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "squares running"
    assert done.stdout.splitlines()[-2:] == [
        "succeeded 50000",
        'job "squares" is not known here; known: none',
    ]
