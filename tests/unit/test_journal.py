"""The journal's file: what is torn, damaged or grown too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane.core.shards import ShardLedger
from elastane.master.journal import Journal
from elastane.model.dataset import DatasetSpec
from elastane.model.errors import JournalDamaged, StaleLease
from elastane.model.ids import DatasetName, NodeName, TaskId

WORKER = NodeName("job-worker-0")


def ledger() -> ShardLedger:
    return ShardLedger(DatasetSpec(DatasetName("data"), 10, size=1000), max_task_retries=3, min_timeout_s=1.0)


def test_a_torn_last_line_is_left_out_and_the_next_one_stands(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    first = journal.watch("data", ledger())
    first.lease(WORKER, 1, 0.0)
    first.commit(WORKER, TaskId(1), 4, 0.0)
    whole = path.stat().st_size
    first.commit(WORKER, TaskId(1), 7, 0.0)
    journal.close()
    path.write_bytes(path.read_bytes()[:-3])
    journal = Journal(path)
    second = journal.watch("data", ledger())
    assert second.committed_samples == 4
    assert path.stat().st_size == whole
    second.commit(WORKER, TaskId(1), 9, 0.0)
    journal.close()
    assert Journal(path).watch("data", ledger()).committed_samples == 9


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).watch("data", ledger()).lease(WORKER, 1, 0.0)
    path.write_bytes(path.read_bytes().replace(b'"data"', b'"date"', 1))
    with pytest.raises(JournalDamaged, match="line 1"):
        Journal(path)


def test_calls_give_way_to_the_state_they_lead_to(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, compact_after=50)
    kept = journal.watch("data", ledger(), {"its": "description"})
    for number in range(1, 101):
        kept.lease(WORKER, 1, 0.0)
        kept.commit(WORKER, TaskId(number), 10 * number, 0.0)
    assert len(path.read_bytes().splitlines()) < 60
    journal = Journal(path)
    assert journal.description_of("data") == {"its": "description"}
    assert journal.watch("data", ledger()).snapshot() == kept.snapshot()


def test_a_call_that_was_refused_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = Journal(path).watch("data", ledger())
    before = path.read_bytes()
    with pytest.raises(StaleLease):
        kept.commit(WORKER, TaskId(1), 4, 0.0)
    assert path.read_bytes() == before


def test_time_goes_on_where_the_master_before_left_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.watch("data", ledger())
    while (left_off := journal.clock()) < 0.01:
        continue
    journal.watch("more", ledger())
    assert left_off <= Journal(path).clock() < left_off + 60


def test_without_a_file_nothing_is_resumed() -> None:
    journal = Journal()
    journal.watch("data", ledger()).lease(WORKER, 1, 0.0)
    assert not journal.resumed
