"""Scalars of a job for TensorBoard: its speed, its world and its evaluations, over its steps.

A file is a row of records: the length of the data, a checksum of that, the data, and a checksum of the data. A master
that comes after another begins a file of its own; TensorBoard joins those of a folder.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from elastane.master.control import Control
from elastane.master.event_log import EventLog
from elastane.model.errors import PlatformError
from elastane.rpc.protos import tensorboard_pb2 as pb

EVERY_S = 2.0
"""How often the speed is written."""

_POLYNOMIAL = 0x82F63B78

_log = structlog.get_logger("elastane.master")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """CRC-32C as these files have it: turned, and with a constant added."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """Data as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))))


class ScalarFile:
    """A new file in a folder, which is made if it is not there. Each write is in it at once. Raises PlatformError."""

    def __init__(self, folder: Path, job: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"events.out.tfevents.{time.time_ns()}.{job}").open("xb", buffering=0)
        except OSError as error:
            raise PlatformError(f'tensorboard: "{folder}" cannot be written: {error.strerror}') from None
        self._write(pb.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add a point to each of these curves."""
        values = [pb.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(pb.Event(wall_time=time.time(), step=step, summary=pb.Summary(value=values)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: pb.Event) -> None:
        self._file.write(record(event.SerializeToString()))


class Scalars:
    """Writes a job's scalars, by its events and from time to time.

    They stand over the steps that the job has made, or where its workers share none, over its committed samples. If the
    file cannot be written any more, the job goes on without.
    """

    def __init__(self, file: ScalarFile, control: Control, events: EventLog) -> None:
        self._file = file
        self._control = control
        self._last_step = -1
        self._fails = False
        events.on_event.append(self._happened)

    async def run(self) -> None:
        """Write the speed from time to time, as long as the job gets on; never returns."""
        while True:
            await asyncio.sleep(EVERY_S)
            self._write_speed()

    def close(self) -> None:
        """Write where the job ended."""
        self._write_speed()
        self._file.close()

    def _write_speed(self) -> None:
        status = self._control.status()
        step = status.steps or sum(view.committed for view in status.dataset)
        if step != self._last_step:
            self._last_step = step
            self._write(step, {"job/samples_per_s": status.samples_per_s, "job/world_size": status.world_size})

    def _happened(self, kind: str, fields: Mapping[str, object]) -> None:
        metrics, step = fields.get("metrics"), fields.get("step")
        if kind == "evaluation_finished" and isinstance(metrics, dict) and isinstance(step, int):
            known = {f"evaluation/{name}": value for name, value in metrics.items() if value is not None}
            self._write(step, known)

    def _write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._fails:
            return
        try:
            self._file.write(step, scalars)
        except OSError as error:
            self._fails = True
            _log.warning("scalars_not_written", reason=str(error))
