"""LocalClient: the rows of a worker without servers, in its own process."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from elastane.model.ps import TableSpec
from elastane.ps.store import Store

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

_BUCKETS = 1
"""Nothing ever moves."""


class _Arrived:
    """Rows that are here."""

    def __init__(self, rows: dict[str, Rows]) -> None:
        self._rows = rows

    def result(self) -> dict[str, Rows]:
        return self._rows


class _Applied:
    """A push that is applied."""

    def result(self) -> None:
        """There is nothing to wait for."""


class LocalClient:
    """A client of a store in this process: there is nobody to wait for."""

    def __init__(self) -> None:
        self.store = Store(_BUCKETS)
        self._specs: dict[str, TableSpec] = {}

    def define(self, spec: TableSpec) -> None:
        self.store.define(spec)
        self._specs[spec.name] = spec

    def assign(self, table: str, ids: Ids, values: Rows) -> None:
        self.store.assign(self._specs[table].number, ids, values)

    def pull(self, keys: Mapping[str, Ids], step: int | None = None) -> dict[str, Rows]:
        del step
        rows = {name: np.empty((len(ids), self._specs[name].dim), np.float32) for name, ids in keys.items()}
        tables, counts, ids = self._keys(keys)
        self.store.pull(tables, counts, ids, list(rows.values()))
        return rows

    def pull_ahead(self, keys: Mapping[str, Ids], step: int) -> _Arrived:
        return _Arrived(self.pull(keys, step))

    def push_ahead(
        self, gradients: Mapping[str, tuple[Ids, Rows]], lrs: Mapping[str, float], step: int, weight: float
    ) -> _Applied:
        del weight
        tables, counts, ids = self._keys({name: ids for name, (ids, _) in gradients.items()})
        rates = np.array([lrs[name] for name in gradients], np.float32)
        self.store.push(tables, counts, ids, [grads for _, grads in gradients.values()], rates, step)
        return _Applied()

    def join(self) -> int:
        return 0

    def leave(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There is nobody to let go."""

    def _keys(self, keys: Mapping[str, Ids]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], Ids]:
        tables = np.array([self._specs[name].number for name in keys], np.uint32)
        counts = np.array([len(ids) for ids in keys.values()], np.uint32)
        ids = np.concatenate([*keys.values(), np.empty(0, np.int64)])
        return tables, counts, ids
