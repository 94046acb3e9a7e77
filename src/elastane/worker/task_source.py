"""Where a worker's tasks come from: a master, or, alone, the same rules in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from elastane.model.dataset import DatasetSpec, Task
from elastane.model.ids import DatasetName, TaskId


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


class TaskSource(Protocol):
    """Leases tasks. Only `define` and `close` wait for an answer; the rest is said soon, and in order."""

    def define(self, spec: DatasetSpec, sink: TaskSink) -> None:
        """Describe a data set and name the one who takes its tasks. Raises DatasetMismatch or RequestRefused."""

    def request(self, dataset: DatasetName, count: int) -> None:
        """Ask for tasks; the sink is called with them, now or later."""

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        """Say that the positions of each task before the given one are done."""

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        """Return what is left of these tasks; with `error`, their try counts as failed."""

    def flush(self) -> None:
        """Say at once what has not been said yet: the caller is about to wait."""

    def close(self, *, preempted: bool) -> None:
        """Say goodbye, once all that was said before has been heard."""
