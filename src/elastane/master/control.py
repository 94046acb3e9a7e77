"""Control: what a person may ask of the job, and what the job looks like from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from elastane.core.lockstep import StepLedger
from elastane.core.shards import ShardLedger
from elastane.master.attendance import Attendance
from elastane.master.event_log import EventLog
from elastane.master.job_manager import JobManager
from elastane.master.rendezvous_server import RendezvousServer
from elastane.master.task_manager import TaskManager
from elastane.master.training_service import TrainingService
from elastane.model.errors import MalformedMessage
from elastane.model.job_spec import ElasticJob
from elastane.model.node import Node
from elastane.rpc.protos import control_pb2 as pb

_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.05, 60.0


class Control:
    """The `Control` service."""

    def __init__(
        self,
        job: ElasticJob,
        job_manager: JobManager,
        task_manager: TaskManager,
        rendezvous: RendezvousServer,
        training_service: TrainingService,
        attendance: Attendance,
        events: EventLog,
        clock: Callable[[], float],
    ) -> None:
        self._job = job
        self._job_manager = job_manager
        self._task_manager = task_manager
        self._rendezvous = rendezvous
        self._training_service = training_service
        self._attendance = attendance
        self._events = events
        self._clock = clock
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let the watchers have the last events and go."""
        self._ended.set()

    async def get_status(self, _: pb.GetStatusRequest) -> pb.JobStatus:
        return self.status()

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchUpdate]:
        if not _LEAST_INTERVAL_S <= request.status_interval_s <= _MOST_INTERVAL_S:
            raise MalformedMessage(
                f"status_interval_s {request.status_interval_s} is not from {_LEAST_INTERVAL_S} to {_MOST_INTERVAL_S}"
            )
        with self._events.watch() as queue:
            while True:
                last = self._ended.is_set()
                lines = [queue.get_nowait() for _ in range(queue.qsize())]
                yield pb.WatchUpdate(status=self.status(), event=[pb.EventRecord(json=line) for line in lines])
                if last:
                    return
                try:
                    await asyncio.wait_for(self._ended.wait(), request.status_interval_s)
                except TimeoutError:
                    continue

    async def scale(self, request: pb.ScaleRequest) -> pb.Done:
        self._job_manager.scale(request.workers)
        return pb.Done()

    async def drain(self, request: pb.DrainRequest) -> pb.Done:
        self._job_manager.drain(request.node)
        return pb.Done()

    async def stop(self, request: pb.StopRequest) -> pb.Done:
        self._job_manager.stop(at_once=request.at_once)
        return pb.Done()

    def status(self) -> pb.JobStatus:
        """The job as it is now."""
        outcome = self._job_manager.outcome
        return pb.JobStatus(
            job=self._job.name,
            state=outcome.end if outcome else "stopping" if self._job_manager.workers.group.stopping else "running",
            reason=outcome.reason if outcome else "",
            elapsed_s=self._clock(),
            workers_wanted=self._job_manager.workers.group.target,
            node=[self._node_view(node) for node in self._job_manager.nodes],
            dataset=[_dataset_view(ledger) for ledger in self._task_manager.all_ledgers],
            samples_per_s=self._task_manager.rate.per_second(self._clock()),
            world_version=self._rendezvous.world.version,
            world_size=len(self._rendezvous.world),
            steps=self._task_manager.steps,
            evaluation=self._training_service.view(),
        )

    def _node_view(self, node: Node) -> pb.NodeView:
        return pb.NodeView(
            name=node.name,
            type=node.type,
            id=node.id,
            slot=node.slot,
            status=node.status,
            pid=0 if node.status.final else self._job_manager.pids.get(node.name, 0),
            restarts=node.restarts,
            attending=self._attendance.attends(node.name),
            leaving=node.is_released and not node.status.final,
            exit_reason=node.exit.reason if node.exit else "",
            committed_samples=self._task_manager.committed_by.get(node.name, 0),
            rank=self._rendezvous.world.ranks.get(node.name),
        )


def _dataset_view(ledger: ShardLedger | StepLedger) -> pb.DatasetView:
    spec = ledger.spec
    return pb.DatasetView(
        name=spec.name,
        endless=spec.endless,
        epoch_size=spec.epoch_size or 0,
        epochs=spec.epochs,
        epoch=ledger.epoch,
        epoch_committed=ledger.committed_in_epoch(ledger.epoch),
        committed=ledger.committed_samples,
        leased_shards=ledger.leased_shards,
        finished=ledger.finished,
    )
