"""Checkpoints as folders of files: written beside and renamed, checked when read, pruned from the oldest on.

FOLDER/00000007/model.safetensors       the model's tensors
FOLDER/00000007/optimizer.safetensors   the optimizer's
FOLDER/00000007/manifest.json           everything else; renamed into place last, and then it is a checkpoint
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from elastane.checkpoint.manifest import Manifest, NotWhole, SavedFile
from elastane.model.errors import StateLost

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
WRITE_BYTES = 8 << 20
BLOCK_BYTES = 4096
"""What is written past the page cache begins and ends at a multiple of this."""

_log = logging.getLogger("elastane.checkpoint")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found to be whole."""

    path: Path
    manifest: Manifest

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of a part. Raises NotWhole."""
        # Only here: a parameter server saves and loads without PyTorch, and starts faster.
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.path / file_name(part))
        except (OSError, SafetensorError) as error:
            raise NotWhole(str(error)) from None


def file_name(part: str) -> str:
    return f"{part}.safetensors"


def describe(
    number: int, rounds: int, steps: int, parts: Mapping[str, memoryview], rest: Mapping[str, object]
) -> Manifest:
    """The manifest of a checkpoint with these parts."""
    files = {file_name(part): SavedFile(len(data), zlib.crc32(data)) for part, data in parts.items()}
    return Manifest(number, rounds, steps, files, rest)


def commit(folder: Path, manifest: Manifest, *, durable: bool) -> None:
    """Make a folder with all its files a checkpoint. With `durable` it is one after a power failure too."""
    beside = folder / f".{MANIFEST}"
    with beside.open("wb") as file:
        file.write(manifest.to_bytes())
        if durable:
            file.flush()
            os.fsync(file.fileno())
    beside.rename(folder / MANIFEST)
    if durable:
        _sync_folder(folder)


def numbers(folder: Path) -> list[int]:
    """The numbers of all checkpoints of a folder, finished or not, whole or not."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name.isdigit():
                found.append(int(path.name))
            elif (manifest := path / MANIFEST).exists():
                with contextlib.suppress(NotWhole, OSError):
                    found.append(Manifest.from_bytes(manifest.read_bytes()).number)
    return sorted(found)


def write(folder: Path, manifest: Manifest, parts: Mapping[str, memoryview]) -> Path:
    """Write a checkpoint into a folder of checkpoints; the answer is its own folder."""
    folder.mkdir(parents=True, exist_ok=True)
    number = manifest.number
    while True:
        path = folder / f"{number:08}"
        try:
            path.mkdir()
            break
        except FileExistsError:
            number += 1  # Another worker saves, or did and was killed.
    try:
        for part, data in parts.items():
            _write_file(path / file_name(part), data)
        commit(path, replace(manifest, number=number), durable=True)
        _sync_folder(folder)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)  # The disk may be full: a part of a checkpoint is of no use.
        raise
    return path


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what older unfinished ones left behind."""
    finished = [number for number in numbers(folder) if (folder / f"{number:08}" / MANIFEST).exists()]
    if not finished:
        return
    stay = finished[-keep:]
    for number in numbers(folder):
        if number not in stay and number < stay[-1]:
            path = folder / f"{number:08}"
            # First what makes it a checkpoint: one that is half removed must not look like one.
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def newest(folders: Iterable[Path]) -> Checkpoint | None:
    """The newest whole checkpoint of these folders, or None if none was ever finished there.

    A later one that is not whole is named in a warning. Raises StateLost if there are some, and none is whole.
    """
    found: list[tuple[Manifest, Path]] = []
    broken: list[tuple[Path, Exception]] = []
    for path in (path for folder in folders for path in _finished(folder)):
        try:
            found.append((Manifest.from_bytes((path / MANIFEST).read_bytes()), path))
        except (NotWhole, OSError) as error:
            broken.append((path, error))
            _log.warning("checkpoint %s is not whole, and not used: %s", path, error)
    for manifest, path in sorted(found, key=lambda one: -one[0].number):
        try:
            _check(path, manifest)
        except (NotWhole, OSError) as error:
            broken.append((path, error))
            _log.warning("checkpoint %s is not whole, and not used: %s", path, error)
            continue
        return Checkpoint(path, manifest)
    if broken:
        path, why = broken[0]
        raise StateLost(
            f"none of {len(broken)} checkpoints in {path.parent} is whole (of {path.name}: {why}); "
            "to start over, give another folder"
        )
    return None


def _finished(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from (path for path in folder.iterdir() if (path / MANIFEST).exists())


def _check(path: Path, manifest: Manifest) -> None:
    for name, saved in manifest.files.items():
        with (path / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != saved.bytes:
                raise NotWhole(f"{name} has {size} bytes, and was saved with {saved.bytes}")
            crc32 = 0
            while data := file.read(WRITE_BYTES):
                crc32 = zlib.crc32(data, crc32)
            if crc32 != saved.crc32:
                raise NotWhole(f"{name} does not have the checksum that it was saved with")


def _write_file(path: Path, data: memoryview) -> None:
    """Write past the page cache where that can be: its copy of the data would only take time and memory."""
    aligned = len(data) // BLOCK_BYTES * BLOCK_BYTES
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        for start in range(0, aligned, WRITE_BYTES):
            piece = data[start : min(start + WRITE_BYTES, aligned)]
            try:
                _write_piece(descriptor, piece)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system, or this memory, cannot do without the cache.
                fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
                _write_piece(descriptor, piece)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        _write_piece(descriptor, data[aligned:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_piece(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
