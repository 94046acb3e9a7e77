"""Slab: the memory of all rows that have one layout, reserved once, taken in pages, and given back in pages.

A row is a stretch of 4-byte words: its id (two words), its table's number, how often and in which step it was last
updated, its weights, its optimizer's slots. Pages hold a power of two of rows, and belong to one bucket each. The rows
of a bucket fill its pages without a gap: where one is removed, the last one takes its place.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from elastane.model.errors import ServerFull
from elastane.ps.addresses import WORD, address_of

ID, TABLE, FREQUENCY, LAST_STEP, WEIGHTS = 0, 8, 12, 16, 20
"""Where in a row each thing begins, in bytes."""

HEAD_WORDS = WEIGHTS // WORD

# What kernels know of a slab: one row of int64 numbers.
ROWS_AT, ROW_BYTES, PAGE_SHIFT, PAGE_BYTES, DIM = range(5)
BUCKETS_AT, PAGES_AT, PAGES_WIDTH, NEXT_PAGE, MOST_ROWS = range(5, 10)
FREE_AT, N_FREE, N_CLEAN = range(10, 13)
SIZES_AT, SEGMENTS_AT, NEXT_SEGMENT, FREE_SEGMENTS_AT, N_FREE_SEGMENTS_AT, INDEX_ENTRIES, N_BUCKETS, UNUSED = range(
    13, 21
)
SLAB_FIELDS = 21

# What they know of a bucket of it, in bytes: int64 numbers, of which one is two uint32.
BUCKET_ROWS, BUCKET_SEGMENT, BUCKET_CAPACITY, BUCKET_BITS, BUCKET_LOAD, BUCKET_SIZE = 0, 8, 16, 20, 24, 32
BUCKET_BYTES = 40

_MAP_NORESERVE = 0x4000  # Linux's; Python names it from 3.13 on.
_PAGE_BYTES = 256 << 10
_SYSTEM_PAGE = 4096
_HUGE_ROWS_FROM = 1 << 30
_HUGE_INDEX_FROM = 16 << 20
"""Up to here memory is taken by small pages of the system, so that a small table takes little."""
_INDEX_ENTRIES = 2**36
_LEAST_SEGMENT = _SYSTEM_PAGE // WORD


class Reserved:
    """A stretch of addresses. Memory comes with the first touch, and goes with `release`. Raises ServerFull."""

    def __init__(self, size: int) -> None:
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except OSError as error:
            raise ServerFull(f"cannot reserve {size >> 30} GiB of addresses for rows: {error}") from None
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = address_of(self.bytes)

    def release(self, start: int, length: int) -> None:
        self._map.madvise(mmap.MADV_DONTNEED, start, length)

    def use_huge_pages(self, start: int) -> None:
        if start < len(self.bytes):
            self._map.madvise(mmap.MADV_HUGEPAGE, start)


class Slab:
    """The rows of one layout on one server. Who calls holds the store's lock."""

    def __init__(self, dim: int, slot_floats: int, n_buckets: int, fields: npt.NDArray[np.int64]) -> None:
        self.dim = dim
        self.slot_floats = slot_floats
        self.n_buckets = n_buckets
        self.row_bytes = WORD * (HEAD_WORDS + dim + slot_floats)
        shift, self.page_bytes = _page(self.row_bytes)
        self.rows_a_page = 1 << shift
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._most_pages = (4 * memory) // self.page_bytes + n_buckets
        self._rows = Reserved(self._most_pages * self.page_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._rows.use_huge_pages(_HUGE_ROWS_FROM)
        self._sizes = _segment_sizes(n_buckets)
        self._index = Reserved(int(self._sizes.sum()) * n_buckets * WORD)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._index.use_huge_pages(_HUGE_INDEX_FROM)
        # A bucket has one segment, and one that is free is taken before a new one is made: so there are no more.
        self._free_segments: npt.NDArray[np.int64] = np.zeros((len(self._sizes), n_buckets), np.int64)
        self._n_free_segments: npt.NDArray[np.int64] = np.zeros((len(self._sizes), 2), np.int64)
        self.buckets: npt.NDArray[np.int64] = np.zeros((n_buckets, BUCKET_BYTES // 8), np.int64)
        self._pages: npt.NDArray[np.uint32] = np.zeros((n_buckets, 1), np.uint32)
        self._free: npt.NDArray[np.int64] = np.zeros(16, np.int64)
        self.fields = fields
        self.fields_at = address_of(fields)
        for field, value in {
            ROWS_AT: self._rows.address,
            ROW_BYTES: self.row_bytes,
            PAGE_SHIFT: shift,
            PAGE_BYTES: self.page_bytes,
            BUCKETS_AT: address_of(self.buckets),
            PAGES_AT: address_of(self._pages),
            PAGES_WIDTH: 1,
            FREE_AT: address_of(self._free),
            DIM: dim,
            SIZES_AT: address_of(self._sizes),
            SEGMENTS_AT: self._index.address,
            FREE_SEGMENTS_AT: address_of(self._free_segments),
            N_FREE_SEGMENTS_AT: address_of(self._n_free_segments),
            N_BUCKETS: n_buckets,
        }.items():
            fields[field] = value

    def make_room(self, rows: int) -> None:
        """See to it that so many rows can be made, whatever their buckets. Raises ServerFull."""
        fields = self.fields
        most = int(fields[MOST_ROWS]) + rows
        if most > int(self._sizes[-1]) // 2:
            raise ServerFull(
                f"a bucket would have {most} rows, which is too many; use more buckets than {self.n_buckets}"
            )
        new_pages = min(rows, self.n_buckets) + rows // self.rows_a_page
        if int(fields[NEXT_PAGE]) + new_pages > self._most_pages:
            raise ServerFull(f"{self._most_pages} pages of {self.page_bytes} bytes are all that was reserved")
        width = (most >> int(fields[PAGE_SHIFT])) + 1
        if width > self._pages.shape[1]:
            wider = np.zeros((self.n_buckets, width + width // 4), np.uint32)
            wider[:, : self._pages.shape[1]] = self._pages
            self._pages = wider
            fields[PAGES_AT], fields[PAGES_WIDTH] = address_of(wider), wider.shape[1]

    def make_room_for_free_pages(self) -> None:
        """See to it that every page may become free."""
        if len(self._free) < self.fields[NEXT_PAGE]:
            more = np.zeros(2 * int(self.fields[NEXT_PAGE]), np.int64)
            more[: len(self._free)] = self._free
            self._free = more
            self.fields[FREE_AT] = address_of(more)

    def release(self) -> None:
        """Give the memory of free pages, and of segments that the index has outgrown, back to the system."""
        fields = self.fields
        for page in self._free[int(fields[N_CLEAN]) : int(fields[N_FREE])].tolist():
            self._rows.release(page * self.page_bytes, self.page_bytes)
        fields[N_CLEAN] = fields[N_FREE]
        free, clean = self._n_free_segments.T
        for size in np.flatnonzero(free > clean).tolist():
            for segment in self._free_segments[size, clean[size] : free[size]].tolist():
                self._index.release(segment - self._index.address, int(self._sizes[size]) * WORD)
            clean[size] = free[size]
        fields[UNUSED] = 0

    def release_unused(self) -> None:
        """Give back what came out of use since this was last done."""
        if self.fields[UNUSED]:
            self.release()

    def rows_of(self, bucket: int) -> int:
        return int(self.buckets[bucket, BUCKET_ROWS // 8])

    def page(self, bucket: int, number: int) -> npt.NDArray[np.uint8]:
        """The rows of a bucket's page, as they lie there: shape (rows, bytes of a row). None lie beyond the last."""
        rows = min(self.rows_a_page, self.rows_of(bucket) - number * self.rows_a_page)
        if rows <= 0:
            return np.zeros((0, self.row_bytes), np.uint8)
        start = int(self._pages[bucket, number]) * self.page_bytes
        return self._rows.bytes[start : start + rows * self.row_bytes].reshape(rows, self.row_bytes)

    def page_count(self, bucket: int) -> int:
        return -(-self.rows_of(bucket) // self.rows_a_page)

    def index_bytes(self) -> int:
        return int(self.fields[INDEX_ENTRIES]) * WORD


def _page(row_bytes: int) -> tuple[int, int]:
    """How many rows a page holds (as a power of two) and its bytes, a multiple of the system's pages."""
    shift = 10  # So many rows of whole words are always a multiple.
    while shift > 0 and (row_bytes << shift) > _PAGE_BYTES:
        fewer = row_bytes << (shift - 1)
        if -fewer % _SYSTEM_PAGE > fewer // 100:
            break
        shift -= 1
    size = row_bytes << shift
    return shift, size + -size % _SYSTEM_PAGE


def _segment_sizes(n_buckets: int) -> npt.NDArray[np.int64]:
    """How many entries a segment of the index may have: whole pages of the system, each time some 2/5 more."""
    sizes = [_LEAST_SEGMENT]
    while sizes[-1] < min(2**31, _INDEX_ENTRIES // n_buckets // 4):
        more = -(-2 * sizes[-1] // (5 * _LEAST_SEGMENT))
        sizes.append(sizes[-1] + more * _LEAST_SEGMENT)
    return np.array(sizes, np.int64)
