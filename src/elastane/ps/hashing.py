"""Where an id belongs: one hash for buckets and for the places in an index, equal on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastane.model.ps import SALT_FACTOR
from elastane.ps.addresses import load_u32, longs, words
from elastane.ps.compiled import kernel, part

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BLOCK = 256


def hash64_plain(key: int, salt: int) -> int:
    """What `hash64` answers, in plain Python."""
    mixed = ((key ^ salt) + _STEP) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * _FIRST) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * _SECOND) & _MASK
    return mixed ^ (mixed >> 31)


@part
def hash64(key: Any, salt: Any) -> Any:
    """64 well mixed bits of an id (int64 or uint64) and a table's salt (uint64)."""
    mixed = (np.uint64(key) ^ np.uint64(salt)) + np.uint64(_STEP)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return mixed ^ (mixed >> np.uint64(31))


@part
def salt_of(number: Any) -> Any:
    """The salt of the table with this number."""
    return np.uint64(number) * np.uint64(SALT_FACTOR)


@part
def bucket_of(hashed: Any, n_buckets: Any) -> Any:
    """The bucket of an id with this hash."""
    return np.int64(hashed % np.uint64(n_buckets))


@part
def fill_buckets_of(hashes: Any, count: Any, n_buckets: Any, buckets: Any) -> Any:
    """Write the bucket of each hash."""
    if n_buckets & (n_buckets - 1) == 0:  # To divide would cost more than the hash.
        mask = np.uint64(n_buckets - 1)
        for i in range(count):
            buckets[i] = hashes[i] & mask
    else:
        for i in range(count):
            buckets[i] = hashes[i] % np.uint64(n_buckets)


@kernel
def fill_buckets(tables_at: Any, counts_at: Any, groups: Any, ids_at: Any, n_buckets: Any, out_at: Any) -> Any:
    """Write the bucket (uint32) of each id. Tables' numbers and counts are uint32."""
    hashes = np.empty(_BLOCK, np.uint64)
    for group in range(groups):
        salt = salt_of(load_u32(tables_at + 4 * group))
        total = np.int64(load_u32(counts_at + 4 * group))
        for start in range(0, total, _BLOCK):
            count: Any = min(_BLOCK, total - start)
            ids = longs(ids_at, count)
            for i in range(count):
                hashes[i] = hash64(ids[i], salt)
            fill_buckets_of(hashes, count, n_buckets, words(out_at, count))
            ids_at += 8 * count
            out_at += 4 * count
