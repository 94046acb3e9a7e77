"""JobMaster: the components of one job, wired together, and the loop that ends with the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

from elastane.core.nodes import JobEnd, Outcome
from elastane.master.attendance import Attendance
from elastane.master.control import Control
from elastane.master.event_log import EventLog
from elastane.master.job_manager import JobManager
from elastane.master.journal import Journal
from elastane.master.rendezvous_server import RendezvousServer
from elastane.master.task_manager import TaskManager
from elastane.master.training_service import TrainingService
from elastane.model.errors import PlatformError
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob
from elastane.platform.base import Platform
from elastane.rpc.protos import control_pb2, node_pb2
from elastane.rpc.server import RpcServer

_EXPIRY_LOOK_S = 1.0


class JobMaster:
    """One job's master over one platform. `versions` is the folder for versions of the model, to evaluate them."""

    def __init__(
        self,
        job: ElasticJob,
        token: str,
        platform: Platform,
        events: EventLog,
        journal: Journal | None = None,
        *,
        versions: Path | None = None,
    ) -> None:
        journal = journal or Journal()
        clock = journal.clock
        self._journal = journal
        self._job = job
        self._events = events
        self._clock = clock
        self.job_manager = JobManager(job, platform, events, journal)
        self.task_manager = TaskManager(
            events,
            max_task_retries=job.spec.max_task_retries,
            task_timeout_s=job.spec.task_timeout_seconds,
            on_failed=self.job_manager.fail,
            journal=journal,
        )
        role = job.spec.worker
        self.rendezvous = RendezvousServer(
            events,
            self._tell,
            min_size=role.min_replicas,
            max_size=role.max_replicas,
            target=role.replicas,
            journal=journal,
            on_differ=self.job_manager.fail,
        )
        self.job_manager.on_target.append(self.rendezvous.set_target)
        self.training_service = TrainingService(
            events,
            self._tell,
            self.task_manager,
            versions=versions,
            evaluators_expected=lambda: self.job_manager.evaluators_expected,
            training=lambda: self.rendezvous.world.members,
            on_training_end=self.rendezvous.completed,
            journal=journal,
        )
        self.attendance = Attendance(
            self.job_manager,
            self.task_manager,
            self.rendezvous,
            self.training_service,
            events,
            heartbeat_timeout_s=job.spec.heartbeat_timeout_seconds,
            check_replicas=job.spec.check_replicas,
            journal=journal,
        )
        self.control = Control(
            job,
            self.job_manager,
            self.task_manager,
            self.rendezvous,
            self.training_service,
            self.attendance,
            events,
            clock,
        )
        self._server = RpcServer(token, self._refused)
        self._server.add(node_pb2.DESCRIPTOR.services_by_name["Nodes"], self.attendance)
        self._server.add(control_pb2.DESCRIPTOR.services_by_name["Control"], self.control)

    async def serve(self, address: str = "") -> str:
        """Start to answer, at this address or a free one; the result is the address. Raises PlatformError."""
        served = await self._server.start(address)
        if self._journal.resumed:
            self._events.emit("master_restarted", job=self._job.name, at_s=round(self._clock(), 3))
            self.rendezvous.resume()
            self.training_service.resume()
        else:
            self._events.emit("job_started", job=self._job.name, workers=self._job.spec.worker.replicas)
        return served

    async def run(self) -> Outcome:
        """Run the job to its end."""
        watchers = [
            asyncio.create_task(self.attendance.watch_heartbeats()),
            asyncio.create_task(self._watch_expiry()),
        ]
        running = asyncio.create_task(self.job_manager.run())
        try:
            # A watcher ends only by an error of this program, which must not pass for a job that goes on.
            await asyncio.wait({running, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            for watcher in watchers:
                if watcher.done():
                    watcher.result()
            outcome = await running
        except PlatformError as error:
            outcome = self.job_manager.abandon(str(error))
        finally:
            running.cancel()
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(running, *watchers, return_exceptions=True)
        self._conclude(outcome)
        return outcome

    def launcher_died(self) -> Outcome:
        """Give up: with the launcher the agent went, and with the agent all nodes."""
        outcome = self.job_manager.abandon("the launcher died")
        self._conclude(outcome)
        return outcome

    async def close(self, grace_s: float = 2.0) -> None:
        """Stop to answer; watchers have so long to fetch the last events."""
        self.control.end()
        await self._server.stop(grace_s)
        self._events.close()
        self._journal.close()

    def _conclude(self, outcome: Outcome) -> None:
        left = self.task_manager.remaining_samples
        if outcome.end is JobEnd.SUCCEEDED and left:
            self._events.emit("data_left", samples=left, reason="every worker ended before the data did")
        self._events.emit("job_ended", end=outcome.end, reason=outcome.reason, node=outcome.node)

    def _tell(self, node: NodeName, message: node_pb2.MasterMessage) -> None:
        self.attendance.tell(node, message)

    async def _watch_expiry(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_LOOK_S)
            expiry = self.task_manager.next_expiry()
            if expiry is not None and expiry <= self._clock():
                for node in self.task_manager.expire():
                    self.job_manager.lost(node, "no progress in its shard")

    def _refused(self, peer: str, method: str, reason: str) -> None:
        self._events.emit("message_refused", peer=peer, method=method, reason=reason)
