"""ElasticJobScaler: a job's master writes ScalePlan resources, and the operator makes and deletes the pods."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from elastane.core.backoff import delays
from elastane.model.cluster_documents import JOB_LABEL, SCALE_TYPE_LABEL, ScaleType
from elastane.model.event import NodeEvent
from elastane.model.job_spec import API_VERSION
from elastane.model.node import ExitReason, Node, NodeExit, NodeResource, NodeStatus
from elastane.model.plan import ScalePlan
from elastane.platform.kubernetes.api import Api
from elastane.platform.kubernetes.connection import ApiRefused, ApiUnreachable, QuotaExceeded
from elastane.platform.kubernetes.pods import JobOwner, Manifest
from elastane.platform.kubernetes.scaler import BACKOFF_FIRST_S, BACKOFF_MOST_S, OnError, Report

MOST_PODS = 500
"""How many pods one resource names: etcd takes little more than a megabyte."""


class ElasticJobScaler:
    """A Scaler. Plans are written in the order in which they were made, each until the API server has it."""

    def __init__(
        self, api: Api, owner: JobOwner, report: Report, on_error: OnError, rng: random.Random | None = None
    ) -> None:
        self._api = api
        self._owner = owner
        self._report = report
        self._on_error = on_error
        self._rng = rng or random.Random()  # noqa: S311  # the jitter of retries
        self._plans: asyncio.Queue[tuple[ScalePlan, bool]] = asyncio.Queue()
        self._writing: asyncio.Task[None] | None = None

    async def scale(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        for part in _parts(plan):
            self._plans.put_nowait((part, at_once))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_plans())
            self._writing.add_done_callback(self._done)

    async def finish(self, patience_s: float) -> None:
        """What is still to be written has so long to go out."""
        if self._writing is not None:
            written = asyncio.create_task(self._plans.join())
            await asyncio.wait({written, self._writing}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            written.cancel()
            self._writing.cancel()
            await asyncio.gather(written, self._writing, return_exceptions=True)

    async def _write_plans(self) -> None:
        while True:
            plan, at_once = await self._plans.get()
            await self._write(plan, at_once=at_once)
            self._plans.task_done()

    async def _write(self, plan: ScalePlan, *, at_once: bool) -> None:
        said = False
        for wait in delays(BACKOFF_FIRST_S, BACKOFF_MOST_S, self._rng):
            try:
                await self._api.create_scale_plan(scale_plan_manifest(plan, self._owner, at_once=at_once))
            except QuotaExceeded as error:
                for node in () if said else plan.launch_nodes:
                    self._report(NodeEvent(node.name, NodeStatus.PENDING, note=f"QuotaExceeded: {error}"))
                said = True
                await asyncio.sleep(wait)
            except ApiUnreachable as error:
                await asyncio.sleep(max(wait, error.retry_after_s))
            except ApiRefused as error:
                if plan.remove_nodes:
                    raise  # Nodes that were told to go would stay, and nobody would know.
                for node in plan.launch_nodes:
                    exit_ = NodeExit(ExitReason.ERROR, log_tail=str(error))
                    self._report(NodeEvent(node.name, NodeStatus.FAILED, exit=exit_))
                return
            else:
                return

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)


def scale_plan_manifest(plan: ScalePlan, owner: JobOwner, *, at_once: bool = False) -> Manifest:
    """A plan as the resource that the operator carries out."""
    spec: dict[str, Any] = {"ownerJob": owner.name}
    if plan.launch_nodes:
        spec["createPods"] = [_created(node) for node in plan.launch_nodes]
    if plan.remove_nodes:
        spec["removePods"] = [node.name for node in plan.remove_nodes]
        if at_once:
            spec["removeAtOnce"] = True
    if plan.ps_addrs:
        spec["psHosts"] = list(plan.ps_addrs)
    return {
        "apiVersion": API_VERSION,
        "kind": "ScalePlan",
        "metadata": {
            "generateName": f"{owner.name}-",
            "namespace": owner.namespace,
            "labels": {JOB_LABEL: owner.name, SCALE_TYPE_LABEL: ScaleType.AUTO.value},
            "ownerReferences": [owner.reference],
        },
        "spec": spec,
    }


def _created(node: Node) -> Manifest:
    return {
        "name": node.name,
        "type": node.type.value,
        "id": node.id,
        "slot": node.slot,
        "restarts": node.restarts,
        "relaunches": node.relaunches,
        "resource": _resource(node.resource),
    }


def _resource(resource: NodeResource) -> Manifest:
    amounts: Manifest = {}
    if resource.cpu is not None:
        amounts["cpu"] = f"{round(resource.cpu * 1000)}m"
    if resource.memory is not None:
        amounts["memory"] = str(resource.memory)
    if resource.disk is not None:
        amounts["disk"] = str(resource.disk)
    if resource.gpu_num:
        amounts["gpu"] = resource.gpu_num
    return amounts


def _parts(plan: ScalePlan) -> Iterator[ScalePlan]:
    """A plan as plans that each fit into a resource: what is removed, and then what is launched."""
    for start in range(0, len(plan.remove_nodes), MOST_PODS):
        yield ScalePlan(remove_nodes=plan.remove_nodes[start : start + MOST_PODS])
    for start in range(0, len(plan.launch_nodes), MOST_PODS):
        yield ScalePlan(launch_nodes=plan.launch_nodes[start : start + MOST_PODS], ps_addrs=plan.ps_addrs)
    if plan.ps_addrs and not plan.launch_nodes:
        yield ScalePlan(ps_addrs=plan.ps_addrs)
