"""A part of a checkpoint: one file with the buckets of one server, each with its checksum, and a directory at the end.

A stretch (the tables, or one bucket) is a row of pieces, each after its length. The directory says where each stretch
is. The file gets its name when all of it is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from elastane.checkpoint.manifest import NotWhole
from elastane.model.ps import MAX_BUCKETS

SUFFIX = ".rows"

_MAGIC = b"elastane rows 1\n"
_TRAILER = struct.Struct("<QI4x16s")
_LENGTH = struct.Struct("<I")
_BUFFER_BYTES = 8 << 20
_MOST_DIRECTORY = 64 << 20


@dataclass(frozen=True)
class Stretch:
    """Where in the file something is. `epoch` is that of the bucket's owner: of two copies the later is the higher."""

    epoch: int
    offset: int
    length: int
    crc32: int


@dataclass(frozen=True)
class SavedPart:
    """A part as a manifest names it: its size, and the checksum of its directory, which has those of its buckets."""

    name: str
    bytes: int
    crc32: int


class PartWriter:
    """Writes a part past the page cache, where that can be; as a context it ends with a whole file, or with none."""

    def __init__(self, path: Path, n_buckets: int) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}")
        self._n_buckets = n_buckets
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # It begins at a page, as writing past the cache wants it.
        self._filled = 0
        self._offset = 0
        self._tables: Stretch | None = None
        self._buckets: dict[int, Stretch] = {}
        self._descriptor = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags | os.O_DIRECT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        if kind is not None:
            self._beside.unlink(missing_ok=True)

    def add_tables(self, pieces: Iterable[bytes | bytearray]) -> None:
        self._tables = self._add(0, pieces)

    def add_bucket(self, bucket: int, epoch: int, pieces: Iterable[bytes | bytearray]) -> None:
        self._buckets[bucket] = self._add(epoch, pieces)

    def finish(self) -> SavedPart:
        """Write the directory, and give the file its name."""
        directory = json.dumps(
            {
                "n_buckets": self._n_buckets,
                "tables": None if self._tables is None else _plain(self._tables),
                "buckets": {str(bucket): _plain(stretch) for bucket, stretch in self._buckets.items()},
            }
        ).encode()
        crc32 = zlib.crc32(directory)
        self._write(directory)
        self._write(_TRAILER.pack(len(directory), crc32, _MAGIC))
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
        self._flush()
        os.fsync(self._descriptor)
        self._beside.rename(self._path)
        return SavedPart(self._path.name, self._offset, crc32)

    def _add(self, epoch: int, pieces: Iterable[bytes | bytearray]) -> Stretch:
        start, crc32 = self._offset, 0
        for piece in pieces:
            length = _LENGTH.pack(len(piece))
            crc32 = zlib.crc32(piece, zlib.crc32(length, crc32))
            self._write(length)
            self._write(piece)
        return Stretch(epoch, start, self._offset - start, crc32)

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        self._offset += len(view)
        while view:
            part = view[: _BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        with memoryview(self._buffer) as buffer:
            written = 0
            while written < self._filled:
                try:
                    written += os.write(self._descriptor, buffer[written : self._filled])
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    # This file system cannot do without the cache.
                    fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
        self._filled = 0


class PartReader:
    """Reads stretches of a part. Raises NotWhole for one that is torn or altered."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise NotWhole(f"{path.name} cannot be read: {error.strerror}") from None
        try:
            self.size = os.fstat(self._descriptor).st_size
            self._read_directory()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def pieces(self, stretch: Stretch) -> Iterator[memoryview]:
        """The pieces of a stretch, which was found to be whole before the first one comes."""
        data = memoryview(self._read(stretch.offset, stretch.length))
        if zlib.crc32(data) != stretch.crc32:
            raise NotWhole(f"{self.name} does not have the checksum at {stretch.offset} that it was saved with")
        while data:
            (length,) = _LENGTH.unpack_from(data)
            yield data[_LENGTH.size : _LENGTH.size + length]
            data = data[_LENGTH.size + length :]

    def _read_directory(self) -> None:
        name = self.name
        if self.size < _TRAILER.size:
            raise NotWhole(f"{name} has {self.size} bytes, which is too few")
        length, self.crc32, magic = _TRAILER.unpack(self._read(self.size - _TRAILER.size, _TRAILER.size))
        if magic != _MAGIC or length > min(_MOST_DIRECTORY, self.size - _TRAILER.size):
            raise NotWhole(f"{name} has no directory at its end")
        directory = self._read(self.size - _TRAILER.size - length, length)
        if zlib.crc32(directory) != self.crc32:
            raise NotWhole(f"the directory of {name} does not have the checksum that it says")
        try:
            content = json.loads(directory)
            self.n_buckets: int = content["n_buckets"]
            self.tables = None if content["tables"] is None else Stretch(*content["tables"])
            self.buckets = {int(bucket): Stretch(*plain) for bucket, plain in content["buckets"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotWhole(f"the directory of {name} cannot be read: {error}") from None
        if not 1 <= self.n_buckets <= MAX_BUCKETS or not all(0 <= bucket < self.n_buckets for bucket in self.buckets):
            raise NotWhole(f"{name} has buckets that are not from 0 to {self.n_buckets - 1}")

    def _read(self, offset: int, length: int) -> bytearray:
        data = bytearray(length)
        view, at = memoryview(data), 0
        while at < length:
            count = os.preadv(self._descriptor, [view[at:]], offset + at)
            if not count:
                raise NotWhole(f"{self.name} has {self.size} bytes, and {offset + length} are needed")
            at += count
        # What was read is in the store soon: the system need not keep it as well.
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        return data


def _plain(stretch: Stretch) -> list[Any]:
    return [stretch.epoch, stretch.offset, stretch.length, stretch.crc32]
