"""Batches for workers that share each step: every worker knows the position in the data, and takes its part by rank.

A *round* is what the workers do together: each takes its part, trains on it or not, and then all finish the round with
one collective. Only a finished round moves the position. The rules are `core.lockstep`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from elastane.core.lockstep import Position, Span, count, cut, merged, put_back, split, subtract, take, without
from elastane.core.order import sample_indices
from elastane.model.dataset import DatasetSpec, Task
from elastane.model.ids import DatasetName
from elastane.model.world import Place
from elastane.worker.batches import Collate, Ending, collated


class Pace(Protocol):
    """The one who keeps this worker in step with the others."""

    @property
    def left(self) -> bool:
        """Whether this worker is out of the world, and gets no more batches."""

    def enter(self, feed: LockstepFeed) -> bool:
        """Be in the world before the first batch of this data set; False if it is finished, or the worker leaves."""

    def next_batch(self, feed: LockstepFeed) -> tuple[Span, ...] | None:
        """This worker's next samples; none if all is done. What was taken and not trained on goes into a void round."""


class LockstepFeed:
    """One data set in lockstep. It is the sink of one that nothing is leased of, too."""

    def __init__(self, spec: DatasetSpec, batch_size: int) -> None:
        self.spec = spec
        self.batch_size = batch_size
        self.end = None if spec.epoch_size is None else spec.epoch_size * spec.epochs

    @property
    def name(self) -> DatasetName:
        return self.spec.name

    @property
    def mark(self) -> int:
        """A number that tells this data set from others, small enough to be summed exactly."""
        return (zlib.crc32(self.spec.name.encode()) >> 12) + 1

    def is_finished(self, position: Position) -> bool:
        """Whether there is nothing left to do for workers at this position."""
        return self.end is not None and position == Position(self.end)

    def samples(self, spans: Sequence[Span]) -> list[int]:
        """The sample numbers of a batch, which is of one epoch."""
        size = self.spec.epoch_size
        indices: list[int] = []
        for start, end in spans:
            epoch = 0 if size is None else start // size
            base = 0 if size is None else epoch * size
            indices.extend(int(index) for index in sample_indices(self.spec, epoch, start - base, end - base))
        return indices

    def granted(self, tasks: Sequence[Task]) -> None:
        raise AssertionError(f"{len(tasks)} tasks of a data set in lockstep")

    def wait(self) -> None:
        raise AssertionError("an answer to what was not asked")

    def finished(self) -> None:
        raise AssertionError("an answer to what was not asked")

    def voided(self) -> None:
        """There is nothing to void."""

    def failed(self, error: Exception) -> None:
        """The world says so too."""


class LockstepStream:
    """Iterates over this worker's batches of one data set."""

    def __init__(self, feed: LockstepFeed, pace: Pace, dataset: Any, collate: Collate) -> None:
        self.name = feed.name
        self.samples_in_hand = 0
        self.left = False
        """Whether the training code has left the loop, at its end or before."""
        self._feed = feed
        self._pace = pace
        self._dataset = dataset
        self._collate = collate

    def __iter__(self) -> Iterator[Any]:
        try:
            if not self._pace.enter(self._feed):
                return
            while (spans := self._pace.next_batch(self._feed)) is not None:
                self.samples_in_hand = count(spans)
                yield collated(self._dataset, self._feed.samples(spans), self._collate)
        finally:
            self.left = True

    def drain(self) -> None:
        """A worker that leaves works on until the others can do without it: its batches end when it is out."""

    def close(self, ending: Ending) -> None:
        """What was taken and not finished is known to all: there is nothing to give back."""


class Round:
    """One round of a data set, as one worker sees it: what it took, and how to tell what all of them did.

    Without `batch` each take draws one batch for every worker. With it the round is that many samples, whatever the
    number of workers, cut at multiples of `unit`.
    """

    def __init__(self, feed: LockstepFeed, position: Position, place: Place, batch: int | None, unit: int) -> None:
        self.feed = feed
        self.held: tuple[Span, ...] = ()
        """All that this worker took in this round."""
        self._position = position
        self._batch = batch
        self._unit = unit
        self.replan(place, ())

    def replan(self, place: Place, held_by_all: Sequence[Span], takers: Sequence[int] = ()) -> None:
        """Begin to hand out what nobody holds among the `takers`; none given: all members of this world.

        A member that has left the loop takes nothing, and what fell to it would never be done.
        """
        self._place = place
        self._takers = sorted(takers) or list(range(place.size))
        self._taken = 0
        self._rest = without(self._position, held_by_all)
        self._draws: list[dict[int, tuple[Span, ...]]] = []
        if self._batch is not None:
            self._whole, self._after = self._draw(self._position, self._batch)
            self._missing = subtract(self._whole, held_by_all)
            self._hand_out(self._missing, self._unit)

    @property
    def parts(self) -> int:
        """How many batches a round of fixed size has."""
        return -(-count(self._whole) // self._unit)

    def part_of(self, spans: Sequence[Span]) -> int:
        """Which of those batches these samples are."""
        return count((start, min(end, spans[0][0])) for start, end in self._whole if start < spans[0][0]) // self._unit

    @property
    def samples(self) -> int:
        """How many samples a round of fixed size has."""
        return count(self._whole)

    @property
    def taken(self) -> int:
        """How many samples this worker took since the plan was made."""
        return self._taken

    @property
    def pieces_left(self) -> bool:
        """Whether this worker's part of a round of fixed size is not yet all taken."""
        return self._batch is not None and count(self._mine()) > self._taken

    def next_batch(self) -> tuple[Span, ...] | None:
        """This worker's next samples: none (an empty span list) if others have some; None if nobody has."""
        if self._batch is None:
            drawn, self._rest = self._draw(self._rest, self.feed.batch_size * len(self._takers))
            if not drawn:
                return None
            self._hand_out(drawn)
        elif not self._missing:
            return None
        mine = cut(self._mine(), self._taken, self._taken + self.feed.batch_size)
        self._taken += count(mine)
        self.held = merged([*self.held, *mine])
        return mine

    def is_complete(self, taken: Sequence[int]) -> bool:
        """Whether the takes of all ranks are all that the round must have."""
        return self._batch is None or sum(taken) == count(self._missing)

    def position_after(self, taken: Sequence[int]) -> Position:
        """The position once the round is finished, in which each rank took so many samples."""
        if self._batch is not None:
            return self._after
        undone: list[Span] = []
        drawn = [count(self._of(rank)) for rank in range(self._place.size)]
        while any(took > had for took, had in zip(taken, drawn, strict=True)):
            # Others took more often than this worker did.
            spans, self._rest = self._draw(self._rest, self.feed.batch_size * len(self._takers))
            self._hand_out(spans)
            drawn = [count(self._of(rank)) for rank in range(self._place.size)]
        for rank, took in enumerate(taken):
            undone += cut(self._of(rank), took, drawn[rank])
        return put_back(self._rest, undone)

    def _draw(self, position: Position, most: int) -> tuple[tuple[Span, ...], Position]:
        return take(position, most, self.feed.spec.epoch_size, self.feed.end)

    def _hand_out(self, spans: Sequence[Span], unit: int = 1) -> None:
        self._draws.append(dict(zip(self._takers, split(spans, len(self._takers), unit), strict=True)))

    def _mine(self) -> tuple[Span, ...]:
        return self._of(self._place.rank)

    def _of(self, rank: int) -> tuple[Span, ...]:
        """All that a rank was given in this plan, in its order."""
        return tuple(span for draw in self._draws for span in draw.get(rank, ()))
