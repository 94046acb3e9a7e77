"""StepRows: the rows that the step in work has pulled, for all embeddings of a job, and the gradients it will push."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from elastane.model.errors import InvalidInput
from elastane.model.ps import TableSpec
from elastane.ps.keys import combine, unique
from elastane.torch.embedding import Lookup
from elastane.worker.step_meter import StepMeter

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
Keys = Mapping[str, Ids]
Gradients = Mapping[str, tuple[Ids, Rows]]


class Pulled(Protocol):
    """Rows on their way."""

    def result(self) -> dict[str, Rows]:
        """The rows, once they are here."""


class Pushed(Protocol):
    """A push on its way."""

    def result(self) -> None:
        """Return once all servers have applied it."""


class RowClient(Protocol):
    """The way to the rows: over sockets to the servers, or in this process. One thread at a time trains with it."""

    def define(self, spec: TableSpec) -> None:
        """Make a table known. Raises TableMismatch if there is another one of its name."""

    def assign(self, table: str, ids: Ids, values: Rows) -> None:
        """Give rows that do not exist yet their first values."""

    def pull(self, keys: Keys, step: int | None = None) -> dict[str, Rows]:
        """Rows of different ids, by table. Without a step it waits for no other worker. Any thread may call it so."""

    def pull_ahead(self, keys: Keys, step: int) -> Pulled:
        """Begin to pull."""

    def push_ahead(self, gradients: Gradients, lrs: Mapping[str, float], step: int, weight: float) -> Pushed:
        """Begin to push what must not change until it has arrived. One push is on its way at a time."""

    def join(self) -> int:
        """Be one whose steps the others wait for, from the step that is answered."""

    def leave(self) -> None:
        """Be waited for no longer."""

    def close(self) -> None:
        """Let the servers go."""


class StepRows:
    """Serves the lookups of the embeddings, from what was pulled ahead or by a request of their own."""

    def __init__(self, connect: Callable[[bool], RowClient], meter: StepMeter | None = None) -> None:
        self._connect = connect
        self.meter = meter or StepMeter(lambda _: None)
        self._client: RowClient | None = None
        self.step = 0
        """The step in work."""
        self.specs: dict[str, TableSpec] = {}
        self._ready: dict[str, Lookup] = {}
        self._with_gradients: list[Lookup] = []

    @property
    def client(self) -> RowClient:
        """The way to the rows, made when it is first needed."""
        return self._client or self.connect(scale_lr_by_staleness=False)

    def connect(self, *, scale_lr_by_staleness: bool) -> RowClient:
        """Make the way to the rows. Raises InvalidInput if it was used before."""
        if self._client is not None:
            raise InvalidInput("scale_lr_by_staleness: make job.trainer before the first lookup of an embedding")
        self._client = client = self._connect(scale_lr_by_staleness)
        for spec in self.specs.values():
            client.define(spec)
        return client

    def define(self, spec: TableSpec) -> None:
        """Make an embedding's table known. Raises InvalidInput if this job has it already."""
        if spec.name in self.specs:
            raise InvalidInput(f'embedding "{spec.name}": this job has one of that name; use that one twice')
        if self._client is not None:
            self._client.define(spec)
        self.specs[spec.name] = spec

    def have_ready(self, lookups: Mapping[str, Lookup]) -> None:
        """These were pulled for the step in work."""
        self._ready = dict(lookups)

    def look_up(self, spec: TableSpec, ids: Tensor, *, training: bool) -> Lookup:
        """The rows of these ids."""
        if training and (found := self._ready.get(spec.name)) is not None and found.is_of(ids):
            return found
        lookup = Lookup(spec.name, spec.dim, ids)
        step = self.step if training else None
        asked = time.perf_counter()
        lookup.rows = self.client.pull({spec.name: lookup.unique}, step)[spec.name]
        self.meter.pull_s += time.perf_counter() - asked
        return lookup

    def has_gradients(self, lookup: Lookup) -> None:
        """In a backward: this lookup gets gradients that are to be pushed."""
        if lookup.gradients is None:
            self._with_gradients.append(lookup)

    def take_gradients(self, scale: float) -> dict[str, tuple[Ids, Rows]]:
        """The gradients of all rows since the last call, each row once, times a number."""
        by_table: dict[str, list[Lookup]] = {}
        for lookup in self._with_gradients:
            by_table.setdefault(lookup.table, []).append(lookup)
        self.drop()
        taken: dict[str, tuple[Ids, Rows]] = {}
        for table, lookups in by_table.items():
            ids, gradients = _as_one(lookups)
            for lookup in lookups:
                lookup.gradients = None
            if scale != 1.0:
                gradients *= np.float32(scale)
            taken[table] = (ids, gradients)
        return taken

    def close(self) -> None:
        """Let the servers go."""
        if self._client is not None:
            self._client.close()

    def drop(self) -> None:
        """Forget the step in work."""
        self._with_gradients = []
        self._ready = {}


def _as_one(lookups: list[Lookup]) -> tuple[Ids, Rows]:
    gradients = [lookup.gradients_to_add_to() for lookup in lookups]
    if len(lookups) == 1:
        return lookups[0].unique, gradients[0]
    ids, inverse = unique(np.concatenate([lookup.unique for lookup in lookups]))
    return ids, combine(inverse, np.concatenate(gradients), len(ids))
