"""`elastane.Client(kubernetes=True)`, and the commands on it, against a small API server: what they ask and answer."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastane.cli.app import main
from elastane.client import Client, JobState
from elastane.model.errors import InvalidInput, JobExists, JobNotFound, NotInTime, PlatformError, RequestRefused
from tests.integration.api_server import NAMESPACE, ApiServer, api_server

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with api_server(tmp_path / "kubeconfig") as found:
        yield found


@pytest.fixture
def client(cluster: ApiServer) -> Iterator[Client]:
    with Client(kubernetes=True) as found:
        yield found


@pytest.fixture
def command(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command with --kubernetes, in this process."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["elastane", words[0], "--kubernetes", *words[1:]])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


def document(**metadata: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "python", "command": ["true"]}]}}
    return {"metadata": {"name": "tiny", **metadata}, "spec": {"worker": {"replicas": 2, "template": template}}}


def test_a_job_is_created_in_its_own_words_listed_and_shown(client: Client, cluster: ApiServer) -> None:
    assert client.namespace == NAMESPACE
    given = document()
    submitted = client.submit(given, name="other")
    assert (submitted.name, submitted.state, submitted.nodes) == ("other", JobState.STARTING, ())
    assert cluster.objects["elasticjobs"]["other"]["spec"] == given["spec"]
    with pytest.raises(JobExists, match=rf'^job "other" is already in namespace "{NAMESPACE}"; `elastane delete '):
        client.submit(given, name="other")
    with pytest.raises(InvalidInput, match=r'^metadata.namespace: "elsewhere" is not the namespace of this client'):
        client.submit(document(namespace="elsewhere"))
    with pytest.raises(InvalidInput, match=r'^events_file: ".*" is on this machine, and the job is not$'):
        client.submit(given, events_file="/dev/null")

    cluster.run_pod("other", "worker", 0)
    cluster.run_pod("other", "master", 0)
    cluster.say("other", "Running")
    assert [(job.name, job.state, job.nodes) for job in client.list_jobs()] == [("other", JobState.RUNNING, ())]
    job = client.get_job("other")
    assert [(node.name, node.role, node.status) for node in job.nodes] == [
        ("other-master", "master", "running"),
        ("other-worker-0", "worker", "running"),
    ]
    assert job.cluster is not None
    assert (job.cluster.phase, job.cluster.namespace) == ("Running", NAMESPACE)


def test_what_is_not_there_is_said_in_one_line(client: Client, tmp_path: Path) -> None:
    for ask in (
        client.get_job,
        client.wait_for_job,
        client.get_job_logs,
        client.get_job_events,
        client.delete,
        lambda name: client.scale(name, 1),
        lambda name: client.drain(name, "worker-0"),
        lambda name: client.get_job_logs(name, "worker-0"),
    ):
        with pytest.raises(JobNotFound, match=rf'^job "ghost" is not in namespace "{NAMESPACE}"; there are none$'):
            ask("ghost")
    with pytest.raises(InvalidInput, match=r'^save: job "tiny" is in a cluster'):
        client.save("tiny")
    with (
        Client(kubernetes=True, namespace="nowhere") as elsewhere,
        pytest.raises(RequestRefused, match=r"^the cluster refused it: the server could not find"),
    ):
        elsewhere.list_jobs()
    (tmp_path / "kubeconfig").write_text("{}")
    with pytest.raises(PlatformError, match=r"^no cluster is configured: "):
        Client(kubernetes=True)


def test_a_job_is_waited_for_to_its_end_or_its_deletion(client: Client, cluster: ApiServer) -> None:
    client.submit(document())
    with pytest.raises(NotInTime, match=r'^job "tiny" is starting, not ended, after 0.01 s$'):
        client.wait_for_job("tiny", 0.01)
    views = client.watch_job("tiny")
    assert next(views).state is JobState.STARTING
    cluster.run_pod("tiny", "worker", 0)
    assert client.wait_for_job("tiny", 10, lambda job: len(job.running()) == 1).nodes[0].id == 0
    cluster.say("tiny", "Running")
    assert client.wait_for_job("tiny", 10, JobState.RUNNING).state is JobState.RUNNING
    cluster.say("tiny", "Failed", "DeadlineExceeded", "it took too long")
    failed = client.wait_for_job("tiny")
    assert (failed.state, failed.reason) == (JobState.FAILED, "it took too long")
    assert [view.state for view in views] == [JobState.FAILED]
    client.delete("tiny")
    client.submit(document())
    views = client.watch_job("tiny")
    next(views)
    client.delete("tiny")
    with pytest.raises(JobNotFound, match=r'^job "tiny" was deleted before its end was seen$'):
        next(views)


def test_logs_of_one_pod_and_of_all_are_read_and_followed(client: Client, cluster: ApiServer) -> None:
    client.submit(document())
    cluster.run_pod("tiny", "worker", 0, "one", "two")
    cluster.run_pod("tiny", "worker", 1, phase="Pending")
    cluster.run_pod("tiny", "master", 0, "{}")
    assert list(client.get_job_logs("tiny", "worker-0")) == ["one", "two"]
    assert list(client.get_job_logs("tiny", "tiny-worker-0", tail=1)) == ["two"]
    assert list(client.get_job_logs("tiny")) == ["[worker-0] one", "[worker-0] two"]
    with pytest.raises(InvalidInput, match=r'^node: job "tiny" has no pod "worker-7"; there are master, worker-0'):
        client.get_job_logs("tiny", "worker-7")

    lines = client.get_job_logs("tiny", follow=True)
    assert [next(lines), next(lines)] == ["[worker-0] one", "[worker-0] two"]
    cluster.logs["tiny-worker-0"].append("three")
    assert next(lines) == "[worker-0] three"
    cluster.logs["tiny-worker-1"].append("late")
    cluster.end_pod("tiny-worker-1", "Running")
    assert next(lines) == "[worker-1] late"
    cluster.say("tiny", "Complete")
    for name in ("tiny-worker-0", "tiny-worker-1"):
        cluster.end_pod(name, "Succeeded")
    assert list(lines) == []


def test_events_are_those_of_the_job_and_its_pods_and_its_conditions(client: Client, cluster: ApiServer) -> None:
    client.submit(document())
    uid = cluster.objects["elasticjobs"]["tiny"]["metadata"]["uid"]

    def event(name: str, kind: str, about: str, reason: str, second: int, count: int = 1, uid: str = "") -> None:
        cluster.create(
            "events",
            name,
            metadata={"uid": name},
            involvedObject={"kind": kind, "name": about, "uid": uid},
            reason=reason,
            type="Normal",
            message=f"{about} {reason}",
            count=count,
            lastTimestamp=f"2025-01-01T00:00:0{second}Z",
        )

    event("a", "ElasticJob", "tiny", "Running", 3, uid=uid)
    event("b", "Pod", "tiny-worker-0", "Scheduled", 1)
    event("c", "Pod", "tiny-worker-worker-0", "Scheduled", 2)
    event("d", "ElasticJob", "tiny", "Running", 2, uid="of one before")
    found = client.get_job_events("tiny", follow=True)
    assert [(event.kind, event.fields["object"]) for event in (next(found), next(found))] == [
        ("Scheduled", "Pod/tiny-worker-0"),
        ("Running", "ElasticJob/tiny"),
    ]
    cluster.say("tiny", "Complete", "Done", "all is well")
    event("b", "Pod", "tiny-worker-0", "Scheduled", 5, count=2)
    again, condition = found
    assert (again.kind, again.fields["count"]) == ("Scheduled", 2)
    expected = {"type": "Complete", "status": "True", "reason": "Done", "message": "all is well"}
    assert (condition.kind, condition.fields) == ("Condition", expected)
    assert [event.kind for event in client.get_job_events("tiny")] == ["Running", "Scheduled", "Condition"]


def test_changes_are_plans_and_their_refusals_the_operators_words(client: Client, cluster: ApiServer) -> None:
    client.submit(document())
    cluster.run_pod("tiny", "ps", 0)
    client.scale("tiny", workers=3, ps=1)
    client.drain("tiny", "ps-0")
    plans = [plan["spec"] for plan in cluster.objects["scaleplans"].values()]
    assert plans == [
        {"ownerJob": "tiny", "replicaResourceSpecs": {"worker": {"replicas": 3}, "ps": {"replicas": 1}}},
        {"ownerJob": "tiny", "removePods": ["tiny-ps-0"]},
    ]
    client.migrate("tiny", "ps-0", memory="2Gi")
    (moved,) = cluster.objects["jobresources"].values()
    assert moved["spec"]["resource_updation"] == [{"name": "tiny-ps-0", "resource": {"memory": "2Gi"}}]
    with pytest.raises(InvalidInput, match=r"^migrate: say memory, or cpu, or both$"):
        client.migrate("tiny", "ps-0")
    cluster.plan_status = {"phase": "Failed", "message": 'workers: 5 is above max 4 in job "tiny"'}
    with pytest.raises(RequestRefused, match=r'^workers: 5 is above max 4 in job "tiny"$'):
        client.scale("tiny", workers=5)


def test_several_jobs_are_deleted_with_their_pods(client: Client, cluster: ApiServer) -> None:
    for name in ("one", "two"):
        client.submit(document(), name=name)
        cluster.run_pod(name, "worker", 0)
    told: list[tuple[str, str]] = []
    with pytest.raises(JobNotFound):
        client.delete("one", "ghost")
    client.delete("one", "two", at_once=True, tell=lambda name, text: told.append((name, text)))
    assert told == [("one", "killing"), ("two", "killing"), ("one", "deleted"), ("two", "deleted")]
    assert not cluster.objects["pods"]
    assert client.list_jobs() == []


def test_the_commands_print_what_the_client_finds(cluster: ApiServer, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document()))
    assert command("jobs") == (0, f"there are no jobs in namespace {NAMESPACE}\n", "")
    code, out, _ = command("submit", str(file))
    assert (code, out.splitlines()[:2]) == (
        0,
        [f"tiny: created in namespace {NAMESPACE}", "see it:      elastane status --kubernetes tiny"],
    )
    cluster.run_pod("tiny", "worker", 0, "one", "two")
    cluster.say("tiny", "Running")
    (listed,) = json.loads(command("jobs", "--json")[1])
    shown = json.loads(command("status", "tiny", "--json")[1])
    assert (listed["job"], listed["namespace"], listed["state"]) == ("tiny", NAMESPACE, "Running")
    nodes = shown.pop("nodes")
    assert {**shown, "age_s": 0} == {**listed, "age_s": 0}
    assert [(node["name"], node["status"], node["container"]) for node in nodes] == [
        ("tiny-worker-0", "running", "main")
    ]
    assert command("jobs")[1].splitlines()[1].split()[:2] == ["tiny", "Running"]
    assert command("status", "tiny")[1].startswith("tiny: Running, ")
    assert command("logs", "tiny", "worker-0", "--tail=1") == (0, "two\n", "")
    assert command("scale", "tiny", "--workers=3") == (0, "tiny: 3 workers\n", "")
    assert command("drain", "tiny", "worker-0") == (0, "tiny: worker-0 is leaving\n", "")
    assert command("migrate", "tiny", "worker-0") == (2, "", "error: migrate: say --memory, or --cpu, or both\n")
    assert command("logs", "tiny", "ps-0")[::2] == (
        2,
        'error: node: job "tiny" has no pod "ps-0"; there are worker-0\n',
    )
    assert command("delete", "tiny") == (0, "tiny: deleting\ntiny: deleted\n", "")
    expected = f'error: job "tiny" is not in namespace "{NAMESPACE}"; there are none\n'
    assert command("status", "tiny") == (1, "", expected)


def test_submit_waits_and_exits_as_the_job_does(cluster: ApiServer, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    for name, end, code, error in (
        ("good", "Complete", 0, ""),
        ("bad", "Failed", 1, "error: so it is\n"),
        ("gone", "", 1, 'error: job "gone" was deleted before its end was seen\n'),
    ):
        file.write_text(json.dumps(document(name=name)))
        cluster.requests.clear()

        def operate(name: str = name, end: str = end) -> None:
            """End the job once it was seen: who asks again has had an answer."""
            asked = ("GET", f"/apis/elastic.iml.github.io/v1alpha1/namespaces/{NAMESPACE}/elasticjobs/{name}")
            while cluster.requests.count(asked) < 2:
                time.sleep(0.01)
            if end:
                cluster.say(name, end, "Because", "so it is")
            else:
                del cluster.objects["elasticjobs"][name]

        operator = threading.Thread(target=operate)
        operator.start()
        ended = command("submit", "--wait", str(file))
        operator.join()
        assert (ended[0], ended[2]) == (code, error)
        assert (f"{end} (Because: so it is)" in ended[1]) == bool(end)
        assert ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods") not in cluster.requests
