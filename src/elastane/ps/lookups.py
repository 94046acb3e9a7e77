"""Kernels between the different ids of a batch and the batch itself: rows are spread over it, gradients come back.

`inverse` says for each id of the batch which of the pulled rows is its own. A bag is a stretch of ids, from one of
`starts` to the next, whose rows are summed, or averaged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elastane.ps.addresses import address_of, floats
from elastane.ps.compiled import kernel

Rows = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


def spread(rows: Rows, inverse: Positions, out: Rows) -> None:
    """Give each id of the batch its row."""
    _spread(address_of(rows), inverse, rows.shape[1], address_of(out))


def pool(rows: Rows, inverse: Positions, starts: Positions, out: Rows, *, mean: bool) -> None:
    """Give each bag the sum of its rows, or their mean; one without ids gets zeros."""
    _pool(address_of(rows), inverse, starts, rows.shape[1], mean, address_of(out))


def combine(grads: Rows, inverse: Positions, into: Rows) -> None:
    """Add the gradient of each id of the batch to its row's."""
    _combine(address_of(grads), inverse, into.shape[1], address_of(into))


def combine_pooled(grads: Rows, inverse: Positions, starts: Positions, into: Rows, *, mean: bool) -> None:
    """Add the gradient of each bag to those of all its rows."""
    _combine_pooled(address_of(grads), inverse, starts, into.shape[1], mean, address_of(into))


@kernel
def _spread(rows_at: Any, inverse: Any, dim: Any, out_at: Any) -> None:
    n = len(inverse)
    out = floats(out_at, n * dim)
    for i in range(n):
        row = floats(rows_at + inverse[i] * dim * 4, dim)
        at = i * dim
        for column in range(dim):
            out[at + column] = row[column]


@kernel
def _combine(grads_at: Any, inverse: Any, dim: Any, into_at: Any) -> None:
    n = len(inverse)
    grads = floats(grads_at, n * dim)
    for i in range(n):
        row = floats(into_at + inverse[i] * dim * 4, dim)
        at = i * dim
        for column in range(dim):
            row[column] += grads[at + column]


@kernel
def _pool(rows_at: Any, inverse: Any, starts: Any, dim: Any, mean: Any, out_at: Any) -> None:
    bags = len(starts) - 1
    out = floats(out_at, bags * dim)
    for bag in range(bags):
        at = bag * dim
        for column in range(dim):
            out[at + column] = np.float32(0)
        count = starts[bag + 1] - starts[bag]
        for i in range(starts[bag], starts[bag + 1]):
            row = floats(rows_at + inverse[i] * dim * 4, dim)
            for column in range(dim):
                out[at + column] += row[column]
        if mean and count > 1:
            for column in range(dim):
                out[at + column] /= np.float32(count)


@kernel
def _combine_pooled(grads_at: Any, inverse: Any, starts: Any, dim: Any, mean: Any, into_at: Any) -> None:
    bags = len(starts) - 1
    grads = floats(grads_at, bags * dim)
    for bag in range(bags):
        at = bag * dim
        count = starts[bag + 1] - starts[bag]
        scale = np.float32(1)
        if mean and count > 1:
            scale = np.float32(1) / np.float32(count)
        for i in range(starts[bag], starts[bag + 1]):
            row = floats(into_at + inverse[i] * dim * 4, dim)
            for column in range(dim):
                row[column] += scale * grads[at + column]
