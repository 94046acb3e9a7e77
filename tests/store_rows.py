"""What a store holds, row by row, read from the pages that it gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastane.model.ps import TableSpec
from elastane.ps.pages import RowsPage, unpack
from elastane.ps.slab import HEAD_WORDS
from elastane.ps.store import Store

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FoundRow:
    """One row, or one count for admission, which has no weights."""

    frequency: int
    last_step: int
    weights: Floats
    slots: Floats

    @property
    def content(self) -> tuple[int, int, bytes, bytes]:
        return self.frequency, self.last_step, self.weights.tobytes(), self.slots.tobytes()


Rows = dict[tuple[str, int], FoundRow]


def rows_in(store: Store, buckets: Iterable[int] | None = None) -> tuple[Rows, Rows]:
    """The rows of a store by table and id, and the counts for admission. No row may be there twice."""
    names = {spec.number: spec.name for spec in store.tables()}
    rows: Rows = {}
    counters: Rows = {}
    for bucket in range(store.n_buckets) if buckets is None else buckets:
        for page in store.pages(bucket):
            content = unpack(page)
            if isinstance(content, RowsPage):
                into = rows if content.dim else counters
                for row in content.rows:
                    head = row[: HEAD_WORDS * 4].tobytes()
                    key = (
                        names[int.from_bytes(head[8:12], "little")],
                        int.from_bytes(head[:8], "little", signed=True),
                    )
                    numbers = row[HEAD_WORDS * 4 :].copy().view(np.float32)
                    frequency, step = np.frombuffer(head[12:20], np.uint32).tolist()
                    assert key not in into
                    into[key] = FoundRow(frequency, step, numbers[: content.dim], numbers[content.dim :])
    return rows, counters


def keys(
    ids: dict[TableSpec, Sequence[int]],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The keys of a request for these ids."""
    numbers = np.array([spec.number for spec in ids], np.uint32)
    counts = np.array([len(some) for some in ids.values()], np.uint32)
    return numbers, counts, np.array([key for some in ids.values() for key in some], np.int64)


def pull(store: Store, spec: TableSpec, ids: Sequence[int]) -> Floats:
    out = np.empty((len(ids), spec.dim), np.float32)
    store.pull(*keys({spec: ids}), [out])
    return out


def push(
    store: Store, spec: TableSpec, ids: Sequence[int], gradients: Floats, *, lr: float = 0.1, step: int = 0
) -> None:
    store.push(*keys({spec: ids}), [gradients], np.array([lr], np.float32), step)
