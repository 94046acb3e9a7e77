"""The index of a slab: open addressing, a segment for each bucket, so that each grows by itself and in little time.

An entry is 32 bits: 0, or the number of a row in its bucket plus one in the low bits, and in the others, which a
segment has the more of the smaller it is, bits of the row's hash. So a wrong row is hardly ever looked at. Segments
are filled anew from their pages, which lie in one piece each, and they grow at different sizes: not all at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastane.ps.addresses import WORD, add, clear, copy, get, load_i64, load_u32, prefetch, put, store_i64, store_u32
from elastane.ps.compiled import part
from elastane.ps.hashing import hash64, salt_of
from elastane.ps.slab import (
    BUCKET_BITS,
    BUCKET_BYTES,
    BUCKET_CAPACITY,
    BUCKET_ROWS,
    BUCKET_SEGMENT,
    BUCKET_SIZE,
    BUCKETS_AT,
    FREE_AT,
    FREE_SEGMENTS_AT,
    ID,
    INDEX_ENTRIES,
    MOST_ROWS,
    N_BUCKETS,
    N_CLEAN,
    N_FREE,
    N_FREE_SEGMENTS_AT,
    NEXT_PAGE,
    NEXT_SEGMENT,
    PAGE_BYTES,
    PAGE_SHIFT,
    PAGES_AT,
    PAGES_WIDTH,
    ROW_BYTES,
    ROWS_AT,
    SEGMENTS_AT,
    SIZES_AT,
    TABLE,
    UNUSED,
)

_SPREAD = 0xD6E8FEB86659FD93
_AHEAD = 8
_FULLEST, _SPAN = 0.62, 0.2
"""How full segments may be before they grow: so far at least, and at most so much further."""


@part
def row_at(slab: Any, bucket: Any, row: Any) -> Any:
    """The address of a bucket's row."""
    shift = get(slab, PAGE_SHIFT)
    page = np.int64(load_u32(get(slab, PAGES_AT) + WORD * (bucket * get(slab, PAGES_WIDTH) + (row >> shift))))
    return get(slab, ROWS_AT) + page * get(slab, PAGE_BYTES) + (row & ((1 << shift) - 1)) * get(slab, ROW_BYTES)


@part
def bucket_at(slab: Any, bucket: Any) -> Any:
    """The address of what is known of a bucket."""
    return get(slab, BUCKETS_AT) + BUCKET_BYTES * bucket


@part
def place_of(hashed: Any, capacity: Any) -> Any:
    """Where in a segment an entry should be."""
    return np.int64((((hashed * np.uint64(_SPREAD)) >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@part
def mark_of(hashed: Any, bits: Any) -> Any:
    """The bits of a hash that an entry keeps."""
    return (np.int64(hashed >> np.uint64(32)) << bits) & 0xFFFFFFFF


@part
def hash_of_row(row: Any) -> Any:
    """The hash of the row at an address."""
    return hash64(load_i64(row + ID), salt_of(load_u32(row + TABLE)))


@part
def guess(slab: Any, bucket: Any, hashed: Any, start: Any) -> Any:
    """The address of the row that most likely has this hash, without looking at it; 0 if surely none has.

    `start` is the address of the entry at its place, 0 if the bucket has no segment.
    """
    if start == 0:
        return np.int64(0)
    about = bucket_at(slab, bucket)
    bits = np.int64(load_u32(about + BUCKET_BITS))
    rows = (np.int64(1) << bits) - 1
    mark = mark_of(hashed, bits)
    segment = load_i64(about + BUCKET_SEGMENT)
    end = segment + WORD * capacity_of(about)
    while True:
        entry = np.int64(load_u32(start))
        if entry & ~rows == mark and entry != 0:
            return row_at(slab, bucket, (entry & rows) - 1)
        if entry == 0:
            return np.int64(0)
        start += WORD
        if start == end:
            start = segment


@part
def start_of(about: Any, hashed: Any) -> Any:
    """The address of the entry at a hash's place in a bucket's segment; 0 without one."""
    segment = load_i64(about + BUCKET_SEGMENT)
    if segment == 0:
        return segment
    return segment + WORD * place_of(hashed, capacity_of(about))


@part
def is_row(row: Any, number: Any, key: Any) -> Any:
    """Whether the row at an address is that of this id."""
    return load_i64(row + ID) == key and load_u32(row + TABLE) == number


@part
def find_place(slab: Any, bucket: Any, hashed: Any, number: Any, key: Any) -> Any:
    """Where in its segment the entry of an id is; -1 if it has none."""
    about = bucket_at(slab, bucket)
    segment = load_i64(about + BUCKET_SEGMENT)
    if segment == 0:
        return np.int64(-1)
    capacity = capacity_of(about)
    bits = np.int64(load_u32(about + BUCKET_BITS))
    rows = (np.int64(1) << bits) - 1
    mark = mark_of(hashed, bits)
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
    about = bucket_at(slab, bucket)
    bits = np.int64(load_u32(about + BUCKET_BITS))
    return (np.int64(load_u32(load_i64(about + BUCKET_SEGMENT) + WORD * place)) & ((np.int64(1) << bits) - 1)) - 1


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
def capacity_of(about: Any) -> Any:
    """How many entries a bucket's segment has room for."""
    return np.int64(load_u32(about + BUCKET_CAPACITY))


@part
def _most_rows(bucket: Any, capacity: Any) -> Any:
    """How many rows a segment may be of. Buckets have about equally many; but they do not grow at the same time."""
    share = np.float64((bucket * 40503) % 65536) / 65536.0
    return np.int64((_FULLEST + _SPAN * share) * np.float64(capacity))


@part
def free_segment(slab: Any, bucket: Any) -> Any:
    """Take a bucket's segment from it."""
    about = bucket_at(slab, bucket)
    segment = load_i64(about + BUCKET_SEGMENT)
    if segment == 0:
        return
    size = load_i64(about + BUCKET_SIZE)
    free = get(slab, N_FREE_SEGMENTS_AT) + 16 * size
    store_i64(get(slab, FREE_SEGMENTS_AT) + 8 * (size * get(slab, N_BUCKETS) + load_i64(free)), segment)
    store_i64(free, load_i64(free) + 1)
    add(slab, UNUSED, 1)
    add(slab, INDEX_ENTRIES, -capacity_of(about))
    store_i64(about + BUCKET_SEGMENT, np.int64(0))


@part
def _take_segment(slab: Any, bucket: Any, size: Any) -> Any:
    capacity = load_i64(get(slab, SIZES_AT) + 8 * size)
    free = get(slab, N_FREE_SEGMENTS_AT) + 16 * size
    if load_i64(free) > 0:
        left = load_i64(free) - 1
        store_i64(free, left)
        store_i64(free + 8, min(load_i64(free + 8), left))
        segment = load_i64(get(slab, FREE_SEGMENTS_AT) + 8 * (size * get(slab, N_BUCKETS) + left))
    else:
        segment = get(slab, SEGMENTS_AT) + WORD * get(slab, NEXT_SEGMENT)
        add(slab, NEXT_SEGMENT, capacity)
    about = bucket_at(slab, bucket)
    bits = np.int64(1)
    while (np.int64(1) << bits) <= capacity:
        bits += 1
    store_i64(about + BUCKET_SEGMENT, segment)
    store_i64(about + BUCKET_SIZE, size)
    store_u32(about + BUCKET_CAPACITY, np.uint32(capacity))
    store_u32(about + BUCKET_BITS, np.uint32(bits))
    add(slab, INDEX_ENTRIES, capacity)
    return segment


@part
def grow(slab: Any, bucket: Any, rows: Any) -> Any:
    """Give a bucket a segment that is large enough for so many rows, and fill it, unless it has one."""
    about = bucket_at(slab, bucket)
    size = np.int64(0)
    if load_i64(about + BUCKET_SEGMENT) != 0:
        if rows <= _most_rows(bucket, capacity_of(about)):
            return
        size = load_i64(about + BUCKET_SIZE)
    while rows > _most_rows(bucket, load_i64(get(slab, SIZES_AT) + 8 * size)):
        size += 1
    free_segment(slab, bucket)
    segment = _take_segment(slab, bucket, size)
    capacity = capacity_of(about)
    bits = np.int64(load_u32(about + BUCKET_BITS))
    clear(segment, WORD * capacity)
    rows = load_i64(about + BUCKET_ROWS)
    rows_a_page = np.int64(1) << get(slab, PAGE_SHIFT)
    row_bytes = get(slab, ROW_BYTES)
    for first in range(0, rows, rows_a_page):
        at = row_at(slab, bucket, first)
        for row in range(first, min(first + rows_a_page, rows)):
            prefetch(at + _AHEAD * row_bytes)
            _put(segment, capacity, bits, hash_of_row(at), row)
            at += row_bytes


@part
def append(slab: Any, bucket: Any, hashed: Any) -> Any:
    """Make a row at the end of a bucket; the answer is its address. Who calls writes all of it."""
    about = bucket_at(slab, bucket)
    row = load_i64(about + BUCKET_ROWS)
    grow(slab, bucket, row + 1)
    shift = get(slab, PAGE_SHIFT)
    if row & ((1 << shift) - 1) == 0:
        if get(slab, N_FREE) > 0:
            add(slab, N_FREE, -1)
            put(slab, N_CLEAN, min(get(slab, N_CLEAN), get(slab, N_FREE)))
            page = load_i64(get(slab, FREE_AT) + 8 * get(slab, N_FREE))
        else:
            page = get(slab, NEXT_PAGE)
            add(slab, NEXT_PAGE, 1)
        store_u32(get(slab, PAGES_AT) + WORD * (bucket * get(slab, PAGES_WIDTH) + (row >> shift)), np.uint32(page))
    store_i64(about + BUCKET_ROWS, row + 1)
    put(slab, MOST_ROWS, max(get(slab, MOST_ROWS), row + 1))
    bits = np.int64(load_u32(about + BUCKET_BITS))
    _put(load_i64(about + BUCKET_SEGMENT), capacity_of(about), bits, hashed, row)
    return row_at(slab, bucket, row)


@part
def _erase(slab: Any, bucket: Any, place: Any) -> Any:
    """Take an entry out, and move those after it up, so that each can still be found."""
    about = bucket_at(slab, bucket)
    capacity = capacity_of(about)
    segment = load_i64(about + BUCKET_SEGMENT)
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
    page = load_u32(get(slab, PAGES_AT) + WORD * (bucket * get(slab, PAGES_WIDTH) + (rows >> get(slab, PAGE_SHIFT))))
    store_i64(get(slab, FREE_AT) + 8 * get(slab, N_FREE), np.int64(page))
    add(slab, N_FREE, 1)
    add(slab, UNUSED, 1)


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
        mark = mark_of(hash_of_row(source), np.int64(load_u32(about + BUCKET_BITS)))
        store_u32(load_i64(about + BUCKET_SEGMENT) + WORD * moved, np.uint32(mark | (row + 1)))
        copy(to, source, get(slab, ROW_BYTES))
    store_i64(about + BUCKET_ROWS, last)
    if last & ((1 << get(slab, PAGE_SHIFT)) - 1) == 0:
        free_last_page(slab, bucket, last)
