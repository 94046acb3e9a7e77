"""Control: what the workers tell each other in every round, as one vector that is summed beside the gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elastane.model.errors import InvalidInput
from elastane.model.world import Place

_FIXED = 6


@dataclass(frozen=True)
class Control:
    """One worker's word before the sum, everybody's after it.

    Data sets are told apart by their marks: the marks of `k` workers are all equal exactly if `k` times the sum of
    their squares is the square of their sum.
    """

    vector: Tensor
    size: int

    @classmethod
    def of(
        cls, place: Place, *, samples: float, votes: bool, mark: int, taken: int, held: int, averaged: Tensor
    ) -> Control:
        """A worker's own word. The averaged buffers count by the samples that it holds."""
        head = torch.zeros(_FIXED + place.size, dtype=torch.float64)
        fixed = [samples, float(votes), float(mark > 0), mark, mark * mark, held]
        head[:_FIXED] = torch.tensor(fixed, dtype=torch.float64)
        head[_FIXED + place.rank] = taken
        weighted = averaged * held if held else torch.zeros_like(averaged)
        return cls(torch.cat([head, weighted]), place.size)

    @classmethod
    def alone(cls, *, samples: float, votes: bool, taken: int) -> Control:
        """The word of a worker that is alone, which is everybody's."""
        return cls(torch.tensor([samples, float(votes), 0, 0, 0, 0, taken], dtype=torch.float64), 1)

    def check(self) -> None:
        """Raises InvalidInput if the workers are in loops over different data sets."""
        workers, marks, squares = self.vector[2:5].tolist()
        if workers * squares != marks * marks:
            raise InvalidInput("trainer: workers take batches of different data sets in the same step")

    @property
    def samples(self) -> float:
        """How many samples the gradients are from."""
        return float(self.vector[0])

    @property
    def votes(self) -> int:
        """How many workers could move to the next world."""
        return int(self.vector[1])

    @property
    def mark(self) -> int:
        """The data set that the samples are from; 0 for none."""
        workers, marks = self.vector[2:4].tolist()
        return round(marks / workers) if workers else 0

    @property
    def taken(self) -> list[int]:
        """How many samples each rank took."""
        return [int(number) for number in self.vector[_FIXED : _FIXED + self.size].tolist()]

    @property
    def averaged(self) -> Tensor | None:
        """The mean of the buffers; None if nobody held a sample that they could be from."""
        held = float(self.vector[5])
        return self.vector[_FIXED + self.size :] / held if held else None
