"""Scale plans become pods on a real API server, whatever it says at first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from elastane.model.cluster_documents import load_scale_plan
from elastane.model.node import ExitReason
from elastane.model.plan import ScalePlan
from elastane.platform.kubernetes.platform import KubernetesPlatform
from elastane.platform.kubernetes.pods import node_pod
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.flaky_proxy import FlakyProxy
from tests.kubernetes.node_pods import WAITING_TEMPLATE, Listener, PodJob, worker_names
from tests.kubernetes.waiting import eventually

Connect = Callable[[PodJob], KubernetesPlatform]


pytestmark = pytest.mark.usefixtures("no_operator")


@pytest.fixture
def make_job(cluster: Cluster, installed: None, namespace: str) -> Callable[..., PodJob]:
    return lambda *arguments, **spec: PodJob.make(cluster, namespace, *arguments, **spec)


@pytest.fixture
async def connect(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    made: list[KubernetesPlatform] = []

    def connect(job: PodJob) -> KubernetesPlatform:
        made.append(KubernetesPlatform(job.job, job.owner))
        return made[-1]

    yield connect
    for platform in made:
        await platform.close()


def set_quota(job: PodJob, pods: int) -> None:
    """Allow so many pods, and wait until the API server counts."""
    spec = {"hard": {"pods": str(pods)}}
    document = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": spec}
    job.kubectl("apply", "--filename=-", input=json.dumps(document))
    shown = "--output=jsonpath={.status.hard.pods}"
    eventually(lambda: job.kubectl("get", "resourcequota", "quota", shown) == str(pods), 20, "the quota is in force")


async def pods_are(job: PodJob, numbers: range | set[int], timeout_s: float = 30) -> None:
    expected = worker_names(numbers)
    await asyncio.to_thread(eventually, lambda: job.names() == expected, timeout_s, f"pods {sorted(expected)}")


async def test_many_pods_are_made_and_some_deleted(make_job: Callable[..., PodJob], connect: Connect) -> None:
    job = make_job()
    platform = connect(job)
    async with Listener(platform) as listener:
        await platform.scale(ScalePlan(launch_nodes=job.nodes(50)))
        await platform.scale(ScalePlan(launch_nodes=job.nodes(50)))  # A plan that is said twice.
        await pods_are(job, range(50))
        await listener.until(lambda: listener.waiting == worker_names(range(50)))
        assert all(event.note.startswith("Unschedulable: ") for event in listener.heard)
        leaving = tuple(job.node(number) for number in (3, 7, 11))
        await platform.scale(ScalePlan(remove_nodes=leaving[:2]))
        await platform.scale(ScalePlan(remove_nodes=leaving[2:]), at_once=True)
        await listener.until(lambda: set(listener.ended) == worker_names((3, 7, 11)))
        assert set(listener.ended.values()) == {ExitReason.PREEMPTED}
        await pods_are(job, set(range(50)) - {3, 7, 11})


async def test_pods_over_the_quota_wait_and_come_when_it_is_raised(
    make_job: Callable[..., PodJob], connect: Connect
) -> None:
    job = make_job()
    set_quota(job, 5)
    platform = connect(job)
    async with Listener(platform) as listener:
        await platform.scale(ScalePlan(launch_nodes=job.nodes(9)))

        def over() -> set[str]:
            return {event.node for event in listener.heard if event.note.startswith("QuotaExceeded: ")}

        await listener.until(lambda: len(over()) == 4)
        await asyncio.to_thread(eventually, lambda: len(job.names()) == 5, 20, "as many pods as the quota allows")
        assert not over() & job.names()
        assert len([event for event in listener.heard if "exceeded quota" in event.note]) == 4, "once for each"
        gives_up = sorted(over())[0]
        await platform.scale(ScalePlan(remove_nodes=(job.node(int(gives_up.rpartition("-")[2])),)))
        await listener.until(lambda: listener.ended == {gives_up: ExitReason.PREEMPTED})
        set_quota(job, 20)
        await pods_are(job, {number for number in range(9) if worker_names((number,)) != {gives_up}})
        assert set(listener.ended) == {gives_up}


async def test_a_pod_that_is_there_already_is_the_nodes_if_it_is_of_this_job(
    make_job: Callable[..., PodJob], connect: Connect
) -> None:
    job = make_job()
    own, other = (node_pod(job.job, job.node(number), job.owner) for number in (0, 1))
    other["metadata"]["ownerReferences"] = []
    for pod in (own, other):
        job.kubectl("create", "--filename=-", input=json.dumps(pod))
    platform = connect(job)
    async with Listener(platform) as listener:
        await platform.scale(ScalePlan(launch_nodes=job.nodes(3)))
        await listener.until(lambda: "ctr-worker-1" in listener.waiting)
        assert any(event.note.endswith("it is not of this job") for event in listener.heard)
        await listener.until(lambda: len(listener.waiting) == 3)
        job.kubectl("delete", "pod", "ctr-worker-1")
        shown = (
            "get",
            "pod",
            "ctr-worker-1",
            "--ignore-not-found",
            "--output=jsonpath={.metadata.ownerReferences[0].uid}",
        )
        uid = await asyncio.to_thread(eventually, lambda: job.kubectl(*shown), 30, "the node has its own pod")
        assert uid == job.owner.uid
        assert not listener.ended


async def test_a_pod_that_the_api_server_refuses_is_a_node_that_failed_with_its_words(
    make_job: Callable[..., PodJob], connect: Connect
) -> None:
    template = json.loads(json.dumps(WAITING_TEMPLATE))
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "no-such-volume", "mountPath": "/x"}]
    job = make_job(template)
    platform = connect(job)
    async with Listener(platform) as listener:
        await platform.scale(ScalePlan(launch_nodes=job.nodes(1)))
        await listener.until(lambda: listener.ended == {"ctr-worker-0": ExitReason.ERROR})
        assert listener.heard[0].exit is not None
        assert "no-such-volume" in listener.heard[0].exit.log_tail


async def test_requests_are_repeated_while_the_api_server_is_away(
    make_job: Callable[..., PodJob], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    async with FlakyProxy() as proxy:
        with monkeypatch.context() as patch:
            patch.setenv("HTTPS_PROXY", proxy.url)
            platform = connect(job)
        async with Listener(platform) as listener:
            proxy.is_open = False
            await platform.scale(ScalePlan(launch_nodes=job.nodes(3)))
            await listener.until(lambda: listener.waiting == worker_names(range(3)))
            assert all("does not answer" in event.note for event in listener.heard)
            await platform.scale(ScalePlan(remove_nodes=(job.node(1),)))
            proxy.is_open = True
            await pods_are(job, {0, 2})
            await listener.until(lambda: set(listener.ended) == {"ctr-worker-1"})
        await platform.close()


async def test_what_was_to_be_deleted_at_the_jobs_end_is_deleted(
    make_job: Callable[..., PodJob], connect: Connect
) -> None:
    job = make_job()
    first = connect(job)
    await first.scale(ScalePlan(launch_nodes=job.nodes(4)))
    await pods_are(job, range(4))
    await first.scale(ScalePlan(remove_nodes=(job.node(0),)))
    await first.close()
    assert job.names() == worker_names((1, 2, 3))
    second = connect(job)
    await second.remove_all()
    await second.close()
    assert not job.names()


async def test_the_operators_scaler_writes_plans_that_the_operator_can_read(
    make_job: Callable[..., PodJob], connect: Connect
) -> None:
    job = make_job(scaler="elastic-job")
    platform = connect(job)
    await platform.scale(ScalePlan(launch_nodes=job.nodes(2)))
    await platform.scale(ScalePlan(remove_nodes=(job.node(0),)), at_once=True)
    await platform.close()
    found: dict[str, Any] = json.loads(job.kubectl("get", "scaleplans", "--output=json"))
    plans = [load_scale_plan({key: plan[key] for key in plan if key != "status"}) for plan in found["items"]]
    assert {plan.job for plan in plans} == {"ctr"}
    assert [plan.launch_nodes for plan in plans if plan.launch_nodes] == [job.nodes(2)]
    assert [plan.remove_nodes for plan in plans if plan.spec.remove_at_once] == [("ctr-worker-0",)]
    assert all(job.owner.owns(plan) for plan in found["items"])
