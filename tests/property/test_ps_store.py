"""The store of a parameter server under every interleaving, and the hash that places its rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from elastane.model.ps import OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.hashing import hash64_plain
from elastane.ps.pages import RowsPage, unpack
from elastane.ps.store import Store
from tests.property.store_machine import StoreMachine
from tests.store_rows import keys

RUNS = settings(max_examples=40, stateful_step_count=40, deadline=None)
HUNT = settings(RUNS, max_examples=200, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_a_store_holds_what_a_dictionary_would() -> None:
    run_state_machine_as_test(StoreMachine, settings=RUNS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_store_holds_what_a_dictionary_would_for_long() -> None:
    run_state_machine_as_test(StoreMachine, settings=settings(RUNS, max_examples=400))


class MovesNoCounts(Store):
    """A planted bug: what counts for admission stays behind when a bucket moves."""

    def pages(self, bucket: int) -> Iterator[bytes | bytearray]:
        for page in super().pages(bucket):
            content = unpack(page)
            if not (isinstance(content, RowsPage) and content.dim == 0):
                yield page


class EvictsEarly(Store):
    """A planted bug: a row goes some steps before its table lets it."""

    def evict(self, bucket: int, step: int) -> int:
        return super().evict(bucket, step + 3)


class OverwritesWhatIsThere(Store):
    """A planted bug: a first value is set although there is one."""

    def assign(
        self,
        table: int,
        ids: npt.NDArray[np.int64],
        values: npt.NDArray[np.float32],
        *,
        only_new: bool = True,
        step: int = 0,
    ) -> None:
        del only_new
        super().assign(table, ids, values, only_new=False, step=step)


@pytest.mark.parametrize("broken", [MovesNoCounts, EvictsEarly, OverwritesWhatIsThere])
def test_the_machine_finds_planted_bugs(broken: type[Store]) -> None:
    class Broken(StoreMachine):
        store_class = broken

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=HUNT)


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
