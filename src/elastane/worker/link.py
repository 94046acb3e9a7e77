"""A worker's link to its job: where its tasks come from and its place in the world. Alone, the same in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from elastane.core.lockstep import Position
from elastane.model.dataset import DatasetSpec, Task
from elastane.model.ids import DatasetName, TaskId
from elastane.model.world import Place


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

    def join_world(self, follower: WorldFollower) -> None:
        """Be a member of the world from now on, and let `follower` hear of it."""

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


class Link(WorldLink, Protocol):
    """Leases tasks, and follows worlds. `define`, `store_get` and `close` wait; the rest is said soon, in order."""

    def define(self, spec: DatasetSpec, sink: TaskSink) -> None:
        """Describe a data set and name the one who takes its tasks. Raises DatasetMismatch or RequestRefused."""

    def request(self, dataset: DatasetName, count: int) -> None:
        """Ask for tasks; the sink is called with them, now or later."""

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        """Say that the positions of each task before the given one are done."""

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        """Return what is left of these tasks; with `error`, their try counts as failed."""

    def report(self, dataset: DatasetName, position: Position, step: int, *, restored: bool = False) -> None:
        """Say how far a data set in lockstep is, by steps of this job or, if `restored`, by those of an earlier one."""

    def flush(self) -> None:
        """Say at once what has not been said yet: the caller is about to wait."""

    def close(self, *, preempted: bool) -> None:
        """Say goodbye, once all that was said before has been heard."""
