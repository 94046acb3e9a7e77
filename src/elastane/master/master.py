"""JobMaster: serves the components of one job, and runs the loop that ends with the job."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from elastane.core.nodes import JobEnd, Outcome
from elastane.master.brain_optimizer import BrainOptimizer
from elastane.master.components import create_components
from elastane.master.event_log import EventLog
from elastane.master.job_manager import JobManager
from elastane.master.journal import Journal
from elastane.master.scalars import ScalarFile, Scalars
from elastane.master.task_manager import TaskManager
from elastane.model.errors import PlatformError, RequestRefused
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob
from elastane.platform.base import Platform
from elastane.rpc.protos import control_pb2, node_pb2
from elastane.rpc.server import RpcServer, ServerCertificate

if TYPE_CHECKING:
    from elastane.prometheus.page import MetricsPage

_EXPIRY_LOOK_S = 1.0


class JobMaster:
    """One job's master, over a platform if it launches nodes.

    `versions` is the folder for versions of the model, to evaluate them. With a certificate it may serve a network.
    """

    def __init__(
        self,
        job: ElasticJob,
        token: str,
        platform: Platform | None,
        events: EventLog,
        journal: Journal | None = None,
        *,
        versions: Path | None = None,
        certificate: ServerCertificate | None = None,
    ) -> None:
        self._job = job
        self._events = events
        self._journal = journal or Journal()
        self._clock = self._journal.clock
        self._components = create_components(job, platform, events, self._tell, self._journal, versions)
        self.node_manager = self._components.node_manager
        self.attendance = self._components.attendance
        self.control = self._components.control
        self._page: MetricsPage | None = None
        self._scalars: Scalars | None = None
        self._server = RpcServer(token, self._refused, certificate)
        self._server.add(node_pb2.DESCRIPTOR.services_by_name["Nodes"], self.attendance)
        self._server.add(control_pb2.DESCRIPTOR.services_by_name["Control"], self.control)

    @property
    def job_manager(self) -> JobManager:
        """The manager of the nodes that this job launches. Raises RequestRefused if it launches none."""
        if not isinstance(self.node_manager, JobManager):
            raise RequestRefused(f'job "{self._job.name}" launches no nodes')
        return self.node_manager

    @property
    def task_manager(self) -> TaskManager:
        """Raises RequestRefused if this job has none."""
        if self._components.task_manager is None:
            raise RequestRefused(f'job "{self._job.name}" has no task manager')
        return self._components.task_manager

    async def serve(self, address: str = "") -> str:
        """Start to answer, at this address or a free one; the result is the address. Raises PlatformError."""
        served = await self._server.start(address)
        if self._journal.resumed:
            self._events.emit("master_restarted", job=self._job.name, at_s=round(self._clock(), 3))
            self._components.resume()
        else:
            self._events.emit(
                "job_started",
                job=self._job.name,
                workers=self._job.spec.worker.replicas if self._job.spec.launches_nodes else 0,
                components=self._job.spec.components.names,
            )
        return served

    async def serve_metrics(self, address: str) -> str:
        """Serve metrics at this address, port 0 for a free one, before `serve`; the result is the address.

        Raises PlatformError.
        """
        # Only here: a master that nobody asks for them starts without.
        from elastane.master.metrics import MasterMetrics
        from elastane.prometheus.page import MetricsPage

        self._page = MetricsPage(MasterMetrics(self._job, self._components, self._events, self._journal).collect)
        return await self._page.start(address)

    def write_scalars(self, folder: Path) -> None:
        """Write scalars for TensorBoard into this folder, from `run` on. Raises PlatformError."""
        self._scalars = Scalars(ScalarFile(folder, self._job.name), self.control, self._events)

    async def run(self) -> Outcome:
        """Run the job to its end."""
        watchers = [
            asyncio.create_task(self.attendance.watch_heartbeats()),
            asyncio.create_task(self._watch_expiry()),
            asyncio.create_task(self.control.remember()),
        ]
        if self._scalars is not None:
            watchers.append(asyncio.create_task(self._scalars.run()))
        optimizer = self._components.optimizer
        if optimizer is not None:
            if isinstance(optimizer.optimizer, BrainOptimizer):
                optimizer.optimizer.start()
            if not self._journal.resumed:
                await optimizer.create()
            watchers.append(asyncio.create_task(optimizer.run()))
        running = asyncio.create_task(self.node_manager.run())
        try:
            # A watcher ends only by an error of this program, which must not pass for a job that goes on.
            await asyncio.wait({running, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            for watcher in watchers:
                if watcher.done():
                    watcher.result()
            outcome = await running
        except PlatformError as error:
            outcome = self.node_manager.abandon(str(error))
        finally:
            running.cancel()
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(running, *watchers, return_exceptions=True)
        if optimizer is not None and isinstance(optimizer.optimizer, BrainOptimizer):
            await optimizer.optimizer.finish(outcome.end)
        self._conclude(outcome)
        return outcome

    def launcher_died(self) -> Outcome:
        """Give up: with the launcher the agent went, and with the agent all nodes."""
        outcome = self.node_manager.abandon("the launcher died")
        self._conclude(outcome)
        return outcome

    async def explained(self) -> control_pb2.SizingView | None:
        """Why the job had its size, to be kept; None if it did not size itself."""
        optimizer = self._components.optimizer
        if optimizer is None or not optimizer.acts:
            return None
        return await self.control.explain(control_pb2.ExplainRequest())

    async def close(self, grace_s: float = 2.0) -> None:
        """Stop to answer; watchers have so long to fetch the last events."""
        self.control.end()
        self.attendance.end(f'job "{self._job.name}" has ended')
        await self._server.stop(grace_s)
        if self._page is not None:
            await self._page.stop()
        if self._scalars is not None:
            self._scalars.close()
        self._events.close()
        self._journal.close()

    def _conclude(self, outcome: Outcome) -> None:
        tasks = self._components.task_manager
        left = 0 if tasks is None else tasks.remaining_samples
        if outcome.end is JobEnd.SUCCEEDED and left:
            self._events.emit("data_left", samples=left, reason="every worker ended before the data did")
        self._events.emit("job_ended", end=outcome.end, reason=outcome.reason, node=outcome.node)

    def _tell(self, node: NodeName, message: node_pb2.MasterMessage) -> None:
        self.attendance.tell(node, message)

    async def _watch_expiry(self) -> None:
        tasks = self._components.task_manager
        while True:
            await asyncio.sleep(_EXPIRY_LOOK_S)
            expiry = None if tasks is None else tasks.next_expiry()
            if tasks is not None and expiry is not None and expiry <= self._clock():
                for node in tasks.expire():
                    self.node_manager.lost(node, "no progress in its shard")

    def _refused(self, peer: str, method: str, reason: str) -> None:
        self._events.emit("message_refused", peer=peer, method=method, reason=reason)
