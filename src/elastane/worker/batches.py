"""Batches over leased shards, each counted when the training code comes back for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastane.worker.shard_client import ShardClient, Slice

Collate = Callable[[list[Any]], Any]


class MapDataset(Protocol):
    """Anything with samples by number. With `__len__` it is finite; without, it is an endless stream."""

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Ending:
    """How the training code left its batch: done; or not, and then perhaps because of an error in it."""

    done: bool
    error: str | None = None


class BatchStream:
    """Iterates over batches, and knows the one that the training code works on and has not finished."""

    def __init__(self, client: ShardClient, dataset: MapDataset, batch_size: int, collate: Collate) -> None:
        self.name = client.spec.name
        self._client = client
        self._dataset = dataset
        self._batch_size = batch_size
        self._collate = collate
        self._in_hand: list[Slice] = []
        self._fetch_error: str | None = None
        self.samples_in_hand = 0
        self.left = False
        """Whether the training code has left the loop, at its end or before."""

    def __iter__(self) -> Iterator[Any]:
        try:
            while slices := self._client.take(self._batch_size):
                self._in_hand = slices
                self.samples_in_hand = sum(len(piece.samples) for piece in slices)
                yield self._fetch(slices)
                self._in_hand = []
                self._client.commit(slices)
        finally:
            # A loop that was left early may be about to fail: the batch in hand is decided on later, by the Job.
            self.left = True
            self._client.drain()
            self._client.put_back_ahead(self._in_hand)

    def drain(self) -> None:
        """Give no more batches."""
        self._client.drain()

    def close(self, ending: Ending) -> None:
        """Return all that is not done; `ending` says what becomes of the batch in hand."""
        slices, self._in_hand = self._in_hand, []
        if ending.done and self._fetch_error is None:
            self._client.commit(slices)
            slices = [piece for piece in slices if not piece.ends_task]
        self._client.put_back(slices, ending.error or self._fetch_error)

    def _fetch(self, slices: list[Slice]) -> Any:
        try:
            indices = [index for piece in slices for index in piece.samples]
            return collated(self._dataset, indices, self._collate)
        except BaseException as error:
            # The training code never gets this batch, whatever it makes of the error.
            self._fetch_error = f"{type(error).__name__}: {error}"
            raise


def collated(dataset: MapDataset, indices: Sequence[int], collate: Collate) -> Any:
    """The batch of these samples. A data set that has `__getitems__`, as PyTorch's may, gives them all at once."""
    at_once = getattr(dataset, "__getitems__", None)
    return collate([dataset[index] for index in indices] if at_once is None else at_once(indices))


def as_columns(samples: Sequence[Any]) -> Any:
    """The batch of samples that are tuples is a tuple of lists, one a column; of any other, the list of them."""
    if samples and isinstance(samples[0], tuple):
        return tuple(list(column) for column in zip(*samples, strict=True))
    return list(samples)
