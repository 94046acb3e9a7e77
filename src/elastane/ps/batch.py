"""The rows of one call of a client: ids of some tables, and an array of rows for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from elastane.model.errors import InvalidInput
from elastane.model.ps import TableSpec
from elastane.ps.addresses import address_of
from elastane.ps.keys import Ids, Positions, Rows


class Tables:
    """Some tables in an order: what every call with them needs."""

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self.specs = specs
        self.names = [spec.name for spec in specs]
        self.numbers = np.array([spec.number for spec in specs], np.uint32)
        self.dims = np.array([spec.dim for spec in specs], np.int64)
        self.rates = np.array([spec.optimizer.lr for spec in specs], np.float32)


@dataclass(frozen=True)
class Batch:
    """The ids of all tables one after another, and the rows of each table in an array."""

    tables: Tables
    lengths: list[int]
    ids: Ids
    rows: Sequence[Rows]
    flat: Rows | None
    """All rows one after another, if they are to be fetched."""

    @classmethod
    def to_fetch(cls, tables: Tables, ids: Sequence[Ids]) -> Batch:
        """Of ids whose rows are wanted."""
        ids = [_ids(one) for one in ids]
        lengths = [len(one) for one in ids]
        ends = list(accumulate(length * spec.dim for length, spec in zip(lengths, tables.specs, strict=True)))
        flat = np.empty(ends[-1] if ends else 0, np.float32)
        rows = [
            flat[end - length * spec.dim : end].reshape(length, spec.dim)
            for end, length, spec in zip(ends, lengths, tables.specs, strict=True)
        ]
        return cls(tables, lengths, _joined(ids), rows, flat)

    @classmethod
    def to_send(cls, tables: Tables, ids: Sequence[Ids], rows: Sequence[Rows]) -> Batch:
        """Of ids with their rows. Raises InvalidInput if they do not fit."""
        ids = [_ids(one) for one in ids]
        lengths = [len(one) for one in ids]
        for spec, length, values in zip(tables.specs, lengths, rows, strict=True):
            if values.shape != (length, spec.dim):
                raise InvalidInput(
                    f'table "{spec.name}": rows of shape {values.shape} do not fit {length} ids of {spec.dim} numbers'
                )
        return cls(tables, lengths, _joined(ids), [np.ascontiguousarray(one, np.float32) for one in rows], None)

    @cached_property
    def starts(self) -> Positions:
        """Where each table's ids begin, and where the last one's end."""
        return np.array([0, *accumulate(self.lengths)], np.int64)

    @cached_property
    def addresses(self) -> Positions:
        """Where each table's rows lie."""
        return np.array([address_of(one) for one in self.rows], np.int64)

    @cached_property
    def counts(self) -> npt.NDArray[np.uint32]:
        return np.array(self.lengths, np.uint32)


def _ids(ids: Ids) -> Ids:
    if ids.dtype == np.int64 and ids.ndim == 1 and ids.flags.c_contiguous:
        return ids
    return np.ascontiguousarray(ids, np.int64).reshape(-1)


def _joined(ids: Sequence[Ids]) -> Ids:
    return np.concatenate(ids) if ids else np.zeros(0, np.int64)
