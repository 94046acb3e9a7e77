"""Where jobs are: what a client needs of this machine, and of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from elastane.client.views import JobView
from elastane.model.event import Event
from elastane.model.job_spec import ElasticJob
from elastane.model.quantity import Memory

Tell = Callable[[str, str], None]
"""Is told a job's name, and a word on what becomes of it."""


class Place(Protocol):
    """The jobs of one place. What is asked of a job that is not there raises JobNotFound."""

    @property
    def namespace(self) -> str | None:
        """In a cluster, where its jobs are."""

    def submit(self, job: ElasticJob, document: Mapping[str, Any], events_file: Path | None) -> JobView:
        """Have a job run; raises JobExists."""

    def all(self) -> list[JobView]:
        """Every job, the oldest first."""

    def get(self, name: str) -> JobView: ...

    def watch(self, name: str, *, nodes: bool) -> Iterator[JobView]:
        """The job again and again; the last has ended. `nodes` may be left out."""

    def output(self, name: str, node: str, *, follow: bool, tail: int | None) -> Iterator[str]:
        """What a node printed, as text, in pieces; raises InvalidInput for an unknown node."""

    def lines(self, name: str, *, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
        """What all nodes printed, each line with its node's short name."""

    def events(self, name: str, *, follow: bool) -> Iterator[Event]: ...

    def scale(self, name: str, workers: int | None, ps: int | None) -> None: ...

    def drain(self, name: str, node: str) -> None: ...

    def migrate(self, name: str, node: str, memory: Memory | None, cpu: float | None) -> None: ...

    def save(self, name: str) -> None: ...

    def delete(self, names: Sequence[str], *, at_once: bool, tell: Tell) -> None:
        """End jobs and forget them; returns when they are gone."""

    def close(self) -> None: ...
