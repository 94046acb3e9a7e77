"""Checkpoints of parameter servers: a part a server, the manifest last, loaded by any number of servers.

FOLDER/00000007/SERVER.rows     the buckets of one server, slots and counts included
FOLDER/00000007/manifest.json   the parts, the step and the position in the data; renamed into place last
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastane.checkpoint import files
from elastane.checkpoint.manifest import Manifest, NotWhole, SavedFile
from elastane.model.errors import CheckpointMisfit, RequestRefused, StateLost, TableMismatch
from elastane.ps.pages import pack_tables
from elastane.ps.part_file import SUFFIX, Buffer, PartReader, PartWriter, SavedPart, Stretch, fill
from elastane.ps.store import Store

_log = logging.getLogger("elastane.checkpoint")


@dataclass(frozen=True)
class Restored:
    """What a store goes on from."""

    number: int
    steps: int
    position: Any
    """What `commit` was given."""
    notes: Mapping[int, bytes]
    """What each bucket was saved with, beside its rows."""


def begin(folder: Path) -> Path:
    """Make the folder of a new checkpoint. It is none before `commit`."""
    folder.mkdir(parents=True, exist_ok=True)
    number = max(files.numbers(folder), default=0) + 1
    while True:
        path = folder / f"{number:08}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def save_part(
    store: Store,
    path: Path,
    part: str,
    buckets: Mapping[int, int],
    notes: Callable[[int], bytes] = lambda _: b"",
) -> SavedPart:
    """Save buckets, given with the epochs of their owner, into a checkpoint's folder, as the part of this name.

    Each is saved as it is at one moment; `notes(bucket)` is called at that moment too, under the store's lock, and
    saved with it. Raises OSError: then there is no such part.
    """
    with PartWriter(path / f"{part}{SUFFIX}", store.n_buckets) as writer, ThreadPoolExecutor(1) as executor:
        writer.add_tables(pack_tables(store.tables()))
        writing: Future[None] | None = None
        for bucket, epoch in buckets.items():
            buffer = writer.buffer()
            with store.lock:
                fill(buffer, [(notes(bucket),)])
                fill(buffer, store.snapshot_locked(bucket))
            if writing is not None:
                writing.result()
            writing = executor.submit(writer.add_bucket, bucket, epoch, buffer)
        if writing is not None:
            writing.result()
        return writer.finish()


def missing(path: Path, n_buckets: int) -> list[int]:
    """The buckets that no part of a checkpoint has yet. Raises NotWhole."""
    with _parts(path.glob(f"*{SUFFIX}")) as parts:
        found = {bucket for part in parts for bucket in part.buckets}
    return [bucket for bucket in range(n_buckets) if bucket not in found]


def commit(path: Path, n_buckets: int, steps: int, position: Any = None) -> None:
    """Make a folder, with all parts that are in it, a checkpoint: with this step and this JSON beside it.

    Raises RequestRefused if a bucket is in none of them, and NotWhole.
    """
    if lacks := missing(path, n_buckets):
        raise RequestRefused(
            f"checkpoint {path.name} has no part with bucket {lacks[0]}, and lacks {len(lacks)} in all"
        )
    with _parts(path.glob(f"*{SUFFIX}")) as parts:
        saved = {part.name: SavedFile(part.size, part.crc32) for part in parts}
    rest = {"n_buckets": n_buckets, "position": position}
    files.commit(path, Manifest(int(path.name), steps, steps, saved, rest), durable=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    files.prune(folder, keep)


def restore(store: Store, folder: Path, buckets: Iterable[int], number: int | None = None) -> Restored | None:
    """Put these buckets into a store as the newest checkpoint has them, or that of a number. None if there is none.

    What the store has of these buckets goes. One that is not whole is named in a warning, and the one before it is
    used. Raises StateLost if there are some, and none is whole, and CheckpointMisfit for other buckets or tables.
    """
    wanted = list(buckets)
    numbers = [one for one in files.numbers(folder) if (folder / f"{one:08}" / files.MANIFEST).exists()]
    if number is not None and number not in numbers:
        raise StateLost(f"there is no checkpoint {number} in {folder}")
    broken: list[str] = []
    for one in [number] if number is not None else reversed(numbers):
        path = folder / f"{one:08}"
        try:
            return _load(store, path, wanted)
        except (NotWhole, OSError) as error:
            _log.warning("checkpoint %s is not whole, and not used: %s", path, error)
            broken.append(f"{path.name}: {error}")
    for bucket in wanted:
        store.drop(bucket)
    if broken:
        raise StateLost(f"none of {len(broken)} checkpoints in {folder} is whole ({broken[0]})")
    return None


def _load(store: Store, path: Path, buckets: list[int]) -> Restored:
    manifest = Manifest.from_bytes((path / files.MANIFEST).read_bytes())
    n_buckets = manifest.rest.get("n_buckets")
    if n_buckets != store.n_buckets:
        raise CheckpointMisfit(
            f"checkpoint {path} has {n_buckets} buckets, and this job {store.n_buckets}; set as many as it has"
        )
    notes: dict[int, bytes] = {}
    with _parts(path / name for name in manifest.files) as parts:
        where: dict[int, tuple[Stretch, PartReader]] = {}
        for part in parts:
            if (saved := manifest.files[part.name]) != SavedFile(part.size, part.crc32):
                raise NotWhole(f"{part.name} is not the file of {saved.bytes} bytes that was saved")
            for bucket, stretch in part.buckets.items():
                if bucket not in where or stretch.epoch > where[bucket][0].epoch:
                    where[bucket] = (stretch, part)
        if lacks := [bucket for bucket in buckets if bucket not in where]:
            raise NotWhole(f"no part has bucket {lacks[0]}")
        try:
            for part in parts:
                for page in [] if part.tables is None else part.pieces(part.tables, Buffer()):
                    store.install(0, page)
        except TableMismatch as error:
            raise CheckpointMisfit(f"checkpoint {path}: {error}") from None
        for bucket, pieces in _read_ahead(buckets, where):
            store.drop(bucket)
            notes[bucket] = bytes(pieces[0])
            for page in pieces[1:]:
                store.install(bucket, page)
    return Restored(manifest.number, manifest.steps, manifest.rest["position"], notes)


def _read_ahead(
    buckets: list[int], where: Mapping[int, tuple[Stretch, PartReader]]
) -> Iterator[tuple[int, list[memoryview]]]:
    """Each bucket with its pieces; while one is used, the next one is read."""

    buffers = [Buffer(), Buffer()]

    def read(bucket: int) -> list[memoryview]:
        stretch, part = where[bucket]
        buffers.reverse()  # The pieces of the bucket before are in use.
        return list(part.pieces(stretch, buffers[0]))

    with ThreadPoolExecutor(1) as executor:
        reading = [executor.submit(read, bucket) for bucket in buckets[:1]]
        for i, bucket in enumerate(buckets):
            pieces = reading.pop().result()
            reading = [executor.submit(read, following) for following in buckets[i + 1 : i + 2]]
            yield bucket, pieces


@contextlib.contextmanager
def _parts(paths: Iterable[Path]) -> Iterator[list[PartReader]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PartReader(path)) for path in sorted(paths)]
