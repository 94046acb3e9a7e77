"""The watch of a job's pods, on a real API server: no gap, nothing twice, and no error taken for pods that are gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from elastane.model.node import ExitReason, NodeStatus
from elastane.platform.kubernetes.api import Api
from elastane.platform.kubernetes.connection import HistoryGone
from elastane.platform.kubernetes.monitor import PodMonitor
from elastane.platform.kubernetes.platform import KubernetesPlatform
from elastane.platform.kubernetes.pods import JobOwner, node_pod, nodes_selector
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.flaky_proxy import FlakyProxy
from tests.kubernetes.host_pods import PYTHON, with_host_python
from tests.kubernetes.node_pods import Listener, PodJob, worker_names

pytestmark = pytest.mark.usefixtures("no_operator")


@pytest.fixture
def job(cluster: Cluster, installed: None, namespace: str, monkeypatch: pytest.MonkeyPatch) -> PodJob:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return PodJob.make(cluster, namespace)


def create(job: PodJob, *numbers: int) -> None:
    pods = [node_pod(job.job, job.node(number), job.owner) for number in numbers]
    job.kubectl("create", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))


def delete(job: PodJob, *numbers: int) -> None:
    job.kubectl("delete", "pod", *sorted(worker_names(numbers)))


@asynccontextmanager
async def platform_of(job: PodJob) -> AsyncIterator[KubernetesPlatform]:
    platform = KubernetesPlatform(job.job, job.owner)
    try:
        yield platform
    finally:
        await platform.close()


async def test_what_is_known_and_what_happens_after_it_leave_no_gap(job: PodJob) -> None:
    create(job, 0, 1)
    async with platform_of(job) as platform:
        known = await platform.known()
        assert {event.node for event in known} == worker_names((0, 1))
        assert {event.status for event in known} == {NodeStatus.PENDING}
        delete(job, 0)
        create(job, 2)
        async with Listener(platform) as listener:
            await listener.until(lambda: "ctr-worker-2" in listener.waiting and "ctr-worker-0" in listener.ended)
            assert listener.ended == {"ctr-worker-0": ExitReason.PREEMPTED}


async def test_pods_of_another_job_of_the_same_name_and_the_master_are_none_of_its_nodes(job: PodJob) -> None:
    create(job, 0)
    async with platform_of(job) as own:
        assert len(await own.known()) == 1
    other = JobOwner(job.owner.name, job.owner.namespace, "another-uid", job.owner.master_address)
    platform = KubernetesPlatform(job.job, other)
    assert await platform.known() == []
    await platform.close()


async def test_a_watch_that_breaks_goes_on_where_it_was(job: PodJob, monkeypatch: pytest.MonkeyPatch) -> None:
    create(job, 0, 1)
    async with FlakyProxy() as proxy:
        with monkeypatch.context() as patch:
            patch.setenv("HTTPS_PROXY", proxy.url)
            platform = KubernetesPlatform(job.job, job.owner)
        async with Listener(platform) as listener:
            await listener.until(lambda: listener.waiting == worker_names((0, 1)))
            proxy.is_open = False
            proxy.cut()
            delete(job, 0)
            create(job, 2)
            assert not listener.ended, "nothing is known while the API server cannot be reached"
            proxy.is_open = True
            await listener.until(lambda: len(listener.waiting) == 3 and len(listener.ended) == 1)
            assert len(listener.heard) == 4, listener.heard
        await platform.close()


async def test_a_forgotten_history_is_a_new_list_that_is_compared_with_the_old(job: PodJob) -> None:
    create(job, *range(6))
    new: list[str] = []
    api = Api(job.owner.namespace)
    monitor = PodMonitor(api, job.owner, new.append)
    assert len(await monitor.known()) == 6
    _, version = await api.list_pods(nodes_selector(job.owner.name))
    delete(job, 1, 4)
    create(job, 6)
    # One that no list and no watch ever had.
    monitor.made(await api.create_pod(node_pod(job.job, job.node(7), job.owner)))
    delete(job, 7)
    job.cluster.restart_apiserver()  # It remembers nothing of what was before.
    with pytest.raises(HistoryGone):
        async with aclosing(api.watch_pods(nodes_selector(job.owner.name), version)) as changes:
            await anext(changes)
    ended, waiting = {}, set()
    async with aclosing(monitor.events()) as events:
        async for event in events:
            if event.exit is not None:
                assert event.node not in ended
                ended[event.node] = event.exit.reason
            else:
                waiting.add(event.node)
            if len(ended) == 3 and "ctr-worker-6" in waiting:
                break
    assert ended == dict.fromkeys(worker_names((1, 4, 7)), ExitReason.PREEMPTED)
    assert set(new) == worker_names(range(7))
    await api.close()


async def test_lists_are_whole_though_they_come_in_pages(job: PodJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastane.platform.kubernetes.connection.PAGE", 2)
    create(job, *range(5))
    async with platform_of(job) as platform:
        assert {event.node for event in await platform.known()} == worker_names(range(5))


ENDS = (
    "import sys, time\n"
    "name = sys.argv[1]\n"
    "print('starts', flush=True)\n"
    "if name.endswith('-1'): raise SystemExit('what a pity')\n"
    "if name.endswith('-2'): sys.exit(0)\n"
    "if name.endswith('-3'): keep = [bytes(10**7) for _ in range(10**5)]\n"
    "time.sleep(600)\n"
)


async def test_real_containers_run_and_end_in_their_ways(
    cluster: Cluster, installed: None, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    command = {"command": [PYTHON, "-c", ENDS], "args": ["$(ELASTANE_NODE)"]}
    limits = {"resources": {"limits": {"memory": "100Mi"}}}
    job = PodJob.make(cluster, namespace, with_host_python({"spec": {"containers": [command | limits]}}))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": job.owner.master_name}}
    job.kubectl("create", "--filename=-", input=json.dumps({**secret, "stringData": {"token": "t", "tls.crt": "c"}}))
    create(job, 0, 1, 2, 3)
    async with platform_of(job) as platform, Listener(platform) as listener:
        running: Callable[[], bool] = lambda: any(  # noqa: E731
            event.node == "ctr-worker-0" and event.status is NodeStatus.RUNNING for event in listener.heard
        )
        await listener.until(running, 60)
        await listener.until(lambda: len(listener.ended) == 3, 60)
        assert listener.ended == {
            "ctr-worker-1": ExitReason.ERROR,
            "ctr-worker-2": ExitReason.DONE,
            "ctr-worker-3": ExitReason.OOM,
        }
        failed = next(event.exit for event in listener.heard if event.node == "ctr-worker-1" and event.exit is not None)
        # They come by two pipes, in no order among themselves.
        assert (failed.code, sorted(failed.log_tail.splitlines())) == (1, ["starts", "what a pity"])
        await asyncio.to_thread(job.kubectl, "delete", "pod", "ctr-worker-0", "--grace-period=1", "--wait=false")
        await listener.until(lambda: len(listener.ended) == 4, 60)
        assert listener.ended["ctr-worker-0"] == ExitReason.PREEMPTED  # type: ignore[index]  # a name is a name
