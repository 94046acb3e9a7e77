"""The journal's file: what is torn, damaged or grown too long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from elastane.core.shards import ShardLedger
from elastane.master import journal_copies
from elastane.master.journal import Journal
from elastane.master.journal_copies import JournalCopies
from elastane.model.dataset import DatasetSpec
from elastane.model.errors import JournalDamaged, JournalLost, StaleLease
from elastane.model.ids import DatasetName, NodeName, TaskId
from elastane.rpc.protos import node_pb2 as pb
from elastane.worker.journal_copy import JournalCopy

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


def test_a_copy_is_replaced_only_by_a_whole_one() -> None:
    copy = JournalCopy()
    copy.keep(pb.KeepJournal(lines=b"ab", whole_bytes=2))
    copy.keep(pb.KeepJournal(lines=b"c"))
    copy.keep(pb.KeepJournal(lines=b"de", whole_bytes=4))
    assert [part.journal_copy.lines for part in copy.parts()] == [b"abc"]
    copy.keep(pb.KeepJournal(lines=b"fg"))
    copy.keep(pb.KeepJournal(lines=b"h"))
    (part,) = copy.parts()
    assert part.journal_copy == pb.JournalCopy(lines=b"defgh", last=True)


async def test_nodes_that_keep_the_journal_have_every_line_of_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", compact_after=30)
    nodes = {NodeName(name): JournalCopy() for name in ("a", "b", "c")}
    copies = JournalCopies(journal, 2, lambda node, message: nodes[node].keep(message.keep_journal))
    rules = journal.watch("data", ledger())
    for number, node in enumerate(nodes, 1):
        copies.attended(node)
        rules.lease(WORKER, 1, 0.0)
        await asyncio.sleep(0)
        rules.commit(WORKER, TaskId(number), 10 * number, 0.0)
    copies.gone(NodeName("a"))
    for number in range(4, 40):
        rules.lease(WORKER, 1, 0.0)
        rules.commit(WORKER, TaskId(number), 10 * number, 0.0)
    await asyncio.sleep(0)
    kept = {str(name): b"".join(part.journal_copy.lines for part in copy.parts()) for name, copy in nodes.items()}
    assert kept["b"] == kept["c"] == journal.whole()
    assert kept["a"] != kept["b"]


async def test_without_a_copy_the_journal_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_copies, "PATIENCE_S", 0.01)
    with pytest.raises(JournalLost, match="none of the nodes"):
        await journal_copies.find_journal("token", "", [WORKER], lambda *_: None)
