"""Batches of a worker that pushes what it learns to parameter servers: a sample counts once its push is acknowledged.

A batch may be taken ahead of the step that works on it, so that its rows are on the way meanwhile. It is committed when
the training code has come back from it and the servers have all that was pushed by then; if the worker ends before,
another one does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastane.model.ids import TaskId
from elastane.worker.batches import Collate, Ending, MapDataset, collated
from elastane.worker.shard_client import ShardClient, Slice


@dataclass(eq=False)
class Take:
    """The samples of one batch, on their way to be committed."""

    stream: PushedStream
    slices: Sequence[Slice]
    given: bool = False
    """Whether the training code was given the batch."""
    pushes: int | None = None
    """Once it is done with the batch: how many pushes have all that it learned."""


class Pushes(Protocol):
    """The one who pushes. The training thread calls it."""

    @property
    def left(self) -> bool:
        """Whether no more batches are wanted."""

    def taken(self, take: Take) -> None:
        """These samples are about to be given out."""

    def came_back(self, stream: PushedStream) -> None:
        """The training code asks for more."""

    def settle(self, *, leaving: bool) -> None:
        """Wait until the servers have all that was pushed, and commit what that is from.

        With `leaving` no step follows soon, and other workers are not to wait for one.
        """

    def end(self, stream: PushedStream, *, done: bool) -> Sequence[Take]:
        """The loop is over. If what it was given is `done`, commit it; the answer is what is not committed."""


class PushedStream:
    """Iterates over the batches of one data set."""

    def __init__(
        self, client: ShardClient, pushes: Pushes, dataset: MapDataset, batch_size: int, collate: Collate
    ) -> None:
        self.name = client.spec.name
        self._client = client
        self._pushes = pushes
        self._dataset = dataset
        self._batch_size = batch_size
        self._collate = collate
        self._open: dict[TaskId, Slice] = {}
        """The tasks of which a part was taken, and not all is committed, with the last part."""
        self._unfetched: tuple[Sequence[Slice], str] = ((), "")
        """The samples that could not be fetched, and why."""
        self.samples_in_hand = 0
        self.left = False
        """Whether the training code has left the loop, at its end or before."""

    @property
    def ready(self) -> bool:
        """Whether the next batch, or the end, is there without waiting for other workers."""
        return self._client.ready

    def __iter__(self) -> Iterator[Any]:
        try:
            while not self._pushes.left:
                if not self._client.ready:
                    # What others wait for, before this worker waits for them.
                    self._pushes.settle(leaving=True)
                if not (slices := self._client.take(self._batch_size)):
                    return
                self._open |= {piece.task: piece for piece in slices}
                batch = self._fetch(slices)
                self._pushes.taken(Take(self, slices))
                self.samples_in_hand = sum(len(piece.samples) for piece in slices)
                yield batch
                self._pushes.came_back(self)
        finally:
            # A loop that was left early may be about to fail: the batch in hand is decided on later, by the Job.
            self.left = True
            self._client.drain()
            self._client.put_back_ahead(list(self._open.values()))

    def drain(self) -> None:
        """Give no more batches."""
        self._client.drain()

    def commit(self, slices: Sequence[Slice]) -> None:
        """Count these samples."""
        self._client.commit(slices)
        for piece in slices:
            if piece.ends_task:
                self._open.pop(piece.task, None)

    def close(self, ending: Ending) -> None:
        """Return all that is not done; an error counts against what the training code was given."""
        undone = self._pushes.end(self, done=ending.done)
        unfetched, why = self._unfetched
        given = [piece for take in undone if take.given for piece in take.slices]
        for slices, error in ((unfetched, why), (given, ending.error)):
            blamed = {piece.task for piece in slices} & self._open.keys()
            self._client.put_back_only([self._open.pop(task) for task in blamed], error)
        self._client.put_back(list(self._open.values()))
        self._open.clear()

    def _fetch(self, slices: Sequence[Slice]) -> Any:
        try:
            indices = [index for piece in slices for index in piece.samples]
            return collated(self._dataset, indices, self._collate)
        except BaseException as error:
            # The training code never gets this batch, whatever it makes of the error.
            self._unfetched = (slices, f"{type(error).__name__}: {error}")
            raise


class Settlement:
    """Which samples may be committed: those that the training code is done with, once its pushes are acknowledged."""

    def __init__(self) -> None:
        self._takes: deque[Take] = deque()

    def taken(self, take: Take) -> None:
        self._takes.append(take)

    def done_with(self, takes: Iterable[Take], pushes: int) -> None:
        """What the training code learned of these batches is in the first `pushes` pushes."""
        for take in takes:
            if take.given and take.pushes is None:
                take.pushes = pushes

    def acknowledged(self, pushes: int) -> None:
        """Commit what the servers have after so many pushes, in the order in which it was taken."""
        while self._takes and (needed := self._takes[0].pushes) is not None and needed <= pushes:
            take = self._takes.popleft()
            take.stream.commit(take.slices)

    def of(self, stream: PushedStream) -> list[Take]:
        """What was taken from a stream, and is not committed."""
        return [take for take in self._takes if take.stream is stream]

    def forget(self, stream: PushedStream) -> list[Take]:
        """The same, and it will not be committed any more."""
        takes = self.of(stream)
        self._takes = deque(take for take in self._takes if take.stream is not stream)
        return takes
