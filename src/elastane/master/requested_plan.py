"""What somebody outside asks for, as a ResourcePlan: what is not said stays as it is."""

from __future__ import annotations

from dataclasses import replace

from elastane.core.nodes import NodeGroup
from elastane.master.job_manager import JobManager
from elastane.model.errors import MalformedMessage, RequestRefused
from elastane.model.ids import NodeName
from elastane.model.node import NodeGroupResource, NodeResource, NodeType
from elastane.model.plan import ResourcePlan
from elastane.model.quantity import Memory
from elastane.rpc.protos import control_pb2 as pb

_MOST_REASON = 1000


def requested_plan(request: pb.ApplyRequest, manager: JobManager) -> ResourcePlan:
    """The plan that a request means for the nodes there are. Raises MalformedMessage, RequestRefused."""
    if not request.group and not request.node:
        raise MalformedMessage("a plan of nothing")
    groups: dict[NodeType, NodeGroup] = {
        NodeType.WORKER: manager.workers.group,
        NodeType.PS: manager.servers,
        NodeType.EVALUATOR: manager.evaluators,
    }
    sizes = {}
    for asked in request.group:
        role = _role(asked.role)
        count = asked.count if asked.HasField("count") else groups[role].target
        groups[role].check_count(count)  # Of all, before any is changed.
        sizes[role] = NodeGroupResource(count, _changed(groups[role].resource, asked))
    nodes: dict[NodeName, NodeResource] = {}
    for change in request.node:
        node = manager.node(change.node)
        if node.type is NodeType.EVALUATOR:
            raise RequestRefused(f'node "{node.short_name}" is an evaluator: scale them, and new ones get the resource')
        nodes[node.name] = _changed(node.resource, change)
    return ResourcePlan(sizes, nodes, request.reason[:_MOST_REASON])


def _role(word: str) -> NodeType:
    if word not in (NodeType.WORKER, NodeType.PS, NodeType.EVALUATOR):
        raise MalformedMessage(f'"{word[:100]}" is no role of nodes that are launched; those are ps, worker, evaluator')
    return NodeType(word)


def _changed(resource: NodeResource, asked: pb.GroupResource | pb.NodeResourceChange) -> NodeResource:
    if asked.HasField("cpu"):
        if not 0 < asked.cpu <= 4096:
            raise MalformedMessage(f"cpu: {asked.cpu:g} is not above 0 and at most 4096")
        resource = replace(resource, cpu=asked.cpu)
    if asked.HasField("memory_bytes"):
        resource = replace(resource, memory=_amount("memory", asked.memory_bytes))
    if asked.HasField("disk_bytes"):
        resource = replace(resource, disk=_amount("disk", asked.disk_bytes))
    if asked.HasField("gpu"):
        resource = replace(resource, gpu_num=asked.gpu)
    return resource


def _amount(what: str, amount: int) -> Memory:
    if not 0 < amount <= Memory.MOST:
        raise MalformedMessage(f"{what}: {amount} bytes is not above 0 and at most {Memory.MOST}")
    return Memory(amount)
