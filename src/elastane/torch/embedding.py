"""Embedding: a module whose rows live on the parameter servers, and only those of the present batch are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elastane.model.errors import InvalidInput
from elastane.model.ps import TableSpec
from elastane.ps.keys import unique
from elastane.ps.lookups import combine, combine_pooled, pool, spread

if TYPE_CHECKING:
    from elastane.torch.step_rows import StepRows

Bag = Literal["sum", "mean"]
Positions = npt.NDArray[np.int64]


class Lookup:
    """The rows of one batch in one table, each once, and their gradients."""

    def __init__(self, table: str, dim: int, ids: Tensor) -> None:
        self.table = table
        self.dim = dim
        self._ids = ids
        self._version = _version(ids)
        self.unique, self.inverse = unique(ids.detach().cpu().reshape(-1).numpy())
        self.rows: npt.NDArray[np.float32] | None = None
        self.gradients: npt.NDArray[np.float32] | None = None

    def is_of(self, ids: Tensor) -> bool:
        """Whether this is the lookup of just this tensor."""
        return ids is self._ids and _version(ids) == self._version

    def gradients_to_add_to(self) -> npt.NDArray[np.float32]:
        if self.gradients is None:
            self.gradients = np.zeros((len(self.unique), self.dim), np.float32)
        return self.gradients


class Embedding(nn.Module):
    """Looks ids up in a table of the parameter servers. `job.embedding` makes it.

    It has no parameters of its own: the servers apply its optimizer to the gradients that `trainer.step` pushes.
    """

    def __init__(self, spec: TableSpec, rows: StepRows, bag: Bag | None) -> None:
        super().__init__()
        if bag not in (None, "sum", "mean"):
            raise InvalidInput(f'embedding "{spec.name}": bag {bag!r} is not "sum", "mean" or None')
        self.spec = spec
        self.bag = bag
        self._rows = rows
        # Something must want a gradient, or none would come back.
        self._anchor = torch.zeros((), requires_grad=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        """A module for the same rows."""
        made = Embedding(self.spec, self._rows, self.bag)
        made.train(self.training)
        memo[id(self)] = made
        return made

    def extra_repr(self) -> str:
        bag = "" if self.bag is None else f", bag={self.bag!r}"
        return f"{self.spec.name!r}, dim={self.spec.dim}, optimizer={self.spec.optimizer.kind}{bag}"

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The rows of these ids: the shape of `ids`, and then `dim`.

        With a bag the rows of the last dimension's ids become one; with `offsets`, as in torch.nn.EmbeddingBag, `ids`
        has one dimension, and each bag begins at one of them. Raises InvalidInput.
        """
        if ids.dtype not in (torch.int64, torch.int32):
            raise InvalidInput(f'embedding "{self.spec.name}": ids are int64, not {ids.dtype}')
        shape, starts = self._layout(ids, offsets)
        training = torch.is_grad_enabled()
        lookup = self._rows.look_up(self.spec, ids, training=training)
        if training:
            out: Tensor = _Spread.apply(  # type: ignore[no-untyped-call]
                self._anchor, lookup, shape, starts, self.bag == "mean", self._rows
            )
        else:
            out = _spread(lookup, shape, starts, mean=self.bag == "mean")
        return out if ids.device.type == "cpu" else out.to(ids.device)

    def _layout(self, ids: Tensor, offsets: Tensor | None) -> tuple[tuple[int, ...], Positions | None]:
        """The shape of the answer, and where the bags begin and end among the ids."""
        name, dim = self.spec.name, self.spec.dim
        if self.bag is None:
            if offsets is not None:
                raise InvalidInput(f'embedding "{name}": offsets are for bags; make it with bag="sum" or "mean"')
            return (*ids.shape, dim), None
        if offsets is None:
            if ids.dim() == 0:
                raise InvalidInput(f'embedding "{name}": a bag has ids in a dimension, and this is a single one')
            size = ids.shape[-1]
            bags = ids.numel() // size if size else int(np.prod(ids.shape[:-1]))
            return (*ids.shape[:-1], dim), np.arange(bags + 1, dtype=np.int64) * size
        if ids.dim() != 1 or offsets.dim() != 1:
            raise InvalidInput(f'embedding "{name}": with offsets, ids and offsets have one dimension each')
        starts = np.append(offsets.detach().cpu().numpy().astype(np.int64), ids.numel())
        if starts[0] != 0 or (np.diff(starts) < 0).any():
            raise InvalidInput(f'embedding "{name}": offsets begin with 0 and grow up to the number of ids')
        return (len(starts) - 1, dim), starts


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,  # noqa: ARG004  # it is what autograd follows
        lookup: Lookup,
        shape: tuple[int, ...],
        starts: Positions | None,
        mean: bool,
        rows: StepRows,
    ) -> Tensor:
        ctx.of = (lookup, starts, mean, rows)
        return _spread(lookup, shape, starts, mean=mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        lookup, starts, mean, rows = ctx.of
        rows.has_gradients(lookup)
        values = gradient.contiguous().numpy()
        into = lookup.gradients_to_add_to()
        if starts is None:
            combine(values, lookup.inverse, into)
        else:
            combine_pooled(values, lookup.inverse, starts, into, mean=mean)
        return (None,) * 6


def _version(ids: Tensor) -> int:
    """A number that a change in place raises, where PyTorch counts them."""
    return 0 if ids.is_inference() else ids._version


def _spread(lookup: Lookup, shape: tuple[int, ...], starts: Positions | None, *, mean: bool) -> Tensor:
    out = torch.empty(shape)
    if lookup.rows is None:
        raise AssertionError("a lookup without its rows")
    if starts is None:
        spread(lookup.rows, lookup.inverse, out.numpy())
    else:
        pool(lookup.rows, lookup.inverse, starts, out.numpy(), mean=mean)
    return out
