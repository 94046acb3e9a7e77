"""The operator's metrics, of a real operator that sees jobs, and has an API server that does not answer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elastane.model.ids import JobName
from elastane.model.job_spec import load_job
from elastane.model.node import Node, NodeType
from elastane.operator.actions import CreateService
from elastane.operator.api import JOBS, PODS, Api, Kind
from elastane.operator.app import Operator
from elastane.operator.carry_out import NameTaken
from elastane.operator.health import serve_health
from elastane.operator.leader import Leader
from elastane.operator.metrics import OperatorMetrics
from elastane.operator.observed import JobKey
from elastane.platform.kubernetes.connection import ApiError
from elastane.platform.kubernetes.pods import JobOwner, master_pod, node_pod
from elastane.prometheus.of_operator import OPERATOR
from elastane.prometheus.page import MetricsPage
from tests.builders import job_document
from tests.scraping import Scraped, fetch, promtool, status_of

KEY = JobKey("ns", "ctr")


def job_body(name: str, *conditions: str) -> dict[str, Any]:
    document = job_document()
    document["metadata"] |= {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "1"}
    held = [{"type": condition, "status": "True", "reason": "Because"} for condition in conditions]
    document["status"] = {"conditions": [*held, {"type": "Suspended", "status": "False", "reason": "No"}]}
    return document


def pod_body(role: NodeType, phase: str, number: int = 0) -> dict[str, Any]:
    job = load_job(job_document())
    owner = JobOwner("ctr", "ns", "uid-ctr", "10.0.0.1:7070")
    pod = (
        master_pod(job, owner)
        if role is NodeType.MASTER
        else node_pod(job, Node(JobName("ctr"), role, number, 0), owner)
    )
    pod["metadata"] |= {
        "uid": pod["metadata"]["name"],
        "resourceVersion": "1",
        "creationTimestamp": "2030-01-01T00:00:00Z",
    }
    return {**pod, "status": {"phase": phase}}


class Here:
    """An operator that was told of objects, and that nobody lets work."""

    def __init__(self) -> None:
        self.api = Api()
        self.leader = Leader(self.api, "ns")
        self.metrics = OperatorMetrics(self.api.requests, lambda: self.leader.held)

    def begin(self) -> None:
        self.operator = Operator(self.api, self.leader, [], self.metrics)

    def sees(self, kind: Kind, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            self.operator._take(kind, {"type": "ADDED", "object": body})  # type: ignore[typeddict-item]

    async def scraped(self) -> Scraped:
        """The page beside the operator's health."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = await serve_health(port, MetricsPage(self.metrics.collect), "127.0.0.1")
        address = f"127.0.0.1:{port}"
        assert await asyncio.to_thread(status_of, address, "GET", "/healthz") == 200
        found = await asyncio.to_thread(fetch, address)
        server.close()
        found.check(OPERATOR)
        return found


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Here]:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {"token": "a-secret-token"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "me"}}],
        "current-context": "none",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    found = Here()
    yield found
    await found.api.close()


async def test_an_operator_that_waits_to_lead_has_metrics(here: Here) -> None:
    found = await here.scraped()
    assert found.value("elastane_operator_leader") == 0
    assert found.value("elastane_operator_queue_length") == 0
    assert found.value("elastane_operator_reconcile_seconds_count") == 0
    assert "elastane_operator_jobs" not in found.families


async def test_jobs_are_counted_by_their_conditions_and_pods_by_their_phases(here: Here) -> None:
    here.begin()
    here.sees(JOBS, job_body("ctr", "Created", "Running"), job_body("b", "Created", "Failed"), job_body("c"))
    here.sees(PODS, pod_body(NodeType.MASTER, "Running"))
    here.sees(PODS, pod_body(NodeType.WORKER, "Running"), pod_body(NodeType.WORKER, "Pending", 1))
    async with asyncio.timeout(5):
        while (found := await here.scraped()).value("elastane_operator_queue_length") < 3:
            continue
    assert found.value("elastane_operator_jobs") == 3
    assert found.by("elastane_operator_job_conditions", "condition") == {
        "Created": 2,
        "Running": 1,
        "Failed": 1,
        "Complete": 0,
        "Scaling": 0,
        "Suspended": 0,
    }
    assert found.value("elastane_operator_pods", role="worker", phase="Running") == 1
    assert found.value("elastane_operator_pods", role="worker", phase="Pending") == 1
    assert found.value("elastane_operator_pods", role="master", phase="Running") == 1
    assert "a-secret-token" not in found.text
    promtool("check", "metrics", text=found.text)


async def test_requests_looks_and_their_failures_are_counted(here: Here) -> None:
    here.begin()
    for _ in range(2):
        with pytest.raises(ApiError):
            await here.api.get(JOBS, "ns", "ctr")
    with here.metrics.look():
        here.metrics.acted(CreateService())
    for error in (ApiError("x", 409), ApiError("x", 500), NameTaken("x"), ValueError("x")):
        here.operator._failed(KEY, error)
    found = await here.scraped()
    assert found.by("elastane_operator_api_requests_total", "method") == {
        "GET": 2,
        "POST": 0,
        "PUT": 0,
        "PATCH": 0,
        "DELETE": 0,
    }
    assert found.by("elastane_operator_reconciles_total", "outcome") == {
        "ok": 1,
        "conflict": 1,
        "api_error": 1,
        "name_taken": 1,
        "error": 1,
    }
    assert found.by("elastane_operator_actions_total", "action") == {"CreateService": 1}
    assert found.value("elastane_operator_reconcile_seconds_count") == 1
