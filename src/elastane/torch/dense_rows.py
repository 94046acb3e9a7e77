"""The parameters of a model as rows of the servers' tables: a table for each group of the optimizer.

Every parameter begins a row of its own, so that one without a gradient in a step is left alone, as its optimizer would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn, optim

from elastane.model.errors import InvalidInput
from elastane.model.ps import Initializer, InitializerKind, TableSpec
from elastane.torch.server_optimizer import server_optimizer

ROW = 1024
"""How many numbers of a parameter are one row."""

PREFIX = "parameters."
"""What the names of these tables begin with."""

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


@dataclass
class _Place:
    """Where a parameter lies among the rows of its table."""

    parameter: nn.Parameter
    first: int
    rows: int
    gradient: Tensor
    """Its part of the table's gradients, in its own shape."""


class DenseRows:
    """The parameters of one group of the optimizer. Raises InvalidInput for what servers cannot hold."""

    def __init__(self, table: str, optimizer: optim.Optimizer, group: dict[str, Any]) -> None:
        self.spec = TableSpec(table, ROW, server_optimizer(optimizer, group), Initializer(InitializerKind.ZEROS))
        self._group = group
        parameters = [one for one in group["params"] if one.requires_grad]
        for one in parameters:
            if one.dtype != torch.float32:
                raise InvalidInput(f"optimizer: parameter servers hold float32, and a parameter is {one.dtype}")
        counts = [-(-one.numel() // ROW) for one in parameters]
        self.ids: Ids = np.arange(sum(counts), dtype=np.int64)
        self._values = torch.zeros(len(self.ids), ROW)
        self._gradients = torch.zeros(len(self.ids), ROW)
        self._places: list[_Place] = []
        first = 0
        for one, rows in zip(parameters, counts, strict=True):
            part = slice(first * ROW, first * ROW + one.numel())
            value = self._values.view(-1)[part].view(one.shape)
            value.copy_(one.detach())
            if one.device.type == "cpu":
                one.data = value  # What is loaded is there at once.
            self._places.append(_Place(one, first, rows, self._gradients.view(-1)[part].view(one.shape)))
            first += rows

    @property
    def lr(self) -> float:
        """The present rate of the group."""
        return float(self._group["lr"])

    @property
    def scale(self) -> float:
        """What a scheduler has made of the rate that the group began with."""
        initial = float(self._group.get("initial_lr", self._group["lr"]))
        return self.lr / initial if initial else 1.0

    @property
    def values(self) -> Rows:
        values: Rows = self._values.numpy()
        return values

    def load(self, rows: Rows) -> None:
        """Make these the parameters."""
        np.copyto(self.values, rows)
        for place in self._places:
            if place.parameter.device.type != "cpu":
                part = self._values.view(-1)[place.first * ROW :][: place.parameter.numel()]
                with torch.no_grad():
                    place.parameter.copy_(part.view(place.parameter.shape))

    def take_gradients(self, scale: float) -> tuple[Ids, Rows] | None:
        """The gradients of all parameters that have one, times a number; the parameters have none from here on.

        What it answers is good until the next call.
        """
        given = list(self._copied(scale))
        if not given:
            return None
        gradients: Rows = self._gradients.numpy()
        if len(given) == len(self._places):
            return self.ids, gradients
        chosen = np.concatenate([self.ids[place.first : place.first + place.rows] for place in given])
        return chosen, gradients[chosen]

    def _copied(self, scale: float) -> Iterator[_Place]:
        for place in self._places:
            gradient = place.parameter.grad
            if gradient is None:
                continue
            place.parameter.grad = None
            place.gradient.copy_(gradient.detach())
            if scale != 1.0:
                place.gradient.mul_(scale)
            yield place
