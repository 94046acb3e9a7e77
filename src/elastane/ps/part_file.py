"""A part of a checkpoint: one file with the buckets of one server, each with its checksum, and a directory at the end.

A stretch (the tables, or one bucket) is a row of pieces, each after its length, and begins at a whole block. The
directory says where each stretch is. The file gets its name when all of it is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import queue
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
_WRITE_BYTES = 8 << 20
_BLOCK_BYTES = 4096
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


class Buffer:
    """Memory that begins at a page of the system, as writing past the cache wants it, and grows as needed."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BLOCK_BYTES)
        self.filled = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        end = self.filled + len(data)
        self.reserve(end)
        self._memory[self.filled : end] = data
        self.filled = end

    def reserve(self, size: int) -> None:
        if size > len(self._memory):
            more = mmap.mmap(-1, size + size // 4 + -(size + size // 4) % _BLOCK_BYTES)
            more[: self.filled] = self._memory[: self.filled]
            self._memory = more

    def view(self, size: int | None = None) -> memoryview:
        return memoryview(self._memory)[: self.filled if size is None else size]


class PartWriter:
    """Writes a part past the page cache, where that can be; as a context it ends with a whole file, or with none.

    A stretch is put together in one of two buffers, and written from there, by another thread if one likes.
    """

    def __init__(self, path: Path, n_buckets: int) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}")
        self._n_buckets = n_buckets
        self._buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for _ in range(2):
            self._buffers.put(Buffer())
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

    def buffer(self) -> Buffer:
        """An empty buffer; it may have to wait for one to be written."""
        buffer = self._buffers.get()
        buffer.filled = 0
        return buffer

    def add_tables(self, pages: Iterable[bytes]) -> None:
        buffer = self.buffer()
        fill(buffer, [(page,) for page in pages])
        self._tables = self._add(0, buffer)

    def add_bucket(self, bucket: int, epoch: int, buffer: Buffer) -> None:
        self._buckets[bucket] = self._add(epoch, buffer)

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
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
        self._write(memoryview(directory + _TRAILER.pack(len(directory), crc32, _MAGIC)))
        os.fsync(self._descriptor)
        self._beside.rename(self._path)
        return SavedPart(self._path.name, self._offset, crc32)

    def _add(self, epoch: int, buffer: Buffer) -> Stretch:
        with buffer.view() as data:
            stretch = Stretch(epoch, self._offset, len(data), zlib.crc32(data))
        buffer.append(bytes(-buffer.filled % _BLOCK_BYTES))
        with buffer.view() as data:
            self._write(data)
        self._buffers.put(buffer)
        return stretch

    def _write(self, data: memoryview) -> None:
        written = 0
        while written < len(data):
            try:
                written += os.write(self._descriptor, data[written : written + _WRITE_BYTES])
            except OSError as error:
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                    raise
                # This file system cannot do without the cache.
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
        self._offset += written


def fill(buffer: Buffer, pieces: Iterable[tuple[bytes | bytearray | memoryview, ...]]) -> None:
    """Put pieces, each given in parts, into a buffer, after their lengths."""
    for parts in pieces:
        buffer.append(_LENGTH.pack(sum(len(part) for part in parts)))
        for part in parts:
            buffer.append(part)


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

    def pieces(self, stretch: Stretch, buffer: Buffer) -> Iterator[memoryview]:
        """The pieces of a stretch, read into a buffer, and found to be whole before the first one comes."""
        buffer.filled = 0
        buffer.reserve(stretch.length)
        data = buffer.view(stretch.length)
        self._read(stretch.offset, data)
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
        length, self.crc32, magic = _TRAILER.unpack(self._read_bytes(self.size - _TRAILER.size, _TRAILER.size))
        if magic != _MAGIC or length > min(_MOST_DIRECTORY, self.size - _TRAILER.size):
            raise NotWhole(f"{name} has no directory at its end")
        directory = self._read_bytes(self.size - _TRAILER.size - length, length)
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

    def _read(self, offset: int, into: memoryview) -> None:
        at = 0
        while at < len(into):
            count = os.preadv(self._descriptor, [into[at:]], offset + at)
            if not count:
                raise NotWhole(f"{self.name} has {self.size} bytes, and {offset + len(into)} are needed")
            at += count
        # What was read is in the store soon: the system need not keep it as well.
        os.posix_fadvise(self._descriptor, offset, len(into), os.POSIX_FADV_DONTNEED)

    def _read_bytes(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self._read(offset, memoryview(data))
        return bytes(data)


def _plain(stretch: Stretch) -> list[Any]:
    return [stretch.epoch, stretch.offset, stretch.length, stretch.crc32]
