"""A worker without a launcher: the rules of `core.shards` in this process, and nobody else to share with."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from elastane.core.lockstep import Position
from elastane.core.shards import ShardLedger
from elastane.model.dataset import DatasetSpec
from elastane.model.errors import DatasetMismatch
from elastane.model.evaluation import EvaluationSpec, Work
from elastane.model.ids import DatasetName, NodeName, TaskId
from elastane.model.world import Place
from elastane.worker.alone_evaluation import AloneEvaluations
from elastane.worker.link import EvaluationFollower, TaskSink, WorldFollower
from elastane.worker.servers import Servers
from elastane.worker.step_meter import StepMeter

_MYSELF = NodeName("alone-worker-0")


class AloneLink:
    """A Link that answers at once."""

    def __init__(self) -> None:
        self._ledgers: dict[DatasetName, ShardLedger] = {}
        self._sinks: dict[DatasetName, TaskSink] = {}
        self._follower: WorldFollower | None = None
        self._evaluations: AloneEvaluations | None = None
        self.meter = StepMeter(lambda _: None)
        self.servers = Servers(lambda _: None, "")

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def check_replicas(self) -> bool:
        """There is nobody to compare with."""
        return False

    def join_world(self, follower: WorldFollower, *, min_size: int = 0, max_size: int = 0) -> None:
        """Alone, a world of one, at once."""
        self._follower = follower
        follower.next_world(Place(version=1, rank=0, size=1), recover=False, over=False)
        follower.go(1)
        follower.settled(1)

    def world_ready(self, version: int) -> None:
        """There is nobody to wait for."""

    def world_moved(self, version: int, rounds: int, checksum: str) -> None:
        """There is nobody to tell."""

    def world_broken(self, version: int) -> None:
        raise AssertionError("a world of one has no connections")

    def store_set(self, version: int, key: str, value: bytes) -> None:
        raise AssertionError("a world of one needs no store")

    def store_get(self, version: int, key: str, timeout_s: float) -> bytes:
        raise AssertionError("a world of one needs no store")

    @property
    def is_evaluator(self) -> bool:
        return False

    @property
    def has_evaluators(self) -> bool:
        return False

    def join_evaluation(self, spec: EvaluationSpec, follower: EvaluationFollower) -> None:
        self._evaluations = AloneEvaluations(spec, follower)

    def version_written(self, step: int, error: str) -> None:
        if self._evaluations is not None:
            self._evaluations.version_written(step, error)

    def task_done(self, work: Work, state: str, metrics: Mapping[str, float]) -> None:
        if self._evaluations is not None:
            self._evaluations.task_done(work, state, metrics)

    def training_done(self, step: int) -> None:
        if self._evaluations is not None:
            self._evaluations.training_done(step)

    def report(
        self, dataset: DatasetName, position: Position, step: int, world: int, *, restored: bool = False
    ) -> None:
        """There is nobody who wants to know."""

    def define(self, spec: DatasetSpec, sink: TaskSink) -> None:
        # Alone, it is for the training code to try again, or to end with its error.
        if spec.lockstep:
            return  # There is nothing to lease.
        fresh = ShardLedger(spec, max_task_retries=sys.maxsize, min_timeout_s=float("inf"))
        if self._ledgers.setdefault(spec.name, fresh).spec != spec:
            raise DatasetMismatch(f'data set "{spec.name}": an earlier call described it differently')
        self._sinks[spec.name] = sink

    def request(self, dataset: DatasetName, count: int) -> None:
        ledger, sink = self._ledgers[dataset], self._sinks[dataset]
        if tasks := ledger.lease(_MYSELF, count, time.monotonic()):
            sink.granted(tasks)
        elif ledger.finished:
            sink.finished()
        else:
            sink.wait()

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        ledger = self._ledgers[dataset]
        for task, upto in progress:
            ledger.commit(_MYSELF, task, upto, time.monotonic())
        if ledger.finished:
            self._sinks[dataset].finished()

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        if self._evaluations is not None and dataset not in self._ledgers:
            self._evaluations.failed(error)
            return
        for task in tasks:
            self._ledgers[dataset].give_back(_MYSELF, task, error, time.monotonic())

    def give_notice(self) -> None:
        if self._follower is not None:
            self._follower.go(2)
            self._follower.settled(2)

    def flush(self) -> None:
        """Nothing is ever left unsaid here."""

    def close(self, *, preempted: bool, over: bool = False) -> None:
        self._sinks.clear()
        if self._evaluations is not None:
            self._evaluations.close()
