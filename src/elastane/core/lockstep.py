"""The rules of data in lockstep: workers that share each step need no leases, they all know where the data stands.

A `Position` says which samples of a data set are done. It is part of the state that every replica has, and changes only
with a finished step, the same on all: so a sample is in exactly one finished step, whoever dies, and nobody is asked.
Samples are numbered through all epochs: number `n` is position `n % epoch_size` of epoch `n // epoch_size`.

    take       the next samples that are neither done nor taken: first those that somebody left undone
    split      the parts of the ranks, as even as can be
    put_back   what was taken and not done
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastane.model.dataset import DatasetSpec, Shard
from elastane.model.errors import InvalidInput

Span = tuple[int, int]
"""Samples from the first number to before the second."""


@dataclass(frozen=True)
class Position:
    """Everything before `start` is done, but for `left`: spans in order that do not touch each other or `start`."""

    start: int = 0
    left: tuple[Span, ...] = ()

    @property
    def done(self) -> int:
        """How many samples are done."""
        return self.start - count(self.left)


def count(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def take(position: Position, most: int, epoch_size: int | None, end: int | None) -> tuple[tuple[Span, ...], Position]:
    """Up to `most` samples of one epoch, and the position without them; none if all up to `end` are taken."""
    taken: list[Span] = []
    left = list(position.left)
    start = position.start
    missing = most
    while missing and left and (not taken or _epoch(left[0][0], epoch_size) == _epoch(taken[0][0], epoch_size)):
        first, last = left.pop(0)
        boundary = min(last, _epoch_end(first, epoch_size, last), first + missing)
        taken.append((first, boundary))
        missing -= boundary - first
        if boundary < last:
            left.insert(0, (boundary, last))
    if missing and not left and (end is None or start < end):
        boundary = min(
            start + missing, _epoch_end(start, epoch_size, start + missing), start + missing if end is None else end
        )
        if not taken or _epoch(taken[0][0], epoch_size) == _epoch(start, epoch_size):
            taken.append((start, boundary))
            start = boundary
    return merged(taken), Position(start, tuple(left))


def put_back(position: Position, spans: Iterable[Span]) -> Position:
    """The position when these samples, which were taken, are not done."""
    left = list(merged([*position.left, *spans]))
    start = position.start
    while left and left[-1][1] == start:
        # Nothing after it was taken: one position has one form.
        start = left.pop()[0]
    return Position(start, tuple(left))


def without(position: Position, spans: Iterable[Span]) -> Position:
    """The position when these samples, which were not done, are taken."""
    ordered = merged(spans)
    start = max([position.start, *(last for _, last in ordered)])
    undone = merged([*position.left, *([(position.start, start)] if start > position.start else [])])
    return Position(start, subtract(undone, ordered))


def split(spans: Sequence[Span], parts: int, unit: int = 1) -> tuple[tuple[Span, ...], ...]:
    """Cut into parts in order, as even as can be; with `unit`, only at multiples of it from the first sample on."""
    units = -(-count(spans) // unit)
    ends = [min(count(spans), unit * (units * (part + 1) // parts)) for part in range(parts)]
    return tuple(cut(spans, start, end) for start, end in zip([0, *ends], ends, strict=False))


def cut(spans: Iterable[Span], start: int, end: int) -> tuple[Span, ...]:
    """The samples from the `start`-th to before the `end`-th."""
    part: list[Span] = []
    before = 0
    for first, last in spans:
        low, high = max(first, first + start - before), min(last, first + end - before)
        if low < high:
            part.append((low, high))
        before += last - first
    return tuple(part)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same samples as spans in order that do not touch."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif start < end:
            result.append((start, end))
    return tuple(result)


def subtract(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """The samples that are in the first and not in the second."""
    result = list(spans)
    for low, high in others:
        pieces = (
            (max(start, first), min(end, last)) for start, end in result for first, last in ((start, low), (high, end))
        )
        result = [(start, end) for start, end in pieces if start < end]
    return merged(result)


def newly_done(before: Position, now: Position) -> tuple[Span, ...]:
    """What was not done before and is now."""
    undone = (*before.left, (before.start, now.start)) if now.start > before.start else before.left
    return subtract(undone, now.left)


class StepLedger:
    """How far one data set in lockstep is, as the workers report it."""

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec
        self.position = Position()

    @property
    def end(self) -> int | None:
        return None if self.spec.epoch_size is None else self.spec.epoch_size * self.spec.epochs

    @property
    def finished(self) -> bool:
        """Whether every sample of every epoch is done."""
        return self.position == Position(-1 if self.end is None else self.end)

    @property
    def committed_samples(self) -> int:
        return self.position.done

    @property
    def remaining_samples(self) -> int | None:
        """Samples not yet done; None for an endless stream."""
        return None if self.end is None else self.end - self.position.done

    @property
    def leased_shards(self) -> int:
        return 0

    @property
    def tasks_leased(self) -> int:
        return 0

    @property
    def retried_shards(self) -> int:
        return 0

    @property
    def epoch(self) -> int:
        """The first epoch that is not wholly done."""
        first = self.position.left[0][0] if self.position.left else self.position.start
        return _epoch(first, self.spec.epoch_size)

    def committed_in_epoch(self, epoch: int) -> int:
        size = self.spec.epoch_size
        if size is None:
            return self.position.done
        before, after = epoch * size, (epoch + 1) * size
        undone = count(subtract(self.position.left, [(0, before), (after, max(after, self.position.start))]))
        return max(0, min(size, self.position.start - before)) - undone

    def report(self, position: Position) -> tuple[Shard, ...]:
        """Take a position; the answer is what is done since the one before, cut at the ends of epochs.

        Raises InvalidInput for one that lies beyond the data set. A position that lies behind replaces the present one:
        its workers lost what they had, and began anew.
        """
        if self.end is not None and position.start > self.end:
            raise InvalidInput(f'data set "{self.spec.name}": position {position.start} is beyond its end {self.end}')
        new = newly_done(self.position, position)
        self.position = position
        return tuple(shard for span in new for shard in self._shards(*span))

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {"start": self.position.start, "left": self.position.left}

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # it knows no times
        """Take the state of a snapshot."""
        self.position = Position(state["start"], tuple((start, end) for start, end in state["left"]))

    def _shards(self, start: int, end: int) -> Iterator[Shard]:
        size = self.spec.epoch_size or end
        while start < end:
            stop = min(end, (start // size + 1) * size)
            epoch = _epoch(start, self.spec.epoch_size)
            yield Shard(epoch, start - epoch * size, stop - epoch * size)
            start = stop


def _epoch(number: int, epoch_size: int | None) -> int:
    return 0 if epoch_size is None else number // epoch_size


def _epoch_end(number: int, epoch_size: int | None, fallback: int) -> int:
    return fallback if epoch_size is None else (number // epoch_size + 1) * epoch_size
