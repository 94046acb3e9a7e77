"""Plans from outside, by the master's Control service: sizes, resources, and nodes that are followed by others."""

from __future__ import annotations

import pytest

from elastane.model.errors import MalformedMessage, RequestRefused
from elastane.model.quantity import Memory
from elastane.rpc.control_client import ControlClient
from elastane.rpc.protos import control_pb2 as pb
from tests.integration.memory_master import TOKEN, MemoryMaster

GIB = 2**30


async def _apply(master: MemoryMaster, request: pb.ApplyRequest) -> None:
    async with ControlClient(master.address, TOKEN) as client:
        await client.apply(request)


async def test_a_plan_gives_a_group_its_size_and_what_it_launches_its_resource(master: MemoryMaster) -> None:
    group = pb.GroupResource(role="worker", count=4, cpu=0.5, memory_bytes=GIB)
    await _apply(master, pb.ApplyRequest(group=[group], reason="a JobResource"))
    workers = master.master.job_manager.workers.group
    assert workers.target == 4
    assert [node.resource.memory for node in workers.nodes] == [None, None, Memory(GIB), Memory(GIB)]
    assert [node.resource.cpu for node in workers.nodes] == [None, None, 0.5, 0.5]
    assert [event["reason"] for event in master.events("plan_applied")] == ["a JobResource"]


async def test_a_worker_whose_resource_changes_leaves_when_its_successor_runs(master: MemoryMaster) -> None:
    change = pb.NodeResourceChange(node="worker-0", memory_bytes=2 * GIB)
    await _apply(master, pb.ApplyRequest(node=[change]))
    await master.until("node_ended", node="ctr-worker-0")
    story = [
        (event["kind"], event["node"])
        for event in master.all_events()
        if event["kind"] in ("node_launched", "node_running", "node_leaving") and event["node"] != "ctr-worker-1"
    ]
    assert story[2:] == [
        ("node_launched", "ctr-worker-2"),
        ("node_running", "ctr-worker-2"),
        ("node_leaving", "ctr-worker-0"),
    ]
    successor = master.master.job_manager.node("worker-2")
    assert (successor.slot, successor.resource.memory) == (0, Memory(2 * GIB))


async def test_a_plan_that_asks_for_what_a_node_has_changes_nothing(master: MemoryMaster) -> None:
    await _apply(master, pb.ApplyRequest(node=[pb.NodeResourceChange(node="ctr-worker-1")]))
    assert master.state() == master.settled


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (pb.ApplyRequest(group=[pb.GroupResource(role="worker", count=9)]), "workers: 9 is above max 8"),
        (pb.ApplyRequest(group=[pb.GroupResource(role="worker", count=1)]), "workers: 1 is below min 2"),
        (
            pb.ApplyRequest(group=[pb.GroupResource(role="worker", count=3), pb.GroupResource(role="ps", count=1)]),
            "has no parameter servers",
        ),
        (pb.ApplyRequest(node=[pb.NodeResourceChange(node="worker-7")]), 'node "worker-7" is not in job'),
    ],
)
async def test_a_plan_outside_the_limits_is_refused_whole(
    master: MemoryMaster, request_: pb.ApplyRequest, text: str
) -> None:
    with pytest.raises(RequestRefused, match=text):
        await _apply(master, request_)
    assert master.state() == master.settled


@pytest.mark.parametrize(
    "request_",
    [
        pb.ApplyRequest(),
        pb.ApplyRequest(group=[pb.GroupResource(role="chief", count=3)]),
        pb.ApplyRequest(group=[pb.GroupResource(role="worker", cpu=float("nan"))]),
        pb.ApplyRequest(group=[pb.GroupResource(role="worker", memory_bytes=0)]),
        pb.ApplyRequest(node=[pb.NodeResourceChange(node="worker-0", cpu=-1)]),
    ],
)
async def test_a_senseless_plan_is_refused(master: MemoryMaster, request_: pb.ApplyRequest) -> None:
    with pytest.raises(MalformedMessage):
        await _apply(master, request_)
    assert master.state() == master.settled
