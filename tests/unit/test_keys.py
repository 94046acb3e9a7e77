"""The kernels over keys, against the same in plain numpy."""

from __future__ import annotations

import numpy as np

from elastane.model.ps import SALT_FACTOR
from elastane.ps import keys
from elastane.ps.addresses import address_of
from elastane.ps.frames import Keys, Push
from elastane.ps.hashing import hash64_plain


def test_unique_ids_keep_the_order_of_their_first_appearance() -> None:
    ids = np.array([7, -3, 7, 0, -3, 2**62, 7], np.int64)
    found, inverse = keys.unique(ids)
    assert found.tolist() == [7, -3, 0, 2**62]
    assert found[inverse].tolist() == ids.tolist()
    assert keys.unique(np.zeros(0, np.int64))[0].tolist() == []


def test_unique_ids_are_those_of_numpy() -> None:
    ids = np.random.default_rng(1).zipf(1.3, 20_000).astype(np.int64)
    found, inverse = keys.unique(ids)
    assert sorted(found.tolist()) == np.unique(ids).tolist()
    assert np.array_equal(found[inverse], ids)


def test_gradients_of_one_id_are_added() -> None:
    random = np.random.default_rng(2)
    ids = random.integers(0, 50, 500)
    grads = random.standard_normal((500, 3)).astype(np.float32)
    found, inverse = keys.unique(ids)
    expected = np.zeros((len(found), 3), np.float32)
    np.add.at(expected, inverse, grads)
    assert np.array_equal(keys.combine(inverse, grads, len(found)), expected)


def test_a_read_only_array_is_as_good() -> None:
    ids = np.arange(5)
    ids.flags.writeable = False
    assert keys.unique(ids)[0].tolist() == [0, 1, 2, 3, 4]


def test_rows_go_to_their_owners_and_come_back_to_their_places() -> None:
    random = np.random.default_rng(3)
    tables = [random.integers(-(2**60), 2**60, n) for n in (100, 0, 57)]
    dims = np.array([4, 2, 3], np.int64)
    numbers = [11, 22, 2**32 - 5]
    salts = [number * SALT_FACTOR % 2**64 for number in numbers]
    values = [random.standard_normal((len(ids), dim)).astype(np.float32) for ids, dim in zip(tables, dims, strict=True)]
    ids = np.concatenate(tables)
    starts = np.array([0, 100, 100, 157], np.int64)
    owner = random.integers(-1, 3, 64)
    way = keys.route(ids, None, starts, np.array(numbers, np.uint32), owner, 3)
    expected = [
        int(owner[hash64_plain(int(key), salt) % 64]) for one, salt in zip(tables, salts, strict=True) for key in one
    ]
    addresses = np.array([address_of(value) for value in values], np.int64)
    back = [np.zeros_like(value) for value in values]
    back_at = np.array([address_of(value) for value in back], np.int64)
    for server in range(3):
        order = way.order[way.starts[server] : way.starts[server + 1]]
        assert sorted(order.tolist()) == [place for place, at in enumerate(expected) if at == server]
        counts = way.counts[server]
        wire = np.empty(int((counts * dims).sum()), np.float32)
        keys.gather(order, counts, starts, addresses, dims, wire)
        keys.scatter(order, counts, starts, back_at, dims, wire)
    there = np.array(expected) >= 0
    for table, (value, other) in enumerate(zip(values, back, strict=True)):
        mask = there[starts[table] : starts[table + 1]]
        assert np.array_equal(other[mask], value[mask])
        assert not other[~mask].any()


def test_a_push_is_refused_repeated_or_taken_by_bucket() -> None:
    wanted = Keys(np.array([9, 8], np.uint32), np.array([40, 2], np.uint32), np.arange(42))
    buckets = [hash64_plain(key, number * SALT_FACTOR % 2**64) % 3 for key, number in enumerate([9] * 40 + [8] * 2)]
    said = {0: keys.TAKEN, 1: keys.REPEATED, 2: keys.REFUSED}
    applied = np.array([4, 5, 0], np.int64)
    serving = np.array([1, 1, 0], np.uint8)
    judged = keys.judge(wanted, serving, applied, 5)
    assert judged.buckets.tolist() == buckets
    assert judged.verdicts.tolist() == [said[bucket] for bucket in buckets]
    assert (judged.refused, judged.repeated) == (buckets.count(2), buckets.count(1))
    assert judged.positions(keys.REFUSED).tolist() == [at for at, bucket in enumerate(buckets) if bucket == 2]
    keys.mark(judged, applied, 5)
    assert applied.tolist() == [5, 5, 0]
    assert not keys.all_served(wanted, serving)
    assert keys.all_served(wanted, np.ones(3, np.uint8))


def test_the_kept_rows_of_a_push_are_a_push() -> None:
    push = Push(
        1,
        2,
        3,
        4.0,
        Keys(np.array([9, 8], np.uint32), np.array([2, 1], np.uint32), np.array([5, 6, 7], np.int64)),
        np.array([0.1, 0.2], np.float32),
        np.arange(7, dtype=np.float32),
    )
    kept = keys.select(push, np.array([2, 3], np.int64), np.array([False, True, False]))
    assert (kept.keys.tables.tolist(), kept.keys.counts.tolist(), kept.keys.ids.tolist()) == ([9], [1], [6])
    assert (kept.values.tolist(), kept.lrs.tolist(), kept.sequence) == ([2.0, 3.0], [np.float32(0.1)], 2)
    some = keys.select_keys(push.keys, np.array([True, False, True]))
    assert (some.counts.tolist(), some.ids.tolist()) == ([1, 1], [5, 7])
