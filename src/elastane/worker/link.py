"""A worker's link to its job: where its tasks come from and its place in the world. Alone, the same in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class Link(Protocol):
    """Leases tasks, and tells the place. Only `define`, `place` and `close` wait; the rest is said soon, in order."""

    @property
    def place(self) -> Place:
        """This worker's place in the world; waits for the first world."""

    def define(self, spec: DatasetSpec, sink: TaskSink) -> None:
        """Describe a data set and name the one who takes its tasks. Raises DatasetMismatch or RequestRefused."""

    def request(self, dataset: DatasetName, count: int) -> None:
        """Ask for tasks; the sink is called with them, now or later."""

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        """Say that the positions of each task before the given one are done."""

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        """Return what is left of these tasks; with `error`, their try counts as failed."""

    def give_notice(self) -> None:
        """Say that this worker will leave, so that the others form a world without it. Safe in a signal handler."""

    def flush(self) -> None:
        """Say at once what has not been said yet: the caller is about to wait."""

    def close(self, *, preempted: bool) -> None:
        """Say goodbye, once all that was said before has been heard."""
