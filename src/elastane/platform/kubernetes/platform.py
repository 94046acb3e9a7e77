"""The Kubernetes platform as the master sees it: scale plans become pods, and what becomes of pods becomes events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob, ScalerKind
from elastane.model.node import Node, NodeType
from elastane.model.plan import ScalePlan
from elastane.platform.kubernetes.api import Api
from elastane.platform.kubernetes.elastic_job_scaler import ElasticJobScaler
from elastane.platform.kubernetes.monitor import PodMonitor
from elastane.platform.kubernetes.pods import JobOwner
from elastane.platform.kubernetes.scaler import PodScaler

LAST_REQUESTS_S = 10.0
"""How long requests that are under way at the job's end may take."""


class KubernetesPlatform:
    """A Platform whose nodes are pods of one namespace, with the scaler that the job asks for."""

    change_cost_s = 10.0

    def __init__(self, job: ElasticJob, owner: JobOwner, api: Api | None = None) -> None:
        """Talk to the API server of this pod, or of KUBECONFIG. Raises PlatformError if neither is there."""
        self._job = job
        self._api = api or Api(owner.namespace)
        self._reports: asyncio.Queue[NodeEvent | BaseException] = asyncio.Queue()
        self._monitor = PodMonitor(self._api, owner, self._on_new)
        self._scaler: PodScaler | ElasticJobScaler
        if job.spec.scaler is ScalerKind.ELASTIC_JOB:
            self._scaler = ElasticJobScaler(self._api, owner, self._reports.put_nowait, self._reports.put_nowait)
        else:
            self._scaler = PodScaler(
                self._api, job, owner, self._reports.put_nowait, self._monitor.made, self._reports.put_nowait
            )

    async def scale(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        await self._scaler.scale(plan, at_once=at_once)

    async def known(self) -> list[NodeEvent]:
        return await self._monitor.known()

    async def events(self) -> AsyncIterator[NodeEvent]:
        watching = asyncio.create_task(self._watch())
        watching.add_done_callback(self._watch_ended)
        try:
            while True:
                report = await self._reports.get()
                if isinstance(report, BaseException):
                    raise report
                yield report
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def room(self) -> None:
        """Nobody knows what a cluster has left, or would get."""

    async def remove_all(self) -> None:
        """Let all nodes go, known or not: the job has ended, and nobody is left who knows them."""
        names = [event.node for event in await self.known() if event.exit is None]
        nodes = [Node(self._job.name, NodeType.WORKER, 0, 0, given_name=name) for name in names]
        await self.scale(ScalePlan(remove_nodes=tuple(nodes)))

    async def close(self) -> None:
        """Let out what was asked before, for a while, and talk no more."""
        await self._scaler.finish(LAST_REQUESTS_S)
        await self._api.close()

    async def _watch(self) -> None:
        async for event in self._monitor.events():
            self._reports.put_nowait(event)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reports.put_nowait(error)

    def _on_new(self, name: NodeName) -> None:
        if isinstance(self._scaler, PodScaler):
            self._scaler.seen(name)
