"""The index of a slab: open addressing, a segment for each bucket, so that each grows by itself and in little time.

An entry is 32 bits: 0, or the number of a row in its bucket plus one in the low bits, and in the others, which a
segment has the more of the smaller it is, bits of the row's hash. So a wrong row is hardly ever looked at. Segments
are filled anew from their pages, which lie in one piece each, and they grow at different sizes: not all at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastane.ps.addresses import WORD, load_i64, load_u32, store_i64, store_u32
from elastane.ps.compiled import part
from elastane.ps.hashing import hash64, salt_of
from elastane.ps.slab import (
    BUCKET_BITS,
    BUCKET_BYTES,
    BUCKET_CAPACITY,
    BUCKET_ROWS,
    BUCKETS_AT,
    FREE_AT,
    ID,
    INDEX_AT,
    INDEX_ENTRIES,
    INDEX_STRIDE,
    MOST_ROWS,
    N_CLEAN,
    N_FREE,
    NEXT_PAGE,
    PAGE_BYTES,
    PAGE_SHIFT,
    PAGES_AT,
    PAGES_WIDTH,
    ROW_BYTES,
    ROWS_AT,
    TABLE,
)

_SPREAD = 0xD6E8FEB86659FD93
_LEAST = 512
"""The entries that a segment begins with take less than a page of memory."""


@part
def row_at(slab: Any, bucket: Any, row: Any) -> Any:
    """The address of a bucket's row."""
    shift = slab[PAGE_SHIFT]
    page = np.int64(load_u32(slab[PAGES_AT] + WORD * (bucket * slab[PAGES_WIDTH] + (row >> shift))))
    return slab[ROWS_AT] + page * slab[PAGE_BYTES] + (row & ((1 << shift) - 1)) * slab[ROW_BYTES]


@part
def bucket_at(slab: Any, bucket: Any) -> Any:
    """The address of what is known of a bucket."""
    return slab[BUCKETS_AT] + BUCKET_BYTES * bucket


@part
def place_of(hashed: Any, capacity: Any) -> Any:
    """Where in a segment an entry should be."""
    return np.int64((((hashed * np.uint64(_SPREAD)) >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@part
def segment_at(slab: Any, bucket: Any) -> Any:
    """The address of a bucket's segment."""
    return slab[INDEX_AT] + WORD * bucket * slab[INDEX_STRIDE]


@part
def mark_of(hashed: Any, bits: Any) -> Any:
    """The bits of a hash that an entry keeps."""
    return (np.int64(hashed >> np.uint64(32)) << bits) & 0xFFFFFFFF


@part
def hash_of_row(row: Any) -> Any:
    """The hash of the row at an address."""
    return hash64(load_i64(row + ID), salt_of(load_u32(row + TABLE)))


@part
def guess(slab: Any, bucket: Any, hashed: Any) -> Any:
    """The address of the row that most likely has this hash, without looking at it; 0 if surely none has."""
    about = bucket_at(slab, bucket)
    capacity = load_i64(about + BUCKET_CAPACITY)
    if capacity == 0:
        return np.int64(0)
    bits = load_i64(about + BUCKET_BITS)
    rows = (np.int64(1) << bits) - 1
    mark = mark_of(hashed, bits)
    segment = segment_at(slab, bucket)
    place = place_of(hashed, capacity)
    while True:
        entry = np.int64(load_u32(segment + WORD * place))
        if entry == 0:
            return np.int64(0)
        if entry & ~rows == mark:
            return row_at(slab, bucket, (entry & rows) - 1)
        place += 1
        if place == capacity:
            place = np.int64(0)


@part
def is_row(row: Any, number: Any, key: Any) -> Any:
    """Whether the row at an address is that of this id."""
    return load_i64(row + ID) == key and load_u32(row + TABLE) == number


@part
def find_place(slab: Any, bucket: Any, hashed: Any, number: Any, key: Any) -> Any:
    """Where in its segment the entry of an id is; -1 if it has none."""
    about = bucket_at(slab, bucket)
    capacity = load_i64(about + BUCKET_CAPACITY)
    if capacity == 0:
        return np.int64(-1)
    bits = load_i64(about + BUCKET_BITS)
    rows = (np.int64(1) << bits) - 1
    mark = mark_of(hashed, bits)
    segment = segment_at(slab, bucket)
    place = place_of(hashed, capacity)
    while True:
        entry = np.int64(load_u32(segment + WORD * place))
        if entry == 0:
            return np.int64(-1)
        if entry & ~rows == mark and is_row(row_at(slab, bucket, (entry & rows) - 1), number, key):
            return place
        place += 1
        if place == capacity:
            place = np.int64(0)


@part
def entry_row(slab: Any, bucket: Any, place: Any) -> Any:
    """The number, in its bucket, of the row that an entry is of."""
    bits = load_i64(bucket_at(slab, bucket) + BUCKET_BITS)
    return (np.int64(load_u32(segment_at(slab, bucket) + WORD * place)) & ((np.int64(1) << bits) - 1)) - 1


@part
def find(slab: Any, bucket: Any, hashed: Any, number: Any, key: Any) -> Any:
    """The address of an id's row; 0 if it has none."""
    place = find_place(slab, bucket, hashed, number, key)
    if place < 0:
        return np.int64(0)
    return row_at(slab, bucket, entry_row(slab, bucket, place))


@part
def _put(segment: Any, capacity: Any, bits: Any, hashed: Any, row: Any) -> Any:
    place = place_of(hashed, capacity)
    while load_u32(segment + WORD * place) != 0:
        place += 1
        if place == capacity:
            place = np.int64(0)
    store_u32(segment + WORD * place, np.uint32(mark_of(hashed, bits) | (row + 1)))


@part
def grow(slab: Any, bucket: Any, rows: Any) -> Any:
    """Make a bucket's segment large enough for so many rows, and fill it anew."""
    about = bucket_at(slab, bucket)
    before = load_i64(about + BUCKET_CAPACITY)
    # Buckets have about equally many rows. They begin at different sizes, so that they do not grow at the same time.
    capacity = before if before > 0 else _LEAST + (bucket * 157) % (_LEAST // 2)
    while rows * 5 > capacity * 4:
        capacity += capacity // 2
    capacity = min(capacity, slab[INDEX_STRIDE])
    if capacity == before:
        return
    bits = np.int64(1)
    while (np.int64(1) << bits) <= capacity:
        bits += 1
    store_i64(about + BUCKET_CAPACITY, capacity)
    store_i64(about + BUCKET_BITS, bits)
    slab[INDEX_ENTRIES] += capacity - before
    segment = segment_at(slab, bucket)
    for place in range(capacity):
        store_u32(segment + WORD * place, np.uint32(0))
    for row in range(load_i64(about + BUCKET_ROWS)):
        _put(segment, capacity, bits, hash_of_row(row_at(slab, bucket, row)), row)


@part
def append(slab: Any, bucket: Any, hashed: Any) -> Any:
    """Make a row at the end of a bucket; the answer is its address. Who calls writes all of it."""
    about = bucket_at(slab, bucket)
    row = load_i64(about + BUCKET_ROWS)
    if (row + 1) * 5 > load_i64(about + BUCKET_CAPACITY) * 4:
        grow(slab, bucket, row + 1)
    shift = slab[PAGE_SHIFT]
    if row & ((1 << shift) - 1) == 0:
        if slab[N_FREE] > 0:
            slab[N_FREE] -= 1
            slab[N_CLEAN] = min(slab[N_CLEAN], slab[N_FREE])
            page = load_i64(slab[FREE_AT] + 8 * slab[N_FREE])
        else:
            page = slab[NEXT_PAGE]
            slab[NEXT_PAGE] += 1
        store_u32(slab[PAGES_AT] + WORD * (bucket * slab[PAGES_WIDTH] + (row >> shift)), np.uint32(page))
    store_i64(about + BUCKET_ROWS, row + 1)
    slab[MOST_ROWS] = max(slab[MOST_ROWS], row + 1)
    capacity = load_i64(about + BUCKET_CAPACITY)
    _put(segment_at(slab, bucket), capacity, load_i64(about + BUCKET_BITS), hashed, row)
    return row_at(slab, bucket, row)


@part
def _erase(slab: Any, bucket: Any, place: Any) -> Any:
    """Take an entry out, and move those after it up, so that each can still be found."""
    capacity = load_i64(bucket_at(slab, bucket) + BUCKET_CAPACITY)
    segment = segment_at(slab, bucket)
    hole = place
    at = place
    while True:
        at += 1
        if at == capacity:
            at = np.int64(0)
        entry = load_u32(segment + WORD * at)
        if entry == 0:
            break
        home = place_of(hash_of_row(row_at(slab, bucket, entry_row(slab, bucket, at))), capacity)
        # It may move unless its home lies after the hole, up to where it is now.
        stays = hole < home <= at if hole < at else (home > hole or home <= at)
        if not stays:
            store_u32(segment + WORD * hole, entry)
            hole = at
    store_u32(segment + WORD * hole, np.uint32(0))


@part
def free_last_page(slab: Any, bucket: Any, rows: Any) -> Any:
    """A bucket shrinks to so many rows, of which none is in the page that the next one would be in."""
    page = load_u32(slab[PAGES_AT] + WORD * (bucket * slab[PAGES_WIDTH] + (rows >> slab[PAGE_SHIFT])))
    store_i64(slab[FREE_AT] + 8 * slab[N_FREE], np.int64(page))
    slab[N_FREE] += 1


@part
def remove(slab: Any, bucket: Any, place: Any) -> Any:
    """Remove the row of an entry; the last row of its bucket takes its place."""
    about = bucket_at(slab, bucket)
    row = entry_row(slab, bucket, place)
    last = load_i64(about + BUCKET_ROWS) - 1
    to = row_at(slab, bucket, row)
    _erase(slab, bucket, place)
    if row != last:
        source = row_at(slab, bucket, last)
        moved = find_place(slab, bucket, hash_of_row(source), load_u32(source + TABLE), load_i64(source + ID))
        mark = mark_of(hash_of_row(source), load_i64(about + BUCKET_BITS))
        store_u32(segment_at(slab, bucket) + WORD * moved, np.uint32(mark | (row + 1)))
        for word in range(0, slab[ROW_BYTES], WORD):
            store_u32(to + word, load_u32(source + word))
    store_i64(about + BUCKET_ROWS, last)
    if last & ((1 << slab[PAGE_SHIFT]) - 1) == 0:
        free_last_page(slab, bucket, last)
