"""Scalars for TensorBoard: a file that TensorFlow's own reader takes, and a job that outlives its disk."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from elastane.master.event_log import EventLog
from elastane.master.master import JobMaster
from elastane.master.scalars import ScalarFile, masked_crc32c, record
from elastane.model.errors import PlatformError
from elastane.model.ids import NodeName
from elastane.rpc.protos import tensorboard_pb2 as pb
from elastane.testing import MemoryPlatform
from tests.builders import make_dataset, make_job

Points = list[tuple[int, dict[str, float]]]


def read(folder: Path) -> Points:
    """The points in the one file of a folder, its checksums checked."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        whole, data = data[: 16 + length], data[16 + length :]
        assert whole == record(whole[12 : 12 + length])
        found.append(pb.Event.FromString(whole[12 : 12 + length]))
    assert found[0].file_version == "brain.Event:2"
    return [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in found[1:]]


def test_the_checksum_is_the_one_of_the_format() -> None:
    # CRC-32C of "123456789" is 0xE3069283, as its definition says.
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorflow_reads_what_is_written(tmp_path: Path) -> None:
    import tensorflow as tf

    file = ScalarFile(tmp_path / "runs", "ctr")
    file.write(7, {"job/samples_per_s": 1.5})
    file.write(9, {"evaluation/auc": 0.75, 'a"b\n': 2.0})
    file.close()
    (path,) = (tmp_path / "runs").iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    assert events[0].file_version == "brain.Event:2"
    points = [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in events[1:]]
    assert points == [(7, {"job/samples_per_s": 1.5}), (9, {"evaluation/auc": 0.75, 'a"b\n': 2.0})] == read(path.parent)


def master_of(events: EventLog) -> JobMaster:
    return JobMaster(make_job(), "the-right-token", MemoryPlatform(), events)


async def test_a_job_writes_its_evaluations_and_where_it_ended(tmp_path: Path) -> None:
    events = EventLog()
    master = master_of(events)
    master.write_scalars(tmp_path / "runs")
    await master.serve()
    events.emit("evaluation_finished", step=30, metrics={"auc": 0.5, "none": None}, seconds=1.0)
    dataset = make_dataset(100)
    worker = NodeName("ctr-worker-0")
    master.task_manager.define(worker, dataset)
    master.task_manager.lease(worker, dataset.name, 1, lambda _: None)
    (task,) = master.task_manager.ledgers[dataset.name].leases_of(worker)
    master.task_manager.commit(worker, dataset.name, [(task, 10)])
    await master.close(0)
    evaluation, end = read(tmp_path / "runs")
    assert evaluation == (30, {"evaluation/auc": 0.5})
    assert end[0] == 10
    assert end[1].keys() == {"job/samples_per_s", "job/world_size"}


async def test_a_folder_that_cannot_be_written_is_said_and_a_file_that_no_longer_can_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    events = EventLog()
    master = master_of(events)
    with pytest.raises(PlatformError, match=r'tensorboard: ".*/file/runs" cannot be written: Not a directory'):
        master.write_scalars(tmp_path / "file" / "runs")
    master.write_scalars(tmp_path / "runs")
    assert master._scalars is not None
    file = master._scalars._file
    file._file.close()
    with Path("/dev/full").open("wb", buffering=0) as file._file:  # noqa: ASYNC230  # it is no real file
        for step in (1, 2):
            events.emit("evaluation_finished", step=step, metrics={"auc": 0.5}, seconds=1.0)
        await master.serve()
        await master.close(0)
