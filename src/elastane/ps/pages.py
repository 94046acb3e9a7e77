"""Pages on their way: rows of one bucket and one layout, or the tables that rows are of, with a head that says so."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastane.model.errors import InvalidInput, MalformedMessage
from elastane.model.ps import MAX_DIM, TableSpec
from elastane.ps.addresses import WORD
from elastane.ps.slab import HEAD_WORDS

MOST_BYTES = (1 << 20) + 64
"""No page is larger."""

_HEAD = struct.Struct("<4sBxxxIIIII")
_MAGIC = b"ePg1"
_TABLES, _ROWS = 1, 2
_TABLES_A_PAGE = 500


@dataclass(frozen=True)
class RowsPage:
    """Rows as they lie in a slab."""

    bucket: int
    n_buckets: int
    dim: int
    slot_floats: int
    rows: npt.NDArray[np.uint8]
    """Of shape (rows, bytes of a row)."""


@dataclass(frozen=True)
class TablesPage:
    """The tables that the rows of the pages after it are of."""

    tables: tuple[TableSpec, ...]


def pack_tables(tables: Sequence[TableSpec]) -> Iterator[bytes]:
    for start in range(0, len(tables), _TABLES_A_PAGE):
        some = tables[start : start + _TABLES_A_PAGE]
        yield _HEAD.pack(_MAGIC, _TABLES, 0, 0, 0, 0, len(some)) + json.dumps([one.to_plain() for one in some]).encode()


def rows_head(bucket: int, n_buckets: int, dim: int, slot_floats: int, count: int) -> bytes:
    """What stands before so many rows of one layout."""
    return _HEAD.pack(_MAGIC, _ROWS, bucket, n_buckets, dim, slot_floats, count)


def pack_rows(bucket: int, n_buckets: int, dim: int, slot_floats: int, rows: npt.NDArray[np.uint8]) -> bytearray:
    page = bytearray(_HEAD.size + rows.size)
    page[: _HEAD.size] = rows_head(bucket, n_buckets, dim, slot_floats, len(rows))
    np.frombuffer(page, np.uint8, offset=_HEAD.size)[:] = rows.reshape(-1)
    return page


def unpack(page: bytes | bytearray | memoryview) -> RowsPage | TablesPage:
    """What a page holds, as a view of it. Raises MalformedMessage."""
    if len(page) < _HEAD.size:
        raise MalformedMessage(f"a page of {len(page)} bytes has no head")
    magic, kind, bucket, n_buckets, dim, slot_floats, count = _HEAD.unpack_from(page)
    if magic != _MAGIC:
        raise MalformedMessage(f"a page does not begin with {magic!r}")
    if kind == _TABLES:
        return _unpack_tables(bytes(page[_HEAD.size :]), count)
    if kind != _ROWS or dim > MAX_DIM or slot_floats > 2 * MAX_DIM or bucket >= n_buckets:
        raise MalformedMessage(
            f"no page: kind {kind}, bucket {bucket} of {n_buckets}, rows of {dim} + {slot_floats} numbers"
        )
    row_bytes = WORD * (HEAD_WORDS + dim + slot_floats)
    if len(page) != _HEAD.size + count * row_bytes:
        raise MalformedMessage(f"a page of {len(page)} bytes says that it has {count} rows of {row_bytes}")
    rows = np.frombuffer(page, np.uint8, offset=_HEAD.size).reshape(count, row_bytes)
    return RowsPage(bucket, n_buckets, dim, slot_floats, rows)


def _unpack_tables(text: bytes, count: int) -> TablesPage:
    try:
        plain = json.loads(text)
        if not isinstance(plain, list) or len(plain) != count:
            raise MalformedMessage(f"a page does not have the {count} tables that it says")
        return TablesPage(tuple(TableSpec.from_plain(one) for one in plain))
    except (ValueError, TypeError, InvalidInput) as error:
        raise MalformedMessage(f"a page of tables cannot be read: {error}") from None
