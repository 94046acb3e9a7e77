"""VirtualRanks: gradients that are the same to the last bit, whatever the number of workers.

Sums of floating-point numbers depend on their order. So the parts of a global batch are fixed: each is a virtual rank,
whichever worker computes it, starting from the same buffers and the same random numbers. Every part's gradient is kept
apart, and they are added in the order of the parts. That costs as many times the memory and traffic as there are parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elastane.torch.groups import Group
from elastane.torch.replica import Replica


class VirtualRanks:
    """The parts of one round that this worker has computed, and their sum with all others."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._parts: dict[int, list[Tensor | None]] = {}
        self._buffers = torch.zeros(0, dtype=torch.float64)
        self._mean = self._buffers

    def start(self, number: int) -> None:
        """Before a part is computed: its random numbers depend on the step and on the part alone."""
        if not self._parts:
            self._buffers = self._replica.averaged_values()
        torch.manual_seed((self._replica.steps << 24) + number)

    def keep(self, number: int, samples: float) -> None:
        """Put the gradients of a part aside, and go back to the buffers from before it."""
        gradients = [None if p.grad is None else p.grad * samples for p in self._replica.trained]
        self._parts[number] = [*gradients, self._replica.averaged_values() * samples]
        self._replica.load_averaged(self._buffers)
        self._replica.optimizer.zero_grad(set_to_none=True)

    def clear(self) -> None:
        self._parts = {}

    def sum(self, group: Group | None, parts: int, samples: float) -> None:
        """Make the mean over all parts the gradients, on every worker. Raises WorldBroken; the parts stay."""
        like: list[Tensor] = [*self._replica.trained, self._buffers_like()]
        means = [self._mean_of(group, index, tensor, parts, samples) for index, tensor in enumerate(like)]
        for parameter, mean in zip(self._replica.trained, means[:-1], strict=True):
            parameter.grad = mean
        self._mean = torch.zeros(0, dtype=torch.float64) if means[-1] is None else means[-1]

    def load_buffers(self) -> None:
        """The mean of the buffers over all parts of the last sum."""
        self._replica.load_averaged(self._mean)

    def _buffers_like(self) -> Tensor:
        return torch.zeros(sum(buffer.numel() for buffer in self._replica.averaged), dtype=torch.float64)

    def _mean_of(self, group: Group | None, index: int, like: Tensor, parts: int, samples: float) -> Tensor | None:
        rows = torch.zeros(parts, like.numel() + 1, dtype=like.dtype, device=like.device)
        for number, values in self._parts.items():
            value = values[index]
            if value is not None:
                rows[number, :-1] += value.reshape(-1)  # Added to zero, as every other worker's is.
                rows[number, -1] = 1
        if group is not None and group.place.size > 1:
            group.finish(group.start_sum(rows))
        if not rows[:, -1].any():
            return None
        return _in_order(list(rows[:, :-1])).div_(samples).view(like.shape)


def _in_order(rows: Sequence[Tensor]) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
