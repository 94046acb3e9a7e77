"""Batches over leased shards, each counted when the training code comes back for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from elastane.worker.shard_client import ShardClient, Slice

Collate = Callable[[list[Any]], Any]


class MapDataset(Protocol):
    """Anything with samples by number. With `__len__` it is finite; without, it is an endless stream."""

    def __getitem__(self, index: int, /) -> Any: ...


class BatchStream:
    """Iterates over batches, and knows the one that the training code works on and has not finished."""

    def __init__(self, client: ShardClient, dataset: MapDataset, batch_size: int, collate: Collate) -> None:
        self._client = client
        self._dataset = dataset
        self._batch_size = batch_size
        self._collate = collate
        self._in_hand: list[Slice] = []
        self.left = False
        """Whether the training code has left the loop, at its end or before."""

    def __iter__(self) -> Iterator[Any]:
        try:
            while slices := self._client.take(self._batch_size):
                self._in_hand = slices
                yield self._collate([self._dataset[index] for piece in slices for index in piece.samples])
                self.finish_batch()
        finally:
            # A loop that was left early may be about to fail: the batch in hand is decided on later, by the Job.
            self.left = True
            self._client.drain()
            self._client.put_back_ahead(self._in_hand)

    def drain(self) -> None:
        """Give no more batches."""
        self._client.drain()

    def finish_batch(self) -> None:
        """Count the batch in hand as done."""
        slices, self._in_hand = self._in_hand, []
        self._client.commit(slices)

    def close(self, error: str | None) -> None:
        """Return all that is not done. Without `error` the batch in hand is done; with it, that batch is why."""
        slices, self._in_hand = self._in_hand, []
        if error is None:
            self._client.commit(slices)
            slices = [piece for piece in slices if not piece.ends_task]
        self._client.put_back(slices, error)


def as_columns(samples: Sequence[Any]) -> Any:
    """The batch of samples that are tuples is a tuple of lists, one a column; of any other, the list of them."""
    if samples and isinstance(samples[0], tuple):
        return tuple(list(column) for column in zip(*samples, strict=True))
    return list(samples)
