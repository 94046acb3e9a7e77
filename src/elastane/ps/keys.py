"""Kernels over the keys of requests: duplicates, the way of each row to its owner, and which rows a server takes.

A request's rows lie table by table. On the client each table has an array of its own, which kernels reach by address;
on the wire and in the server all rows of a request are one stretch of float32 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elastane.ps.addresses import address_of, floats, load_i64
from elastane.ps.compiled import kernel
from elastane.ps.frames import Keys, Push
from elastane.ps.hashing import bucket_of, hash64, salt_of

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]

TAKEN, REFUSED, REPEATED = 0, 1, 2
"""What a server says of a row: it takes it, it does not own its bucket, or its bucket has had this push before."""


def unique(ids: Ids) -> tuple[Ids, Positions]:
    """The different ids in the order of their first appearance, and for every id its place among them."""
    ids = np.ascontiguousarray(ids, np.int64)
    size = 1 << max(4, (2 * len(ids)).bit_length())
    places = np.zeros(size, np.int32)
    found = np.empty(len(ids), np.int64)
    inverse = np.empty(len(ids), np.int64)
    count = _unique(address_of(ids), len(ids), places, found, inverse)
    return found[:count], inverse


def combine(inverse: Positions, grads: Rows, count: int) -> Rows:
    """The sum of the gradients of each of `count` different ids, in the order of `grads`."""
    grads = np.ascontiguousarray(grads, np.float32)
    combined = np.zeros((count, grads.shape[1]), np.float32)
    _add_rows(inverse, address_of(grads), grads.shape[1], np.float32(1.0), combined)
    return combined


def add_scaled(into: Rows, places: Positions, rows: Rows, scale: float) -> None:
    """Add rows times a number to those at `places`."""
    rows = np.ascontiguousarray(rows, np.float32)
    _add_rows(places, address_of(rows), rows.shape[1], np.float32(scale), into)


@dataclass(frozen=True)
class Route:
    """The rows of one request by their servers: `order[starts[s]:starts[s+1]]` are those of server `s`, by table."""

    order: Positions
    starts: Positions
    counts: npt.NDArray[np.int64]
    """Rows by server and table."""


def route(
    ids: Ids,
    positions: Positions | None,
    table_starts: Positions,
    tables: npt.NDArray[np.uint32],
    server_of_bucket: npt.NDArray[np.int64],
    n_servers: int,
) -> Route:
    """Say which server each id goes to. With `positions` only for those of the ids. A negative server is left out."""
    if positions is None:
        positions = np.arange(len(ids), dtype=np.int64)
    counts = np.zeros((n_servers, len(tables)), np.int64)
    order = np.empty(len(positions), np.int64)
    starts = np.empty(n_servers + 1, np.int64)
    _route(ids, positions, table_starts, tables, server_of_bucket, counts, order, starts)
    return Route(order[: starts[-1]], starts, counts)


def one_way(lengths: Sequence[int]) -> Route:
    """All rows to the one server that there is."""
    count = sum(lengths)
    return Route(np.arange(count, dtype=np.int64), np.array([0, count], np.int64), np.array([lengths], np.int64))


def gather(
    order: Positions, counts: Positions, starts: Positions, addresses: Positions, dims: Positions, out: Rows
) -> None:
    """Put rows of the tables' arrays one after another into `out`; `order` has places among all ids, by table."""
    _gather(order, counts, starts, addresses, dims, address_of(out))


def scatter(
    order: Positions, counts: Positions, starts: Positions, addresses: Positions, dims: Positions, rows: Rows
) -> None:
    """Put rows that lie one after another at their places in the tables' arrays."""
    _scatter(order, counts, starts, addresses, dims, address_of(rows))


@dataclass(frozen=True)
class Judgement:
    """What becomes of each row of a push."""

    buckets: npt.NDArray[np.uint32]
    verdicts: npt.NDArray[np.uint8]
    refused: int
    repeated: int

    @property
    def taken(self) -> npt.NDArray[np.bool_]:
        taken: npt.NDArray[np.bool_] = self.verdicts == TAKEN
        return taken

    def positions(self, verdict: int) -> npt.NDArray[np.uint32]:
        """The rows of which this is said."""
        return np.nonzero(self.verdicts == verdict)[0].astype(np.uint32)


def judge(keys: Keys, serving: npt.NDArray[np.uint8], applied: npt.NDArray[np.int64], sequence: int) -> Judgement:
    """What becomes of each row of a push, where these buckets are served and have had these sequences."""
    buckets = np.empty(len(keys.ids), np.uint32)
    verdicts = np.empty(len(keys.ids), np.uint8)
    refused, repeated = _judge(keys.tables, keys.counts, keys.ids, serving, applied, sequence, buckets, verdicts)
    return Judgement(buckets, verdicts, refused, repeated)


def all_served(keys: Keys, serving: npt.NDArray[np.uint8]) -> bool:
    """Whether the buckets of all rows are served."""
    return bool(_all_served(keys.tables, keys.counts, keys.ids, serving))


def mark(judgement: Judgement, applied: npt.NDArray[np.int64], sequence: int) -> None:
    """Note that the buckets of the taken rows have had this push."""
    _mark(judgement.buckets, judgement.verdicts, applied, sequence)


def select(push: Push, dims: Positions, keep: npt.NDArray[np.bool_]) -> Push:
    """A push of the kept rows alone, with memory of its own."""
    keys = push.keys
    counts = np.empty(len(keys.counts), np.uint32)
    ids = np.empty(int(np.count_nonzero(keep)), np.int64)
    values = np.empty(len(push.values), np.float32)
    used = _select(keys.counts, dims, keys.ids, push.values, keep, counts, ids, values)
    filled = counts > 0
    chosen = Keys(keys.tables[filled], counts[filled], ids)
    return Push(push.client, push.sequence, push.step, push.weight, chosen, push.lrs[filled], values[:used])


def select_keys(keys: Keys, keep: npt.NDArray[np.bool_]) -> Keys:
    """The kept ids, in as many tables as before."""
    ends = np.cumsum(keys.counts, dtype=np.int64)
    kept = np.concatenate(([0], np.cumsum(keep, dtype=np.int64)))
    counts = kept[ends] - kept[ends - keys.counts]
    return Keys(keys.tables, counts.astype(np.uint32), keys.ids[keep])


def warm_up() -> None:
    """Compile all kernels, or load them from the cache, so that the first request does not wait for it."""
    ids = np.zeros(1, np.int64)
    rows = np.zeros((1, 1), np.float32)
    found, inverse = unique(ids)
    combine(inverse, rows, len(found))
    one, table = np.ones(1, np.int64), np.zeros(1, np.uint32)
    way = route(ids, None, np.array([0, 1], np.int64), table, np.zeros(1, np.int64), 1)
    addresses = np.array([address_of(rows)], np.int64)
    gather(way.order, way.counts[0], np.array([0, 1], np.int64), addresses, one, rows[0])
    scatter(way.order, way.counts[0], np.array([0, 1], np.int64), addresses, one, rows[0])
    keys = Keys(table, np.ones(1, np.uint32), ids)
    all_served(keys, np.ones(1, np.uint8))
    mark(judge(keys, np.ones(1, np.uint8), one, 1), one, 1)
    select(Push(0, 0, 0, 1.0, keys, rows[0], rows[0]), one, np.ones(1, np.bool_))


@kernel
def _unique(ids_at: Any, n: Any, places: Any, found: Any, inverse: Any) -> Any:
    mask = np.uint64(len(places) - 1)
    count = 0
    for i in range(n):
        key = load_i64(ids_at + 8 * i)
        at = hash64(key, np.uint64(0)) & mask
        while True:
            place = places[at]
            if place == 0:
                found[count] = key
                count += 1
                places[at] = count
                inverse[i] = count - 1
                break
            if found[place - 1] == key:
                inverse[i] = place - 1
                break
            at = (at + np.uint64(1)) & mask
    return count


@kernel
def _add_rows(places: Any, rows_at: Any, dim: Any, scale: Any, into: Any) -> Any:
    rows = floats(rows_at, len(places) * dim)
    for i in range(len(places)):
        place = places[i]
        for column in range(dim):
            into[place, column] += scale * rows[i * dim + column]


@kernel
def _route(
    ids: Any,
    positions: Any,
    table_starts: Any,
    numbers: Any,
    server_of_bucket: Any,
    counts: Any,
    order: Any,
    starts: Any,
) -> Any:
    n = len(positions)
    n_servers = counts.shape[0]
    n_tables = counts.shape[1]
    n_buckets = len(server_of_bucket)
    servers = np.empty(n, np.int32)
    tables = np.empty(n, np.int32)
    table = 0
    for i in range(n):
        position = positions[i]
        while position >= table_starts[table + 1]:
            table += 1
        bucket = bucket_of(hash64(ids[position], salt_of(numbers[table])), n_buckets)
        server = server_of_bucket[bucket]
        servers[i] = server
        tables[i] = table
        if server >= 0:
            counts[server, table] += 1
    at = np.empty((n_servers, n_tables), np.int64)
    total = 0
    for server in range(n_servers):
        starts[server] = total
        for table in range(n_tables):
            at[server, table] = total
            total += counts[server, table]
    starts[n_servers] = total
    for i in range(n):
        server = servers[i]
        if server >= 0:
            order[at[server, tables[i]]] = positions[i]
            at[server, tables[i]] += 1


@kernel
def _gather(order: Any, counts: Any, starts: Any, addresses: Any, dims: Any, out_at: Any) -> Any:
    # Each row is an array of its own: then the copy of one is a few wide moves.
    at = 0
    for table in range(len(counts)):
        dim = dims[table]
        rows_at = addresses[table] - starts[table] * dim * 4
        for _ in range(counts[table]):
            row = floats(rows_at + order[at] * dim * 4, dim)
            out = floats(out_at, dim)
            for column in range(dim):
                out[column] = row[column]
            out_at += dim * 4
            at += 1


@kernel
def _scatter(order: Any, counts: Any, starts: Any, addresses: Any, dims: Any, rows_at: Any) -> Any:
    at = 0
    for table in range(len(counts)):
        dim = dims[table]
        out_at = addresses[table] - starts[table] * dim * 4
        for _ in range(counts[table]):
            row = floats(rows_at, dim)
            out = floats(out_at + order[at] * dim * 4, dim)
            for column in range(dim):
                out[column] = row[column]
            rows_at += dim * 4
            at += 1


@kernel
def _judge(
    tables: Any, counts: Any, ids: Any, serving: Any, applied: Any, sequence: Any, buckets: Any, verdicts: Any
) -> Any:
    refused = 0
    repeated = 0
    at = 0
    for table in range(len(counts)):
        salt = salt_of(tables[table])
        for _ in range(counts[table]):
            bucket = bucket_of(hash64(ids[at], salt), len(serving))
            buckets[at] = bucket
            if serving[bucket] == 0:
                verdicts[at] = REFUSED
                refused += 1
            elif applied[bucket] >= sequence:
                verdicts[at] = REPEATED
                repeated += 1
            else:
                verdicts[at] = TAKEN
            at += 1
    return refused, repeated


@kernel
def _all_served(tables: Any, counts: Any, ids: Any, serving: Any) -> Any:
    at = 0
    for table in range(len(counts)):
        salt = salt_of(tables[table])
        for _ in range(counts[table]):
            if serving[bucket_of(hash64(ids[at], salt), len(serving))] == 0:
                return False
            at += 1
    return True


@kernel
def _mark(buckets: Any, verdicts: Any, applied: Any, sequence: Any) -> Any:
    for i in range(len(buckets)):
        if verdicts[i] == TAKEN:
            applied[buckets[i]] = sequence


@kernel
def _select(
    counts: Any, dims: Any, ids: Any, values: Any, keep: Any, out_counts: Any, out_ids: Any, out_values: Any
) -> Any:
    at = 0
    taken = 0
    read = 0
    written = 0
    for table in range(len(counts)):
        dim = dims[table]
        kept = 0
        for _ in range(counts[table]):
            if keep[at]:
                kept += 1
                out_ids[taken] = ids[at]
                taken += 1
                for column in range(dim):
                    out_values[written + column] = values[read + column]
                written += dim
            read += dim
            at += 1
        out_counts[table] = kept
    return written
