"""The store of a parameter server: rows by the ten thousand, moves, memory, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from elastane.model.errors import InvalidInput, MalformedMessage, ServerFull, TableMismatch, TableUnknown
from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import kernels
from elastane.ps.hashing import hash64_plain
from elastane.ps.pages import MOST_BYTES
from elastane.ps.store import Store
from tests.store_rows import keys, pull, push, rows_in

ZEROS = Initializer(InitializerKind.ZEROS)
SGD = OptimizerSpec(OptimizerKind.SGD, 1.0)


def counting(name: str = "count", dim: int = 3, **more: int) -> TableSpec:
    """A table whose rows count what is pushed as -1."""
    return TableSpec(name, dim, SGD, ZEROS, **more)


def made(n_buckets: int, *tables: TableSpec) -> Store:
    store = Store(n_buckets)
    for table in tables:
        store.define(table)
    return store


def test_rows_by_the_ten_thousand_come_go_and_count_what_was_pushed() -> None:
    rng = np.random.default_rng(0)
    table = counting(evict_after=3)
    store = made(3, table)
    universe = rng.integers(-(2**63), 2**63 - 1, 30_000)
    counts, last = np.zeros(len(universe)), np.full(len(universe), -1)
    for step in range(12):
        chosen = rng.choice(len(universe), 8_000, replace=False)
        push(store, table, universe[chosen].tolist(), np.full((8_000, 3), -1, np.float32), lr=1.0, step=step)
        counts[chosen] += 1
        last[chosen] = step
        if step % 4 == 3:
            old = (last >= 0) & (step - last > 3)
            assert sum(store.evict(bucket, step) for bucket in range(3)) == old.sum()
            counts[old], last[old] = 0, -1
        np.testing.assert_array_equal(pull(store, table, universe.tolist())[:, 2], counts)
        assert store.memory()["count"].rows == (last >= 0).sum()
    rows, _ = rows_in(store)
    assert {key for _, key in rows} == set(universe[last >= 0].tolist())


def test_buckets_are_those_of_the_plain_hash() -> None:
    table, other = counting(), counting("other")
    store = made(1000, table, other)
    ids = [0, 1, -1, 2**63 - 1, -(2**63), 77]
    found = store.buckets_of(*keys({table: ids, other: ids}))
    plain = [hash64_plain(key, spec.salt) % 1000 for spec in (table, other) for key in ids]
    assert found.tolist() == plain


def test_a_request_has_rows_of_many_tables_in_one_array_or_in_many() -> None:
    tables = [counting("a", 1), counting("b", 5), TableSpec("c", 4, OptimizerSpec(OptimizerKind.ADAM, 0.1), ZEROS)]
    store = made(7, *tables)
    request = keys({tables[0]: [1, 2], tables[1]: [1], tables[2]: [1, 5, 9]})
    gradients = np.arange(2 + 5 + 12, dtype=np.float32)
    store.push(*request, gradients, np.ones(3, np.float32), 4)
    outs = [np.empty((2, 1), np.float32), np.empty((1, 5), np.float32), np.empty((3, 4), np.float32)]
    store.pull(*request, outs)
    flat = np.empty(19, np.float32)
    store.pull(*request, flat)
    np.testing.assert_array_equal(flat, np.concatenate([out.reshape(-1) for out in outs]))
    np.testing.assert_array_equal(outs[0][:, 0], -gradients[:2])
    np.testing.assert_array_equal(outs[1][0], -gradients[2:7])
    np.testing.assert_allclose(outs[2], -np.ones((3, 4)), rtol=1e-5)


def test_what_came_as_bytes_that_cannot_be_changed_is_pushed_without_compiling_again() -> None:
    table = counting()
    store = made(7, table)
    push(store, table, [1], np.ones((1, 3), np.float32))
    compiled = len(kernels.push.signatures)  # type: ignore[attr-defined]
    numbers, counts, ids = keys({table: [1, 2]})
    for array in (numbers, counts, ids):
        array.flags.writeable = False
    values = np.frombuffer(np.full((2, 3), -1, np.float32).tobytes(), np.float32)
    store.push(numbers, counts, ids, values, np.frombuffer(np.ones(1, np.float32).tobytes(), np.float32), 1)
    np.testing.assert_allclose(pull(store, table, [1, 2]), [[0.9] * 3, [1.0] * 3])
    assert len(kernels.push.signatures) == compiled  # type: ignore[attr-defined]


def test_a_pull_makes_no_row_and_a_push_does() -> None:
    table = counting()
    store = made(4, table)
    pull(store, table, range(100))
    assert store.memory()["count"].rows == 0
    push(store, table, range(100), np.zeros((100, 3), np.float32))
    assert store.memory()["count"].rows == 100
    assert store.loads().sum() == 200
    assert store.loads().sum() == 0


def test_the_first_assignment_wins_unless_told_otherwise() -> None:
    table = counting()
    store = made(4, table)
    one, two = np.full((1, 3), 1, np.float32), np.full((1, 3), 2, np.float32)
    store.assign(table.number, np.array([5]), one)
    store.assign(table.number, np.array([5]), two)
    np.testing.assert_array_equal(pull(store, table, [5]), one)
    store.assign(table.number, np.array([5]), two, only_new=False)
    np.testing.assert_array_equal(pull(store, table, [5]), two)


def test_a_row_is_made_only_after_so_many_pushes_of_its_id() -> None:
    table = counting(admit_after=2)
    store = made(4, table)
    for times, value in [(1, 0), (2, 0), (3, 1), (4, 2)]:
        push(store, table, [7], np.full((1, 3), -1, np.float32), lr=1.0, step=times)
        np.testing.assert_array_equal(pull(store, table, [7])[0], [value] * 3)
        memory = store.memory()["count"]
        assert (memory.rows, memory.counted) == ((0, 1) if times < 3 else (1, 0))


def test_a_copy_that_gets_all_changes_while_it_is_made_equals_its_source() -> None:
    rng = np.random.default_rng(5)
    tables = [
        counting("a", evict_after=4),
        counting("b", 40, admit_after=1, evict_after=6),
        TableSpec("c", 2, OptimizerSpec(OptimizerKind.ADAGRAD, 0.1), admit_after=2),
    ]
    source, copy = made(2, *tables), Store(2)
    changes = 0

    def change(stores: list[Store], step: int) -> None:
        for table in tables:
            ids = rng.choice(6000, 700, replace=False)
            request = keys({table: ids.tolist()})
            mine = source.buckets_of(*request) == 1
            gradients = rng.standard_normal((700, table.dim)).astype(np.float32)
            for store in stores:
                push(store, table, ids[mine].tolist(), np.ascontiguousarray(gradients[mine]), step=step)
        if step % 3 == 0:
            for store in stores:
                store.evict(1, step)

    for step in range(12):
        change([source], step)
    for step, page in enumerate(source.pages(1), 12):
        assert len(page) <= MOST_BYTES
        copy.install(1, page)
        change([source, copy], step)
        changes += 1
    assert changes > 6
    assert copy.digest(1) == source.digest(1)
    ours, theirs = rows_in(source, [1]), rows_in(copy, [1])
    for mine, other in zip(ours, theirs, strict=True):
        assert {key: row.content for key, row in mine.items()} == {key: row.content for key, row in other.items()}
    assert copy.memory()["b"].counted == len([key for key in ours[1] if key[0] == "b"])


def test_digests_tell_any_difference() -> None:
    table = counting()
    stores = [made(1, table) for _ in range(3)]
    for i, store in enumerate(stores):
        order = range(50) if i else range(49, -1, -1)
        push(store, table, list(order), np.ones((50, 3), np.float32), step=1)
    assert stores[0].digest(0) == stores[1].digest(0) == stores[2].digest(0)
    push(stores[1], table, [3], np.zeros((1, 3), np.float32), step=1)
    push(stores[2], table, [3], np.zeros((1, 3), np.float32), step=2)
    assert len({store.digest(0) for store in stores}) == 3


def test_a_dropped_bucket_gives_its_memory_back_and_may_come_again() -> None:
    table = counting(dim=200)
    store = made(2, table)
    ids = list(range(20_000))
    push(store, table, ids, np.ones((20_000, 200), np.float32))
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1])
    pages = list(store.pages(0))
    kept = store.digest(0)
    store.drop(0)
    with open("/proc/self/statm") as file:
        after = int(file.read().split()[1])
    assert store.digest(0) == 0
    assert store.memory()["count"].rows == store.rows_of(1)
    for page in pages:
        store.install(0, page)
    assert store.digest(0) == kept
    # The pages were copied, and the bucket let go, so about as much is in use as before.
    assert after - before < 0.2 * sum(len(page) for page in pages) / 4096


def test_a_server_refuses_rows_above_its_memory_and_changes_nothing() -> None:
    table = counting(dim=30)
    store = Store(2, memory_limit=100_000)
    store.define(table)
    push(store, table, range(200), np.ones((200, 30), np.float32))
    before = store.digest(0), store.digest(1)
    with pytest.raises(ServerFull, match="above the limit of 100000"):
        push(store, table, range(100, 1200), np.ones((1100, 30), np.float32))
    assert (store.digest(0), store.digest(1)) == before
    push(store, table, range(200), np.ones((200, 30), np.float32))
    assert store.memory()["count"].rows == 200


def test_another_table_of_the_same_name_is_refused() -> None:
    store = made(2, counting())
    assert store.define(counting()) == counting().number
    with pytest.raises(TableMismatch, match='table "count" is there with dim 3, not 4'):
        store.define(counting(dim=4))
    store.define(
        TableSpec("count", 3, OptimizerSpec(OptimizerKind.SGD, 0.01), ZEROS)
    )  # Another rate is no other table.
    assert store.tables() == [counting()]


def test_requests_that_do_not_fit_are_refused() -> None:
    table = counting()
    store = made(2, table)
    ones, rates = np.ones((2, 3), np.float32), np.ones(1, np.float32)
    numbers, counts, ids = keys({table: [1, 2]})
    with pytest.raises(TableUnknown):
        store.pull(numbers + np.uint32(1), counts, ids, [ones])
    with pytest.raises(InvalidInput, match="3 in one piece of int64"):
        store.push(numbers, counts + np.uint32(1), ids, [ones], rates, 0)
    with pytest.raises(InvalidInput, match="9 in one piece of float32"):
        store.push(numbers, counts + np.uint32(1), np.arange(3), [ones], rates, 0)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        store.pull(numbers, counts, ids, np.frombuffer(bytes(24), np.float32))
    with pytest.raises(InvalidInput, match="step: -1"):
        store.push(numbers, counts, ids, [ones], rates, -1)
    with pytest.raises(InvalidInput, match="not a number from 0"):
        store.push(numbers, counts, ids, [ones], rates * np.float32("nan"), 0)
    with pytest.raises(InvalidInput, match="bucket: 2 is not from 0 to 1"):
        store.drop(2)
    assert store.memory()["count"].rows == 0


def test_pages_that_are_none_are_refused_and_change_nothing() -> None:
    table = counting()
    source, store = made(2, table), made(2, table)
    push(source, table, range(10), np.ones((10, 3), np.float32))
    *_, page = source.pages(0)
    wrong_bucket = bytearray(page)
    wrong_bucket[8] = 1
    other_id = bytearray(page)
    other_id[28] ^= 1
    other_table = bytearray(page)
    other_table[36] ^= 1
    for bucket, bad in [
        (0, b""),
        (0, page[:20]),
        (0, page[:-1]),
        (0, bytes(page) + b"x"),
        (0, b"nono" + bytes(page[4:])),
        (1, page),
        (1, wrong_bucket),
        (0, other_table),
    ]:
        with pytest.raises(MalformedMessage):
            store.install(bucket, bad)
    with pytest.raises(MalformedMessage, match="as no table has here"):
        Store(2).install(0, page)
    if store.buckets_of(*keys({table: [int.from_bytes(other_id[28:36], "little")]}))[0] != 0:
        with pytest.raises(MalformedMessage, match="row 0 of a page"):
            store.install(0, other_id)
    assert store.memory()["count"].rows == 0
