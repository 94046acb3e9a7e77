"""What a store does with a whole bucket, compiled, and with the GIL released. Who calls holds the store's lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastane.ps.addresses import WORD, copy, get, load_i64, load_u32, prefetch, store_i64
from elastane.ps.compiled import kernel, part
from elastane.ps.hashing import bucket_of, hash64
from elastane.ps.index import (
    append,
    bucket_at,
    find,
    find_place,
    free_last_page,
    free_segment,
    grow,
    hash_of_row,
    remove,
    row_at,
)
from elastane.ps.kernels import COUNTED, COUNTERS, EVICT_AFTER, ROWS, SLAB, slab_at
from elastane.ps.slab import (
    BUCKET_ROWS,
    ID,
    LAST_STEP,
    PAGE_SHIFT,
    ROW_BYTES,
    TABLE,
)

_AHEAD = 8
_DIGEST_FACTOR = 0x9FB21C651E98DF25


@part
def _place_of_table(numbers: Any, places: Any, number: Any) -> Any:
    """Where in `tables` the one with this number is, given all numbers in order; -1 if there is none."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    if low < len(numbers) and numbers[low] == number:
        return places[low]
    return np.int64(-1)


@kernel
def first_wrong(
    slab_place: Any,
    row_bytes: Any,
    tables: Any,
    numbers: Any,
    places: Any,
    bucket: Any,
    n_buckets: Any,
    at: Any,
    count: Any,
) -> Any:
    """The first of these rows that is of no table with this layout, or not of this bucket; -1 if there is none."""
    number, table = np.int64(-1), np.int64(-1)
    for i in range(count):
        row = at + i * row_bytes
        if np.int64(load_u32(row + TABLE)) != number:
            number = np.int64(load_u32(row + TABLE))
            table = _place_of_table(numbers, places, number)
        if table < 0 or (slab_place != COUNTERS and tables[table, SLAB] != slab_place):
            return np.int64(i)
        if bucket_of(hash_of_row(row), n_buckets) != bucket:
            return np.int64(i)
    return np.int64(-1)


@part
def _forget_counter(counters: Any, tables: Any, table: Any, bucket: Any, hashed: Any, number: Any, key: Any) -> Any:
    if load_i64(bucket_at(counters, bucket) + BUCKET_ROWS) == 0:
        return
    place = find_place(counters, bucket, hashed, number, key)
    if place >= 0:
        remove(counters, bucket, place)
        tables[table, COUNTED] -= 1


@kernel
def install(
    slabs: Any, slab_place: Any, tables: Any, numbers: Any, places: Any, bucket: Any, at: Any, count: Any
) -> Any:
    """Put rows into a bucket; one that is there is overwritten. An id has a row, or a count, never both."""
    slab = slab_at(slabs, slab_place)
    row_bytes = get(slab, ROW_BYTES)
    grow(slab, bucket, load_i64(bucket_at(slab, bucket) + BUCKET_ROWS) + count)
    for i in range(count):
        source = at + i * row_bytes
        prefetch(source + _AHEAD * row_bytes)
        hashed = hash_of_row(source)
        number = load_u32(source + TABLE)
        key = load_i64(source + ID)
        row = find(slab, bucket, hashed, number, key)
        if row == 0:
            table = _place_of_table(numbers, places, np.int64(number))
            if slab_place == COUNTERS:
                if find(slab_at(slabs, tables[table, SLAB]), bucket, hashed, number, key) != 0:
                    continue  # It has a row already: there is nothing to count.
                tables[table, COUNTED] += 1
            else:
                tables[table, ROWS] += 1
                _forget_counter(slab_at(slabs, COUNTERS), tables, table, bucket, hashed, number, key)
            row = append(slab, bucket, hashed)
        copy(row, source, row_bytes)


@kernel
def drop(slabs: Any, slab_place: Any, tables: Any, numbers: Any, places: Any, bucket: Any) -> Any:
    """Forget all rows of a bucket in one slab; its pages become free."""
    slab = slab_at(slabs, slab_place)
    about = bucket_at(slab, bucket)
    rows = load_i64(about + BUCKET_ROWS)
    field = COUNTED if slab_place == COUNTERS else ROWS
    for row in range(rows):
        tables[_place_of_table(numbers, places, np.int64(load_u32(row_at(slab, bucket, row) + TABLE))), field] -= 1
    for first in range(0, rows, np.int64(1) << get(slab, PAGE_SHIFT)):
        free_last_page(slab, bucket, first)
    store_i64(about + BUCKET_ROWS, np.int64(0))
    free_segment(slab, bucket)


@kernel
def evict(slabs: Any, slab_place: Any, tables: Any, numbers: Any, places: Any, bucket: Any, step: Any) -> Any:
    """Forget the rows of a bucket that are older than their tables keep them; how many they were."""
    slab = slab_at(slabs, slab_place)
    field = COUNTED if slab_place == COUNTERS else ROWS
    count = 0
    for i in range(load_i64(bucket_at(slab, bucket) + BUCKET_ROWS) - 1, -1, -1):
        row = row_at(slab, bucket, i)
        table = _place_of_table(numbers, places, np.int64(load_u32(row + TABLE)))
        keep = tables[table, EVICT_AFTER]
        if keep >= 0 and step - np.int64(load_u32(row + LAST_STEP)) > keep:
            remove(slab, bucket, find_place(slab, bucket, hash_of_row(row), load_u32(row + TABLE), load_i64(row + ID)))
            tables[table, field] -= 1
            count += 1
    return count


@kernel
def digest(slab: Any, bucket: Any) -> Any:
    """A checksum over the rows of a bucket in one slab, whatever their order."""
    total = np.uint64(0)
    for i in range(load_i64(bucket_at(slab, bucket) + BUCKET_ROWS)):
        row = row_at(slab, bucket, i)
        mixed = np.uint64(get(slab, ROW_BYTES))
        for word in range(0, get(slab, ROW_BYTES), WORD):
            mixed = (mixed ^ np.uint64(load_u32(row + word))) * np.uint64(_DIGEST_FACTOR)
            mixed ^= mixed >> np.uint64(29)
        total += hash64(mixed, np.uint64(0))
    return total
