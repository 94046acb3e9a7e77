"""A worker's link to its job: where its tasks come from and its place in the world. Alone, the same in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from elastane.core.lockstep import Position
from elastane.model.dataset import DatasetSpec, Task
from elastane.model.evaluation import EvaluationSpec, Work
from elastane.model.ids import DatasetName, TaskId
from elastane.model.world import Place
from elastane.worker.servers import Servers
from elastane.worker.step_meter import StepMeter


class TaskSink(Protocol):
    """Takes what a source sends; called from any thread."""

    def granted(self, tasks: Sequence[Task]) -> None: ...

    def wait(self) -> None:
        """No task is free at present; another answer follows."""

    def finished(self) -> None:
        """Every sample of every epoch is committed."""

    def voided(self) -> None:
        """What was leased is void, and what was asked for will not be answered."""

    def failed(self, error: Exception) -> None:
        """The source can bring nothing more."""


class WorldFollower(Protocol):
    """Follows the worlds on this worker's behalf; called from the link's thread, and never waits."""

    def rejoin(self) -> None:
        """This worker is a newcomer (again): whatever it knew of worlds is void."""

    def next_world(self, place: Place, *, recover: bool, over: bool) -> None:
        """Build this world in the background. With `recover` the one in use is broken: stop.

        With `over` it comes after all who trained together were done: who has none of their state has nothing to do.
        """

    def go(self, version: int) -> None:
        """Every member of this world is ready: vote to move to it."""

    def settled(self, version: int) -> None:
        """Every member of this world has moved to it."""

    def failed(self, error: Exception) -> None:
        """No more will be heard of worlds."""


class WorldLink(Protocol):
    """What a member of worlds says to the master, from any thread. Only `store_get` waits."""

    @property
    def host(self) -> str:
        """The address at which other workers reach this one."""

    @property
    def check_replicas(self) -> bool:
        """Whether a checksum is to be told with every move."""

    def join_world(self, follower: WorldFollower, *, min_size: int = 0, max_size: int = 0) -> None:
        """Be a member of the world from now on, and let `follower` hear of it. 0 is no limit of its size."""

    def give_notice(self) -> None:
        """Say that this worker will leave, so that the others form a world without it. Safe in a signal handler."""

    def world_ready(self, version: int) -> None:
        """Say that this worker could move to the next world."""

    def world_moved(self, version: int, rounds: int, checksum: str) -> None:
        """Say that it has moved, with its state after so many rounds."""

    def world_broken(self, version: int) -> None:
        """Say that a connection to another member broke."""

    def store_set(self, version: int, key: str, value: bytes) -> None:
        """Put a value into a world's store."""

    def store_get(self, version: int, key: str, timeout_s: float) -> bytes:
        """Wait for a value of a world's store. Raises TimeoutError."""


class EvaluationFollower(Protocol):
    """Takes what is to be evaluated, on this node's behalf; called from the link's thread, and never waits."""

    def take_version(self, multiple_of: int, folder: str) -> None:
        """Rank 0 is to write the weights at the next multiple of so many steps into the folder; 0: none are wanted."""

    def run(self, work: Work) -> None:
        """Do this, and say so by `task_done` or `give_back`."""

    def stop_training(self) -> None:
        """The model gets no better: leave the world, as at the end of the data."""

    def over(self) -> None:
        """Nothing is left to evaluate."""

    def rejoin(self) -> None:
        """This node is one who can evaluate (again): what it was to do before is void."""

    def failed(self, error: Exception) -> None:
        """No more will be heard of evaluation."""


class EvaluationLink(Protocol):
    """What a node that evaluates says to the master, from any thread."""

    @property
    def is_evaluator(self) -> bool:
        """Whether this node is to evaluate, and not to train."""

    @property
    def has_evaluators(self) -> bool:
        """Whether the job had evaluators when this node joined it."""

    def join_evaluation(self, spec: EvaluationSpec, follower: EvaluationFollower) -> None:
        """Describe the job's evaluation, and be one who can evaluate."""

    def version_written(self, step: int, error: str) -> None:
        """Say that the weights after so many steps are in their folder, or why they are not."""

    def task_done(self, work: Work, state: str, metrics: Mapping[str, float]) -> None:
        """Say that a task is done, and what it came to."""

    def training_done(self, step: int) -> None:
        """Say that this node trains no more; it stays until evaluation is over."""


class Link(WorldLink, EvaluationLink, Protocol):
    """Leases tasks, and follows worlds. `define`, `store_get` and `close` wait; the rest is said soon, in order."""

    @property
    def servers(self) -> Servers:
        """The job's parameter servers, if it has any."""

    @property
    def meter(self) -> StepMeter:
        """Adds up what this worker's steps take."""

    def define(self, spec: DatasetSpec, sink: TaskSink) -> None:
        """Describe a data set and name the one who takes its tasks. Raises DatasetMismatch or RequestRefused."""

    def request(self, dataset: DatasetName, count: int) -> None:
        """Ask for tasks; the sink is called with them, now or later."""

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        """Say that the positions of each task before the given one are done."""

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        """Return what is left of these tasks; with `error`, their try counts as failed."""

    def report(
        self, dataset: DatasetName, position: Position, step: int, world: int, *, restored: bool = False
    ) -> None:
        """Say how far a data set in lockstep is, by steps of this job or, if `restored`, by those of an earlier one.

        `world` is the version of the world in which that is so.
        """

    def flush(self) -> None:
        """Say at once what has not been said yet: the caller is about to wait."""

    def close(self, *, preempted: bool, over: bool = False) -> None:
        """Say goodbye, once all that was said before has been heard. With `over` no world is formed any more."""
