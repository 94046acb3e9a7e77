"""Store: the rows of one server, by table and by bucket, with no sockets."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from elastane.model.errors import InvalidInput, MalformedMessage, ServerFull, TableMismatch, TableUnknown
from elastane.model.ps import MAX_BUCKETS, MAX_STEP, OptimizerKind, OptimizerSpec, TableMemory, TableSpec
from elastane.ps import bucket_kernels, initial, kernels, optimizers
from elastane.ps.addresses import WORD, address_of
from elastane.ps.hashing import fill_buckets
from elastane.ps.pages import TablesPage, pack_rows, pack_tables, rows_head, unpack
from elastane.ps.slab import BUCKET_LOAD, HEAD_WORDS, SLAB_FIELDS, Slab

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.uint32]

_COUNTER_BYTES = WORD * HEAD_WORDS
_COUNTERS_A_PAGE = (1 << 20) // _COUNTER_BYTES
_MOST_SLABS = 256


class Store:
    """The rows of one server.

    `lock` guards all of it. Methods take it themselves; those whose name ends in `_locked` are for who holds it. The
    keys of a request are the numbers of its tables, how many ids there are of each, and the ids, table after table.
    """

    def __init__(self, n_buckets: int, memory_limit: int | None = None) -> None:
        if not 1 <= n_buckets <= MAX_BUCKETS:
            raise InvalidInput(f"buckets: {n_buckets} is not from 1 to {MAX_BUCKETS}")
        self.lock = threading.Lock()
        self.n_buckets = n_buckets
        self.memory_limit = memory_limit
        self._specs: dict[int, TableSpec] = {}
        self._places: dict[int, int] = {}
        self._admits = False
        self._dims: list[int] = []
        self._slab_places: list[int] = []
        self._least_rates: list[float] = []
        self._fields: npt.NDArray[np.int64] = np.zeros((0, kernels.TABLE_FIELDS), np.int64)
        self._scales: npt.NDArray[np.float64] = np.zeros(0, np.float64)
        self._settings: npt.NDArray[np.float64] = np.zeros((0, optimizers.SETTINGS), np.float64)
        self._sorted: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] = (self._of([]), self._of([]))
        self._slab_fields: npt.NDArray[np.int64] = np.zeros((_MOST_SLABS, SLAB_FIELDS), np.int64)
        self._slabs_at = address_of(self._slab_fields)
        self._slabs: list[Slab] = []
        self._layouts: dict[tuple[int, int], int] = {}
        self._slab_of(0, 0)  # kernels.COUNTERS

    @staticmethod
    def _of(numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.array(numbers, np.int64)

    # --- tables ---

    def define(self, spec: TableSpec) -> int:
        """Make a table, or find that it is there; the answer is its number. Raises TableMismatch."""
        with self.lock:
            return self.define_locked(spec)

    def define_locked(self, spec: TableSpec) -> int:
        number = spec.number
        known = self._specs.get(number)
        if known is not None:
            if known.name != spec.name:
                raise TableMismatch(f'tables "{known.name}" and "{spec.name}" have the same hash; rename one of them')
            if differences := known.differences(spec):
                raise TableMismatch(f'table "{spec.name}" is there with {"; ".join(differences)}')
            return number
        slab = self._slab_of(spec.dim, spec.optimizer.slot_floats(spec.dim))
        fields = np.zeros(kernels.TABLE_FIELDS, np.int64)
        stream = initial.stream_of(spec.initializer, spec.salt)
        for field, value in {
            kernels.SLAB: slab,
            kernels.NUMBER: number,
            kernels.INITIAL: initial.NUMBERS[spec.initializer.kind],
            kernels.STREAM: stream - (2**64 if stream >= 2**63 else 0),
            kernels.ADMIT_AFTER: spec.admit_after,
            kernels.OPTIMIZER: optimizers.NUMBERS[spec.optimizer.kind],
            kernels.EVICT_AFTER: -1 if spec.evict_after is None else spec.evict_after,
        }.items():
            fields[field] = value
        self._fields = np.vstack([self._fields, fields])
        self._scales = np.append(self._scales, spec.initializer.scale)
        self._settings = np.vstack([self._settings, optimizers.settings_of(spec.optimizer)])
        self._admits = self._admits or spec.admit_after > 0
        self._dims.append(spec.dim)
        self._slab_places.append(slab)
        self._least_rates.append(1e-38 if spec.optimizer.kind is OptimizerKind.FTRL else 0.0)
        self._places[number] = len(self._specs)
        self._specs[number] = spec
        numbers = sorted(self._places)
        self._sorted = (self._of(numbers), self._of([self._places[one] for one in numbers]))
        return number

    def tables(self) -> list[TableSpec]:
        """All tables, in the order in which they came."""
        with self.lock:
            return list(self._specs.values())

    def _slab_of(self, dim: int, slot_floats: int) -> int:
        place = self._layouts.get((dim, slot_floats))
        if place is None:
            place = len(self._slabs)
            if place == _MOST_SLABS:
                raise ServerFull(f"tables of more than {_MOST_SLABS} dimensions and optimizers on one server")
            self._slabs.append(Slab(dim, slot_floats, self.n_buckets, self._slab_fields[place]))
            self._layouts[dim, slot_floats] = place
        return place

    # --- rows ---

    def pull(self, tables: Numbers, counts: Numbers, ids: Ids, out: Floats | Sequence[Floats]) -> None:
        """Write the weights of ids into `out`: an array a table, or one for all. A missing row has its initial value.

        Raises TableUnknown, and InvalidInput if sizes do not fit.
        """
        with self.lock:
            self.pull_locked(tables, counts, ids, out)

    def pull_locked(self, tables: Numbers, counts: Numbers, ids: Ids, out: Floats | Sequence[Floats]) -> None:
        places, lengths = self._groups(tables, counts, ids)
        if not places:
            return
        outs = self._arrays(places, lengths, out)
        if not all(one.flags.writeable for one in ([out] if isinstance(out, np.ndarray) else out)):
            raise InvalidInput("out: an array that cannot be written to")
        kernels.pull(
            self._slabs_at,
            address_of(self._fields),
            address_of(self._scales),
            self.n_buckets,
            self._of(places),
            self._of(lengths),
            address_of(ids),
            outs,
        )

    def push(
        self,
        tables: Numbers,
        counts: Numbers,
        ids: Ids,
        grads: Floats | Sequence[Floats],
        lrs: Floats,
        step: int,
    ) -> None:
        """Apply gradients, an array a table or one for all, each table's with its learning rate. Rows are made.

        Raises TableUnknown, ServerFull, and InvalidInput if sizes do not fit: then nothing is changed.
        """
        with self.lock:
            self.push_locked(tables, counts, ids, grads, lrs, step)

    def push_locked(
        self, tables: Numbers, counts: Numbers, ids: Ids, grads: Floats | Sequence[Floats], lrs: Floats, step: int
    ) -> None:
        places, lengths = self._groups(tables, counts, ids)
        if not places:
            return
        gradients = self._arrays(places, lengths, grads)
        rates = np.ascontiguousarray(lrs, np.float32)
        self._check_rates(tables, places, rates)
        self._check_step(step)
        self._make_room(places, lengths, ids)
        kernels.push(
            self._slabs_at,
            address_of(self._fields),
            address_of(self._scales),
            address_of(self._settings),
            self.n_buckets,
            self._of(places),
            self._of(lengths),
            address_of(ids),
            gradients,
            address_of(rates),
            step,
        )
        self._release_unused()

    def assign(self, table: int, ids: Ids, values: Floats, *, only_new: bool = True, step: int = 0) -> None:
        """Set the weights of ids; with `only_new` of those that have no row yet. Slots of rows that are there stay.

        Raises TableUnknown, ServerFull, InvalidInput.
        """
        with self.lock:
            self.assign_locked(table, ids, values, only_new=only_new, step=step)

    def assign_locked(self, table: int, ids: Ids, values: Floats, *, only_new: bool = True, step: int = 0) -> None:
        keys = (np.array([table], np.uint32), np.array([len(ids)], np.uint32))
        places, lengths = self._groups(*keys, ids)
        if not places:
            return
        self._check_step(step)
        at = self._arrays(places, lengths, [values])[0]
        self._make_room(places, lengths, ids)
        place = places[0]
        kernels.assign(
            self._slabs_at,
            address_of(self._fields[place]),
            self._scales[place],
            address_of(self._settings[place]),
            self.n_buckets,
            address_of(ids),
            len(ids),
            at,
            step,
            only_new,
        )
        self._release_unused()

    def buckets_of(self, tables: Numbers, counts: Numbers, ids: Ids) -> Numbers:
        """The bucket of each id. It needs no table to be defined. Raises InvalidInput if sizes do not fit."""
        tables = np.ascontiguousarray(tables, np.uint32)
        counts = np.ascontiguousarray(counts, np.uint32)
        self._check_ids(ids, int(counts.sum()))
        if len(tables) != len(counts):
            raise InvalidInput(f"{len(tables)} tables with {len(counts)} counts")
        out = np.empty(len(ids), np.uint32)
        fill_buckets(
            address_of(tables), address_of(counts), len(tables), address_of(ids), self.n_buckets, address_of(out)
        )
        return out

    def _groups(self, tables: Numbers, counts: Numbers, ids: Ids) -> tuple[list[int], list[int]]:
        """Where the tables of a request are, and how many ids it has of each."""
        numbers, lengths = tables.tolist(), counts.tolist()
        try:
            places = [self._places[number] for number in numbers]
        except KeyError as error:
            raise TableUnknown(f"no table of number {error} is defined here") from None
        if len(places) != len(lengths):
            raise InvalidInput(f"{len(places)} tables with {len(lengths)} counts")
        self._check_ids(ids, sum(lengths))
        return places, lengths

    @staticmethod
    def _check_ids(ids: Ids, count: int) -> None:
        if ids.dtype != np.int64 or ids.ndim != 1 or not ids.flags.c_contiguous or len(ids) != count:
            raise InvalidInput(f"ids are {ids.dtype} of shape {ids.shape}; {count} in one piece of int64 are needed")

    def _arrays(
        self, places: list[int], lengths: list[int], arrays: Floats | Sequence[Floats]
    ) -> npt.NDArray[np.int64]:
        """The addresses of arrays with a row for each id; one for all if they lie in one piece."""
        sizes = [length * self._dims[place] for place, length in zip(places, lengths, strict=True)]
        if isinstance(arrays, np.ndarray):
            arrays, sizes = [arrays], [sum(sizes)]
        elif len(arrays) != len(sizes):
            raise InvalidInput(f"{len(arrays)} arrays for {len(sizes)} tables")
        for array, size in zip(arrays, sizes, strict=True):
            if array.dtype != np.float32 or not array.flags.c_contiguous or array.size != size:
                raise InvalidInput(
                    f"an array is {array.dtype} of {array.size}; {size} in one piece of float32 are needed"
                )
        return self._of([address_of(array) for array in arrays])

    def _check_rates(self, tables: Numbers, places: list[int], rates: Floats) -> None:
        if rates.shape != tables.shape:
            raise InvalidInput(f"{len(rates)} learning rates for {len(tables)} tables")
        for place, rate in zip(places, rates.tolist(), strict=True):
            if not self._least_rates[place] <= rate < math.inf:
                name, least = list(self._specs.values())[place].name, self._least_rates[place]
                raise InvalidInput(f'lrs: {rate} of table "{name}" is not a number {"above" if least else "from"} 0')

    @staticmethod
    def _check_step(step: int) -> None:
        if not 0 <= step <= MAX_STEP:
            raise InvalidInput(f"step: {step} is not from 0 to {MAX_STEP}")

    def _make_room(self, places: list[int], lengths: list[int], ids: Ids) -> None:
        self._check_limit(places, lengths, ids)
        wanted: dict[int, int] = {}
        for place, length in zip(places, lengths, strict=True):
            slab = self._slab_places[place]
            wanted[slab] = wanted.get(slab, 0) + length
        if self._admits:
            self._slabs[kernels.COUNTERS].make_room(sum(lengths))
            self._slabs[kernels.COUNTERS].make_room_for_free_pages()
        for slab, rows in wanted.items():
            self._slabs[slab].make_room(rows)

    def _release_unused(self) -> None:
        for slab in self._slabs:
            slab.release_unused()

    def _check_limit(self, places: list[int], lengths: list[int], ids: Ids) -> None:
        if self.memory_limit is None:
            return
        used = self._used()
        if used + sum(lengths) * max(slab.row_bytes + 2 * WORD for slab in self._slabs) <= self.memory_limit:
            return
        more = kernels.count_missing(
            self._slabs_at,
            address_of(self._fields),
            self.n_buckets,
            self._of(places),
            self._of(lengths),
            address_of(ids),
        )
        if more and used + more > self.memory_limit:
            raise ServerFull(f"{used} bytes of rows and {more} new ones are above the limit of {self.memory_limit}")

    # --- buckets ---

    def pages(self, bucket: int) -> Iterator[bytes | bytearray]:
        """All of a bucket, page by page; each is taken in a short hold of the lock, with the store as it is then.

        First come the tables, then what counts for admission, in one hold, then rows, the last ones first: so none is
        missed when a removed row's place is taken by the last one. Who applies to a copy all that is pushed, assigned
        and evicted here after this has begun, in this order, has what is here. No page is above pages.MOST_BYTES.
        """
        self._check_bucket(bucket)
        yield from pack_tables(self.tables())
        with self.lock:
            counters = list(self._counters_locked(bucket))
            slabs = [(slab, slab.page_count(bucket)) for slab in self._slabs[1:]]
        yield from counters
        for slab, count in slabs:
            for number in range(count - 1, -1, -1):
                with self.lock:
                    page = self._page_locked(slab, bucket, number)
                if page is not None:
                    yield page

    def snapshot_locked(self, bucket: int) -> Iterator[tuple[bytes | bytearray | memoryview, ...]]:
        """The pages of a bucket, without its tables, each in parts, for who holds the lock and copies them."""
        self._check_bucket(bucket)
        for page in self._counters_locked(bucket):
            yield (page,)
        for slab in self._slabs[1:]:
            for number in range(slab.page_count(bucket)):
                rows = slab.page(bucket, number)
                yield rows_head(bucket, self.n_buckets, slab.dim, slab.slot_floats, len(rows)), rows.reshape(-1).data

    def _page_locked(self, slab: Slab, bucket: int, number: int) -> bytearray | None:
        rows = slab.page(bucket, number)
        return pack_rows(bucket, self.n_buckets, slab.dim, slab.slot_floats, rows) if len(rows) else None

    def _counters_locked(self, bucket: int) -> Iterator[bytes | bytearray]:
        slab = self._slabs[kernels.COUNTERS]
        parts = [slab.page(bucket, number) for number in range(slab.page_count(bucket))]
        rows = np.concatenate(parts) if parts else np.zeros((0, slab.row_bytes), np.uint8)
        for start in range(0, len(rows), _COUNTERS_A_PAGE):
            yield pack_rows(bucket, self.n_buckets, 0, 0, rows[start : start + _COUNTERS_A_PAGE])

    def install(self, bucket: int, page: bytes | bytearray | memoryview) -> None:
        """Put what a page holds into a bucket; rows that are there are overwritten, tables defined.

        Raises MalformedMessage, TableMismatch, ServerFull: then nothing is changed.
        """
        with self.lock:
            self.install_locked(bucket, page)

    def install_locked(self, bucket: int, page: bytes | bytearray | memoryview) -> None:
        self._check_bucket(bucket)
        content = unpack(page)
        if isinstance(content, TablesPage):
            for spec in content.tables:
                self.define_locked(spec)
            return
        if (content.bucket, content.n_buckets) != (bucket, self.n_buckets):
            raise MalformedMessage(
                f"a page of bucket {content.bucket} of {content.n_buckets} for bucket {bucket} of {self.n_buckets}"
            )
        place = self._layouts.get((content.dim, content.slot_floats))
        if place is None:
            raise MalformedMessage(
                f"a page of rows of {content.dim} + {content.slot_floats} numbers, as no table has here"
            )
        slab, rows = self._slabs[place], content.rows
        at, count = address_of(rows), len(rows)
        wrong = bucket_kernels.first_wrong(
            place, slab.row_bytes, self._fields, *self._sorted, bucket, self.n_buckets, at, count
        )
        if wrong >= 0:
            raise MalformedMessage(
                f"row {wrong} of a page of bucket {bucket} is of another bucket, or of no table here"
            )
        if self.memory_limit is not None and self._used() + rows.size > self.memory_limit:
            raise ServerFull(f"{self._used()} bytes of rows and {rows.size} more are above {self.memory_limit}")
        slab.make_room(count)
        self._slabs[kernels.COUNTERS].make_room_for_free_pages()
        bucket_kernels.install(self._slabs_at, place, self._fields, *self._sorted, bucket, at, count)
        self._release_unused()

    def drop(self, bucket: int) -> None:
        """Forget a bucket; its memory goes back to the system."""
        with self.lock:
            self.drop_locked(bucket)

    def drop_locked(self, bucket: int) -> None:
        self._check_bucket(bucket)
        for place, slab in enumerate(self._slabs):
            if slab.rows_of(bucket):
                slab.make_room_for_free_pages()
                bucket_kernels.drop(self._slabs_at, place, self._fields, *self._sorted, bucket)
                slab.release()

    def evict(self, bucket: int, step: int) -> int:
        """Forget rows, and counts, that were not updated for more steps than their tables keep them; how many."""
        with self.lock:
            return self.evict_locked(bucket, step)

    def evict_locked(self, bucket: int, step: int) -> int:
        self._check_bucket(bucket)
        self._check_step(step)
        evicted = 0
        for place, slab in enumerate(self._slabs):
            if slab.rows_of(bucket):
                slab.make_room_for_free_pages()
                evicted += bucket_kernels.evict(self._slabs_at, place, self._fields, *self._sorted, bucket, step)
                slab.release()
        return evicted

    def digest(self, bucket: int) -> int:
        """A checksum of 64 bits over all rows of a bucket, whatever their order: equal on replicas."""
        with self.lock:
            self._check_bucket(bucket)
            return sum(int(bucket_kernels.digest(slab.fields_at, bucket)) for slab in self._slabs) & (2**64 - 1)

    def loads(self) -> npt.NDArray[np.int64]:
        """How many rows of each bucket were pulled and pushed since this was last asked."""
        with self.lock:
            total = np.zeros(self.n_buckets, np.int64)
            for slab in self._slabs:
                total += slab.buckets[:, BUCKET_LOAD // 8]
                slab.buckets[:, BUCKET_LOAD // 8] = 0
            return total

    def rows_of(self, bucket: int) -> int:
        """How many rows a bucket has."""
        self._check_bucket(bucket)
        with self.lock:
            return sum(slab.rows_of(bucket) for slab in self._slabs[1:])

    def memory(self) -> dict[str, TableMemory]:
        """What each table takes. The index of a layout is shared out by the rows of its tables."""
        with self.lock:
            fields = self._fields
            shares = [slab.index_bytes() / max(1, int(slab.buckets[:, 0].sum())) for slab in self._slabs]
            found = {}
            for number, spec in self._specs.items():
                slab, rows, counted = (
                    int(fields[self._places[number], i]) for i in (kernels.SLAB, kernels.ROWS, kernels.COUNTED)
                )
                size = rows * (self._slabs[slab].row_bytes + shares[slab])
                size += counted * (_COUNTER_BYTES + shares[kernels.COUNTERS])
                found[spec.name] = TableMemory(rows, round(size), counted)
            return found

    def _used(self) -> int:
        return sum(int(slab.buckets[:, 0].sum()) * slab.row_bytes + slab.index_bytes() for slab in self._slabs)

    def _check_bucket(self, bucket: int) -> None:
        if not 0 <= bucket < self.n_buckets:
            raise InvalidInput(f"bucket: {bucket} is not from 0 to {self.n_buckets - 1}")


def warm_up() -> None:
    """Compile all kernels, or load them from the cache, so that the first request does not wait for it."""
    store, copy = Store(1), Store(1, memory_limit=1)
    optimizer = OptimizerSpec(OptimizerKind.SGD, lr=1.0)
    table = store.define(TableSpec("warm-up", 1, optimizer, evict_after=1))
    keys = np.array([table], np.uint32), np.array([1], np.uint32), np.zeros(1, np.int64)
    values = np.zeros((1, 1), np.float32)
    store.buckets_of(*keys)
    store.assign(table, keys[2], values)
    store.push(*keys, values, np.zeros(1, np.float32), 0)
    store.pull(*keys, values)
    with contextlib.suppress(ServerFull):
        for page in store.pages(0):
            copy.install(0, page)
    with contextlib.suppress(ServerFull):
        copy.push(*keys, values, np.zeros(1, np.float32), 0)
    for page in store.pages(0):
        store.install(0, page)
    store.digest(0)
    store.evict(0, 0)
    store.drop(0)
