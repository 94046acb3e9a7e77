"""Checkpoints of parameter servers: saved on some, loaded on others, and what happens to damaged ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastane.model.errors import CheckpointMisfit, RequestRefused, StateLost
from elastane.model.ps import OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import files
from elastane.ps.store import Store
from tests.store_rows import keys, push, rows_in

N_BUCKETS = 16
TABLES = [
    TableSpec("wide", 1, OptimizerSpec(OptimizerKind.FTRL, 0.1)),
    TableSpec("deep", 16, OptimizerSpec(OptimizerKind.ADAM, 0.1), admit_after=1),
    TableSpec("other", 16, OptimizerSpec(OptimizerKind.ADAGRAD, 0.1)),
]

Content = list[dict[tuple[str, int], tuple[int, int, bytes, bytes]]]


def split(n_buckets: int, servers: int) -> list[list[int]]:
    return [list(range(n_buckets))[server::servers] for server in range(servers)]


def train(stores: list[Store], seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for step in range(4):
        for table in TABLES:
            ids = rng.choice(600, 200, replace=False)
            gradients = rng.standard_normal((200, table.dim)).astype(np.float32)
            server = stores[0].buckets_of(*keys({table: ids.tolist()})) % len(stores)
            for number, store in enumerate(stores):
                mine = server == number
                push(store, table, ids[mine].tolist(), np.ascontiguousarray(gradients[mine]), step=step)


def trained(servers: int) -> list[Store]:
    stores = [Store(N_BUCKETS) for _ in range(servers)]
    for store in stores:
        for table in TABLES:
            store.define(table)
    train(stores)
    return stores


def content(stores: list[Store]) -> Content:
    """All rows of all stores, and all counts, to the byte."""
    found: Content = [{}, {}]
    for store in stores:
        for all_of_them, some in zip(found, rows_in(store), strict=True):
            assert not all_of_them.keys() & some.keys()
            all_of_them.update({key: row.content for key, row in some.items()})
    return found


def save(stores: list[Store], folder: Path, steps: int = 4) -> Path:
    path = files.begin(folder)
    for server, (store, buckets) in enumerate(zip(stores, split(N_BUCKETS, len(stores)), strict=True)):
        files.save_part(store, path, f"ps-{server}", dict.fromkeys(buckets, 1), lambda bucket: b"note %d" % bucket)
    files.commit(path, N_BUCKETS, steps, {"clicks": [1, 2, {"at": steps}]})
    return path


def restore(servers: int, folder: Path) -> tuple[list[Store], list[files.Restored]]:
    stores = [Store(N_BUCKETS) for _ in range(servers)]
    found = [
        files.restore(store, folder, buckets) for store, buckets in zip(stores, split(N_BUCKETS, servers), strict=True)
    ]
    return stores, [one for one in found if one is not None]


@pytest.mark.parametrize("servers", [1, 5])
def test_what_three_servers_saved_any_number_loads_to_the_byte(tmp_path: Path, servers: int) -> None:
    saved = trained(3)
    save(saved, tmp_path)
    loaded, restored = restore(servers, tmp_path)
    assert content(loaded) == content(saved)
    assert [len(part) > 0 for part in content(loaded)] == [True, True]
    assert {(one.number, one.steps) for one in restored} == {(1, 4)}
    assert restored[0].position == {"clicks": [1, 2, {"at": 4}]}
    assert {bucket: note for one in restored for bucket, note in one.notes.items()} == {
        bucket: b"note %d" % bucket for bucket in range(N_BUCKETS)
    }
    train(saved, 7)
    train(loaded, 7)
    assert content(loaded) == content(saved)


def test_a_bucket_that_moved_while_it_was_saved_is_loaded_from_its_later_owner(tmp_path: Path) -> None:
    before, after = trained(1)[0], trained(1)[0]
    push(after, TABLES[0], range(100), np.ones((100, 1), np.float32))
    path = files.begin(tmp_path)
    files.save_part(after, path, "a", {3: 5})
    files.save_part(before, path, "b", dict.fromkeys(range(N_BUCKETS), 4))
    files.commit(path, N_BUCKETS, 1)
    store = Store(N_BUCKETS)
    files.restore(store, tmp_path, range(N_BUCKETS))
    assert store.digest(3) == after.digest(3) != before.digest(3)
    assert store.digest(2) == before.digest(2) != after.digest(2)


def test_a_checkpoint_without_all_buckets_is_not_made(tmp_path: Path) -> None:
    store = trained(1)[0]
    path = files.begin(tmp_path)
    files.save_part(store, path, "a", dict.fromkeys(range(N_BUCKETS - 2), 1))
    assert files.missing(path, N_BUCKETS) == [N_BUCKETS - 2, N_BUCKETS - 1]
    with pytest.raises(RequestRefused, match="lacks 2 in all"):
        files.commit(path, N_BUCKETS, 1)
    assert files.restore(store, tmp_path, [0]) is None


def test_a_part_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    store = trained(1)[0]
    path = files.begin(tmp_path)

    def broken(bucket: int) -> bytes:
        raise OSError(f"no space for bucket {bucket}")

    with pytest.raises(OSError, match="no space"):
        files.save_part(store, path, "a", {0: 1, 1: 1}, broken)
    assert list(path.iterdir()) == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def alter_a_row(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def alter_the_directory(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, cut_to_nothing, alter_a_row, alter_the_directory, Path.unlink])
@pytest.mark.parametrize("file", ["ps-1.rows", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: Callable[[Path], None]
) -> None:
    stores = trained(2)
    save(stores, tmp_path)
    good = content(stores)
    train(stores, 1)
    path = save(stores, tmp_path, 8)
    damage(path / file)
    with caplog.at_level(logging.WARNING):
        loaded, restored = restore(1, tmp_path)
    assert content(loaded) == good
    assert [one.number for one in restored] == [1]
    no_manifest_at_all = (file, damage) == ("manifest.json", Path.unlink)
    assert ("00000002 is not whole" in caplog.text) is not no_manifest_at_all


def test_with_no_whole_checkpoint_the_state_is_lost_and_the_store_is_empty(tmp_path: Path) -> None:
    stores = trained(1)
    cut(save(stores, tmp_path) / "ps-0.rows")
    with pytest.raises(StateLost, match="none of 1 checkpoints"):
        files.restore(stores[0], tmp_path, range(N_BUCKETS))
    assert content(stores) == [{}, {}]
    with pytest.raises(StateLost, match="no checkpoint 9"):
        files.restore(stores[0], tmp_path, range(N_BUCKETS), number=9)


def test_a_checkpoint_of_another_number_of_buckets_is_refused(tmp_path: Path) -> None:
    save(trained(1), tmp_path)
    with pytest.raises(CheckpointMisfit, match="16 buckets, and this job 8"):
        files.restore(Store(8), tmp_path, range(8))


def test_old_checkpoints_are_pruned(tmp_path: Path) -> None:
    stores = trained(1)
    for _ in range(3):
        save(stores, tmp_path)
    files.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "00000003"]
