"""`elastane.Client` on jobs in a real cluster: one is followed, changed, waited for and deleted by a program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastane.client import Client, JobState
from elastane.model.errors import InvalidInput, JobExists, JobNotFound, NotInTime, RequestRefused
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.operator_process import OperatorProcess
from tests.kubernetes.test_cli import idle_document, job_document


@pytest.fixture
def client(cluster: Cluster, installed: None, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    with Client(kubernetes=True, namespace=namespace) as found:
        yield found


def test_a_job_without_pods_is_listed_refused_and_deleted(client: Client) -> None:
    submitted = client.submit(idle_document(), name="idle")
    assert submitted.cluster is not None
    assert (submitted.state, submitted.cluster.namespace) == (JobState.STARTING, client.namespace)
    assert [job.name for job in client.list_jobs()] == ["idle"]
    assert client.get_job("idle").nodes == ()
    assert list(client.get_job_logs("idle")) == []
    with pytest.raises(JobExists):
        client.submit(idle_document(), name="idle")
    with pytest.raises(InvalidInput, match=r'^node: job "idle" has no pod "worker-0"; there are none yet$'):
        client.get_job_logs("idle", "worker-0")
    with pytest.raises(NotInTime):
        client.wait_for_job("idle", timeout_s=0.5)
    client.delete("idle")
    with pytest.raises(JobNotFound):
        client.get_job("idle")


@pytest.mark.timeout(300)
def test_a_job_is_followed_scaled_drained_and_waited_for_by_a_program(
    operator: OperatorProcess, client: Client
) -> None:
    client.submit(job_document("--samples=100000", "--batch-size=10", "--step-ms=10"))
    client.wait_for_job("tiny", 100, lambda job: len(job.running()) == 2)
    assert client.wait_for_job("tiny", 60, JobState.RUNNING).state is JobState.RUNNING
    client.scale("tiny", workers=3)
    client.wait_for_job("tiny", 100, lambda job: len(job.running()) == 3)
    with pytest.raises(RequestRefused, match=r'^workers: 5 is above max 4 in job "tiny"$'):
        client.scale("tiny", workers=5)
    client.drain("tiny", "worker-0")
    assert any('"job_started"' in line for line in client.get_job_logs("tiny", "master"))
    lines = list(client.get_job_logs("tiny", follow=True))
    assert all(line.startswith("[worker-") for line in lines)
    job = client.wait_for_job("tiny", timeout_s=150)
    assert job.state is JobState.SUCCEEDED
    events = list(client.get_job_events("tiny", follow=True))
    assert {"MasterCreated", "Running", "Completed"} <= {event.kind for event in events}
    true = {event.fields["type"] for event in events if event.kind == "Condition" and event.fields["status"] == "True"}
    assert "Complete" in true
    assert [event.time for event in events] == sorted(event.time for event in events)
    client.delete("tiny")
    assert client.list_jobs() == []
