"""Pushes of the synchronous mode, kept until every active client has pushed their step; then combined, applied once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastane.ps import keys
from elastane.ps.frames import Keys, Push

Buckets = npt.NDArray[np.uint32]
DimsOf = Callable[[npt.NDArray[np.uint32]], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class _Held:
    push: Push
    buckets: Buckets
    """The bucket of each row."""


class Holds:
    """What is held on one server, of buckets that it owns or has a copy of. The caller has the lock."""

    def __init__(self, dims_of: DimsOf) -> None:
        self._dims_of = dims_of
        self._steps: dict[int, list[_Held]] = {}

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, push: Push, buckets: Buckets) -> None:
        """Keep a push that has memory of its own."""
        self._steps.setdefault(push.step, []).append(_Held(push, buckets))

    def steps(self, up_to: int) -> list[int]:
        """The steps of which something is held, up to this one, in their order."""
        return sorted(step for step in self._steps if step <= up_to)

    def clients(self, step: int) -> set[int]:
        """Whose pushes of a step are held."""
        return {held.push.client for held in self._steps.get(step, [])}

    def shares(self, step: int) -> dict[int, float]:
        """The part of each client in a step, by what is held of it here."""
        weights = {held.push.client: held.push.weight for held in self._steps.get(step, [])}
        total = sum(weights.values())
        return {client: weight / total if total > 0 else 1 / len(weights) for client, weight in weights.items()}

    def of_bucket(self, bucket: int) -> list[Push]:
        """What is held of one bucket."""
        return [
            keys.select(held.push, self._dims_of(held.push.keys.tables), held.buckets == bucket)
            for step in sorted(self._steps)
            for held in self._steps[step]
            if bool((held.buckets == bucket).any())
        ]

    def forget(self, bucket: int) -> None:
        """Keep nothing of this bucket any more."""
        for step in list(self._steps):
            left = []
            for held in self._steps[step]:
                mine = held.buckets == bucket
                left.append(held if not mine.any() else self._without(held, mine))
            self._keep(step, left)

    def take(self, step: int, chosen: npt.NDArray[np.bool_], shares: Mapping[int, float]) -> Push | None:
        """Take what is held of a step in the chosen buckets out, as one push. None: nothing is.

        Each client's gradients count by its share; one without a share has not pushed all of the step, and does not
        count. Clients come in the order of their numbers, so that the same is added up in the same order everywhere.
        """
        parts: list[Push] = []
        left: list[_Held] = []
        for held in self._steps.get(step, []):
            mine = chosen[held.buckets]
            if mine.all():
                parts.append(held.push)
            elif not mine.any():
                left.append(held)
            else:
                parts.append(keys.select(held.push, self._dims_of(held.push.keys.tables), mine))
                left.append(self._without(held, mine))
        self._keep(step, left)
        parts = sorted((part for part in parts if part.client in shares), key=lambda part: (part.client, part.sequence))
        return self._combined(step, parts, shares) if parts else None

    def _combined(self, step: int, parts: list[Push], shares: Mapping[int, float]) -> Push:
        by_table: dict[int, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], float]]] = {}
        lrs: dict[int, np.float32] = {}
        for part in parts:
            dims = self._dims_of(part.keys.tables)
            id_at = value_at = 0
            for table, count, dim, lr in zip(
                part.keys.tables.tolist(), part.keys.counts.tolist(), dims.tolist(), part.lrs, strict=True
            ):
                rows = part.values[value_at : value_at + count * dim].reshape(count, dim)
                by_table.setdefault(table, []).append((part.keys.ids[id_at : id_at + count], rows, shares[part.client]))
                lrs.setdefault(table, lr)
                id_at += count
                value_at += count * dim
        ids: list[npt.NDArray[np.int64]] = []
        values: list[npt.NDArray[np.float32]] = []
        for pieces in by_table.values():
            found, inverse = keys.unique(np.concatenate([piece[0] for piece in pieces]))
            summed = np.zeros((len(found), pieces[0][1].shape[1]), np.float32)
            at = 0
            for piece_ids, rows, share in pieces:
                keys.add_scaled(summed, inverse[at : at + len(piece_ids)], rows, share)
                at += len(piece_ids)
            ids.append(found)
            values.append(summed.reshape(-1))
        tables = Keys(
            np.array(list(by_table), np.uint32), np.array([len(found) for found in ids], np.uint32), np.concatenate(ids)
        )
        rates = np.array([lrs[table] for table in by_table], np.float32)
        return Push(0, 0, step, 1.0, tables, rates, np.concatenate(values))

    def _without(self, held: _Held, gone: npt.NDArray[np.bool_]) -> _Held:
        kept = keys.select(held.push, self._dims_of(held.push.keys.tables), ~gone)
        return _Held(kept, held.buckets[~gone])

    def _keep(self, step: int, left: list[_Held]) -> None:
        left = [held for held in left if len(held.buckets)]
        if left:
            self._steps[step] = left
        else:
            self._steps.pop(step, None)
