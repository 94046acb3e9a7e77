"""What a store does with rows, compiled, and with the GIL released. Who calls holds the store's lock.

Rows of large tables are not in the cache. So ids go through in blocks, and memory is asked for some ids ahead of where
it is used: the place in the index when an id is hashed, and the row, as the index has it, before it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastane.ps.addresses import (
    WORD,
    add,
    copy,
    floats,
    get,
    load_f64,
    load_i64,
    load_u32,
    longs,
    prefetch,
    store_i64,
    store_u32,
)
from elastane.ps.compiled import kernel, part
from elastane.ps.hashing import bucket_of, fill_buckets_of, hash64, salt_of
from elastane.ps.index import append, bucket_at, find, find_place, guess, is_row, remove, start_of
from elastane.ps.initial import fill_initial
from elastane.ps.optimizers import SETTINGS, fill_slots, update_row
from elastane.ps.slab import (
    BUCKET_LOAD,
    BUCKET_ROWS,
    DIM,
    FREQUENCY,
    ID,
    LAST_STEP,
    ROW_BYTES,
    SLAB_FIELDS,
    TABLE,
    WEIGHTS,
)

# What kernels know of a table: one row of int64 numbers; `scales` has its initializer's, `settings` its optimizer's.
SLAB, NUMBER, INITIAL, STREAM, ADMIT_AFTER, OPTIMIZER, EVICT_AFTER, ROWS, COUNTED = range(9)
TABLE_FIELDS = 9

COUNTERS = 0
"""The slab of the ids that are counted until they are admitted: rows of no weights."""

_BLOCK = 256
_INDEX_AHEAD = 24
_ROWS_AHEAD = 16
_LINE = 64


@part
def slab_at(slabs: Any, place: Any) -> Any:
    """The address of what is known of a slab."""
    return slabs + 8 * SLAB_FIELDS * place


@part
def _look_ahead(
    slab: Any,
    n_buckets: Any,
    salt: Any,
    ids_at: Any,
    count: Any,
    need: Any,
    hashes: Any,
    buckets: Any,
    rows: Any,
) -> Any:
    """The hashes, buckets, and most likely rows of a block of ids; the first rows are asked for."""
    ids = longs(ids_at, count)
    for i in range(count):
        hashes[i] = hash64(ids[i], salt)
    fill_buckets_of(hashes, count, n_buckets, buckets)
    for i in range(min(count, _INDEX_AHEAD)):
        rows[i] = _ask_for_entry(slab, buckets[i], hashes[i])
    for i in range(count):
        ahead = i + _INDEX_AHEAD
        if ahead < count:
            rows[ahead] = _ask_for_entry(slab, buckets[ahead], hashes[ahead])
        rows[i] = guess(slab, buckets[i], hashes[i], rows[i])
        if i < _ROWS_AHEAD:
            _ask_for(rows[i], need)


@part
def _ask_for_entry(slab: Any, bucket: Any, hashed: Any) -> Any:
    about = bucket_at(slab, bucket)
    store_i64(about + BUCKET_LOAD, load_i64(about + BUCKET_LOAD) + 1)
    start = start_of(about, hashed)
    prefetch(start)
    return start


@part
def _ask_for(row: Any, need: Any) -> Any:
    if row != 0:
        for line in range(0, need, _LINE):
            prefetch(row + line)
        prefetch(row + need - 1)


@part
def _sure(slab: Any, guessed: Any, bucket: Any, hashed: Any, number: Any, key: Any) -> Any:
    """The address of an id's row, given the likely one; 0 if it has none."""
    if guessed == 0 or is_row(guessed, number, key):
        return guessed
    return find(slab, bucket, hashed, number, key)


@kernel
def pull(slabs: Any, tables: Any, scales: Any, n_buckets: Any, groups: Any, counts: Any, ids_at: Any, outs: Any) -> Any:
    """Write the weights of ids. `groups` are places in `tables`; `outs` is an address each, or one for all in a row."""
    hashes = np.empty(_BLOCK, np.uint64)
    buckets = np.empty(_BLOCK, np.int64)
    rows = np.empty(_BLOCK, np.int64)
    out = outs[0]
    for group in range(len(groups)):
        table = tables + 8 * TABLE_FIELDS * groups[group]
        slab = slab_at(slabs, get(table, SLAB))
        number = np.uint32(get(table, NUMBER))
        salt = salt_of(number)
        dim = get(slab, DIM)
        need = WEIGHTS + WORD * dim
        if len(outs) > 1:
            out = outs[group]
        for start in range(0, counts[group], _BLOCK):
            count = min(_BLOCK, counts[group] - start)
            _look_ahead(slab, n_buckets, salt, ids_at, count, need, hashes, buckets, rows)
            for i in range(count):
                if i + _ROWS_AHEAD < count:
                    _ask_for(rows[i + _ROWS_AHEAD], need)
                key = load_i64(ids_at + 8 * i)
                row = _sure(slab, rows[i], buckets[i], hashes[i], number, key)
                if row == 0:
                    fill_initial(
                        out,
                        dim,
                        get(table, INITIAL),
                        load_f64(scales + 8 * groups[group]),
                        np.uint64(get(table, STREAM)),
                        key,
                    )
                else:
                    copy(out, row + WEIGHTS, WORD * dim)
                out += WORD * dim
            ids_at += 8 * count


@part
def _admitted(slabs: Any, table: Any, bucket: Any, hashed: Any, key: Any, step: Any) -> Any:
    """Count a push of an id that has no row; whether it is now to have one."""
    if get(table, ADMIT_AFTER) == 0:
        return True
    counters = slab_at(slabs, COUNTERS)
    number = np.uint32(get(table, NUMBER))
    row = find(counters, bucket, hashed, number, key)
    if row != 0 and np.int64(load_u32(row + FREQUENCY)) >= get(table, ADMIT_AFTER):
        _forget_counter(slabs, table, bucket, hashed, key)
        return True
    if row == 0:
        row = append(counters, bucket, hashed)
        _write_head(row, number, key, np.int64(0), step)
        add(table, COUNTED, 1)
    _count(row, step)
    return False


@part
def _forget_counter(slabs: Any, table: Any, bucket: Any, hashed: Any, key: Any) -> Any:
    counters = slab_at(slabs, COUNTERS)
    if load_i64(bucket_at(counters, bucket) + BUCKET_ROWS) == 0:
        return
    place = find_place(counters, bucket, hashed, np.uint32(get(table, NUMBER)), key)
    if place >= 0:
        remove(counters, bucket, place)
        add(table, COUNTED, -1)


@part
def _write_head(row: Any, number: Any, key: Any, frequency: Any, step: Any) -> Any:
    store_i64(row + ID, key)
    store_u32(row + TABLE, number)
    store_u32(row + FREQUENCY, np.uint32(frequency))
    store_u32(row + LAST_STEP, np.uint32(step))


@part
def _count(row: Any, step: Any) -> Any:
    frequency = np.int64(load_u32(row + FREQUENCY))
    store_u32(row + FREQUENCY, np.uint32(min(frequency + 1, np.int64(0xFFFFFFFF))))
    store_u32(row + LAST_STEP, np.uint32(step))


@part
def _new_row(slab: Any, table: Any, scale: Any, settings: Any, bucket: Any, hashed: Any, key: Any) -> Any:
    row = append(slab, bucket, hashed)
    _write_head(row, np.uint32(get(table, NUMBER)), key, np.int64(0), np.int64(0))
    fill_initial(row + WEIGHTS, get(slab, DIM), get(table, INITIAL), scale, np.uint64(get(table, STREAM)), key)
    fill_slots(row, get(table, OPTIMIZER), get(slab, DIM), settings)
    add(table, ROWS, 1)
    return row


@kernel
def push(
    slabs: Any,
    tables: Any,
    scales: Any,
    all_settings: Any,
    n_buckets: Any,
    groups: Any,
    counts: Any,
    ids_at: Any,
    gradients: Any,
    rates_at: Any,
    step: Any,
) -> Any:
    """Apply gradients to the rows of ids, and make those that are not there. `gradients` as `outs` in `pull`."""
    hashes = np.empty(_BLOCK, np.uint64)
    buckets = np.empty(_BLOCK, np.int64)
    rows = np.empty(_BLOCK, np.int64)
    gradient = gradients[0]
    rates = floats(rates_at, len(groups))
    for group in range(len(groups)):
        table = tables + 8 * TABLE_FIELDS * groups[group]
        slab = slab_at(slabs, get(table, SLAB))
        settings = all_settings + 8 * SETTINGS * groups[group]
        number = np.uint32(get(table, NUMBER))
        salt = salt_of(number)
        dim = get(slab, DIM)
        need = get(slab, ROW_BYTES)
        if len(gradients) > 1:
            gradient = gradients[group]
        for start in range(0, counts[group], _BLOCK):
            count = min(_BLOCK, counts[group] - start)
            _look_ahead(slab, n_buckets, salt, ids_at, count, need, hashes, buckets, rows)
            for i in range(count):
                if i + _ROWS_AHEAD < count:
                    _ask_for(rows[i + _ROWS_AHEAD], need)
                key = load_i64(ids_at + 8 * i)
                row = _sure(slab, rows[i], buckets[i], hashes[i], number, key)
                if row == 0:  # An id that stands twice in the block may have got its row meanwhile.
                    row = find(slab, buckets[i], hashes[i], number, key)
                if row == 0 and _admitted(slabs, table, buckets[i], hashes[i], key, step):
                    row = _new_row(
                        slab, table, load_f64(scales + 8 * groups[group]), settings, buckets[i], hashes[i], key
                    )
                if row != 0:
                    updates = np.int64(load_u32(row + FREQUENCY))
                    update_row(row, get(table, OPTIMIZER), dim, gradient, rates[group], settings, updates)
                    _count(row, step)
                gradient += WORD * dim
            ids_at += 8 * count


@kernel
def assign(
    slabs: Any,
    table: Any,
    scale: Any,
    settings: Any,
    n_buckets: Any,
    ids_at: Any,
    count: Any,
    values_at: Any,
    step: Any,
    only_new: Any,
) -> Any:
    """Set the weights of ids of one table; with `only_new`, of those that have no row yet."""
    slab = slab_at(slabs, get(table, SLAB))
    number = np.uint32(get(table, NUMBER))
    dim = get(slab, DIM)
    for i in range(count):
        key = load_i64(ids_at + 8 * i)
        hashed = hash64(key, salt_of(number))
        bucket = bucket_of(hashed, n_buckets)
        row = find(slab, bucket, hashed, number, key)
        if row != 0 and only_new:
            continue
        if row == 0:
            _forget_counter(slabs, table, bucket, hashed, key)
            row = _new_row(slab, table, scale, settings, bucket, hashed, key)
            store_u32(row + LAST_STEP, np.uint32(step))
        copy(row + WEIGHTS, values_at + WORD * dim * i, WORD * dim)


@kernel
def count_missing(slabs: Any, tables: Any, n_buckets: Any, groups: Any, counts: Any, ids_at: Any) -> Any:
    """How many bytes new rows for these ids would take."""
    total = np.int64(0)
    for group in range(len(groups)):
        table = tables + 8 * TABLE_FIELDS * groups[group]
        slab = slab_at(slabs, get(table, SLAB))
        number = np.uint32(get(table, NUMBER))
        for _ in range(counts[group]):
            key = load_i64(ids_at)
            hashed = hash64(key, salt_of(number))
            if find(slab, bucket_of(hashed, n_buckets), hashed, number, key) == 0:
                total += get(slab, ROW_BYTES) + 2 * WORD
            ids_at += 8
    return total
