"""Copies in host memory: the first stage of a checkpoint, which costs no disk.

In shared memory, two slots are written in turn, so that one always holds the last whole copy, whenever the writer is
killed. A slot is a folder like a checkpoint on disk, and is read by the same code.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

import psutil
import torch
from torch import Tensor

from elastane.checkpoint.files import MANIFEST, commit, file_name
from elastane.checkpoint.manifest import Manifest

_log = logging.getLogger("elastane.checkpoint")


class Slot(Protocol):
    """A place for one copy."""

    def memory(self, part: str, size: int) -> Tensor:
        """So many bytes for a part. What was in the slot is void from then on."""

    def seal(self, manifest: Manifest) -> None:
        """The copy is whole."""


class OwnMemory:
    """Memory of this process alone, used again by every copy. It ends with the process."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._parts: dict[str, Tensor] = {}

    def memory(self, part: str, size: int) -> Tensor:
        held = self._parts.get(part)
        if held is None or held.numel() < size:
            held = self._parts[part] = _as_tensor(mmap.mmap(-1, size), pinned=self._pinned)
        return held[:size]

    def seal(self, manifest: Manifest) -> None:
        """Nobody else could find it."""


class SharedSlots:
    """Two slots in a folder of shared memory. One worker of a job writes copies; when it is lost, another does."""

    def __init__(self, folder: Path, *, pinned: bool) -> None:
        self._slots = [_SharedSlot(folder, pinned=pinned) for _ in range(2)]

    def next(self) -> Slot:
        """The slot that does not hold the last whole copy."""
        return min(self._slots, key=lambda slot: slot.number)


class _SharedSlot:
    def __init__(self, folder: Path, *, pinned: bool) -> None:
        self.number = 0
        """The number of the whole copy in it, or 0."""
        self._folder = folder
        self._pinned = pinned
        self._path: Path | None = None
        self._parts: dict[str, Tensor] = {}
        self._said_full = False

    def memory(self, part: str, size: int) -> Tensor:
        self.number = 0
        try:
            path = self._path = self._path or self._make_path()
            (path / MANIFEST).unlink(missing_ok=True)
            held = self._parts.get(part)
            if held is None or held.numel() != size:
                held = self._parts[part] = _map(path / file_name(part), size, pinned=self._pinned)
        except OSError as error:
            self._give_up(error)
            return torch.empty(size, dtype=torch.uint8)
        return held

    def seal(self, manifest: Manifest) -> None:
        if self._path is not None and {file_name(part) for part in self._parts} == set(manifest.files):
            commit(self._path, manifest, durable=False)
            self.number = manifest.number
            self._remove_what_others_left()

    def _make_path(self) -> Path:
        # A name of its own: a writer that was given up, and is not dead yet, may still write to those that it has.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self._folder))

    def _give_up(self, error: OSError) -> None:
        """There is no room: what is copied now is for the disk alone."""
        if not self._said_full:
            self._said_full = True
            _log.warning("shared memory has no place for a copy of the state; it ends with this worker: %s", error)
        self._parts.clear()
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None

    def _remove_what_others_left(self) -> None:
        """The copies of those who wrote here before, and are gone."""
        for path in self._folder.iterdir():
            if not psutil.pid_exists(int(path.name.partition("-")[0])):
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)


def _map(path: Path, size: int, *, pinned: bool) -> Tensor:
    """A file in memory. Raises OSError if there is no room for it."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Without this, a full file system would be found out by SIGBUS in the middle of the copy.
        os.posix_fallocate(descriptor, 0, size)
        mapped = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    return _as_tensor(mapped, pinned=pinned)


def _as_tensor(mapped: mmap.mmap, *, pinned: bool) -> Tensor:
    data = torch.frombuffer(mapped, dtype=torch.uint8)
    if pinned:
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(data.data_ptr(), data.numel(), 0))  # type: ignore[no-untyped-call]
    return data
