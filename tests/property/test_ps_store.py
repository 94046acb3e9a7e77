"""The store of a parameter server under every interleaving, and the hash that places its rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from elastane.model.ps import OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.hashing import hash64_plain
from elastane.ps.store import Store
from tests.property.store_machine import StoreMachine
from tests.store_rows import keys


def test_a_store_holds_what_a_dictionary_would() -> None:
    run_state_machine_as_test(StoreMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1)), n_buckets=st.integers(1, 65536), name=st.text("ab", min_size=1))
@settings(deadline=None, max_examples=60)
def test_compiled_and_plain_hash_agree(ids: list[int], n_buckets: int, name: str) -> None:
    table = TableSpec(name, 1, OptimizerSpec(OptimizerKind.SGD, 0.1))
    found = Store(n_buckets).buckets_of(*keys({table: ids}))
    assert found.tolist() == [hash64_plain(key, table.salt) % n_buckets for key in ids]


def test_buckets_get_about_equally_many_ids() -> None:
    table = TableSpec("even", 1, OptimizerSpec(OptimizerKind.SGD, 0.1))
    for ids in (np.arange(200_000), np.arange(200_000) << 20, np.arange(200_000) * 1024):
        counts = np.bincount(Store(256).buckets_of(*keys({table: ids.tolist()})), minlength=256)
        assert abs(counts - 200_000 / 256).max() < 6 * (200_000 / 256) ** 0.5
