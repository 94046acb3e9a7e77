"""GradientBuckets: gradients summed over the workers in a few large pieces, each as soon as backward has filled it.

A bucket is a copy: the gradients themselves stay as they are until every bucket has been summed. So when a world breaks
in the middle, nothing is lost, and the same gradients are summed again in the next one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from elastane.model.errors import InvalidInput
from elastane.torch.groups import Group, WorldBroken

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
"""A small first bucket starts the traffic early; large ones keep it efficient."""


@dataclass
class _Bucket:
    parameters: list[int]
    offsets: list[int]
    size: int
    dtype: torch.dtype
    device: torch.device


class _Flats:
    """One set of buffers, with a view for each parameter. It may be held by those who still read the last sums."""

    def __init__(self, buckets: Sequence[_Bucket], parameters: Sequence[Tensor]) -> None:
        self.tensors = [torch.zeros(bucket.size, dtype=bucket.dtype, device=bucket.device) for bucket in buckets]
        self.views: list[Tensor] = [torch.empty(0)] * len(parameters)
        for bucket, flat in zip(buckets, self.tensors, strict=True):
            for index, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                parameter = parameters[index]
                self.views[index] = flat[offset : offset + parameter.numel()].view(parameter.shape)
        self.used = self.tensors[-1][buckets[-1].size - len(parameters) :]
        """How many workers had a gradient, for each parameter."""
        self.holders = 0


class GradientBuckets:
    """The gradients of some parameters, and their sums."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._buckets = _partition(self._parameters)
        self._place = {index: number for number, b in enumerate(self._buckets) for index in b.parameters}
        self._sets = [_Flats(self._buckets, self._parameters)]
        self._active = self._sets[0]
        self._released = threading.Condition()
        self._hooks: list[Any] = []
        self._overlap = False
        self._group: Group | None = None
        self._weight = 1.0
        self._waiting: list[int] = []
        self._copied: dict[int, bool] = {}
        """Which gradients are in their buckets, and whether there were any."""
        self._works: list[Work] = []
        self._broken: WorldBroken | None = None

    @property
    def flats(self) -> Sequence[Tensor]:
        """The sums of the last round."""
        return self._active.tensors

    def begin(self, group: Group, weight: float, *, overlap: bool) -> None:
        """Sum this worker's gradients, times `weight`; with `overlap` during the backward that follows."""
        self._group = group
        self._weight = weight
        self._works = []
        self._broken = None
        self._copied = {}
        self._waiting = [len(bucket.parameters) for bucket in self._buckets]
        self._active = self._free_set()
        self._overlap = overlap

    def watch(self, *, on: bool) -> None:
        """Whether to be called during backward: a worker that is alone need not be."""
        if on and not self._hooks:
            for index, parameter in enumerate(self._parameters):
                if not parameter.requires_grad:
                    continue
                register: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.append(register(self._hook(index)))
        elif not on:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []

    def finish(self, *, contributes: bool) -> None:
        """Send what was not sent yet, and wait for all sums. Raises WorldBroken; the gradients are as they were."""
        group = self._group
        if group is None:
            raise WorldBroken("no sums were begun")
        self._overlap = False
        for index in range(len(self._parameters)):
            if index not in self._copied:
                self._copy(index, contributes=contributes)
        if self._broken is None:
            self._send(len(self._buckets))
        for work in self._works:
            try:
                group.finish(work)
            except WorldBroken as error:
                self._broken = self._broken or error
        if self._broken is not None:
            raise self._broken

    def abandon(self) -> None:
        """Wait until nobody reads or writes the buffers any more, whatever is in them."""
        self._overlap = False
        group, works = self._group, self._works
        self._works = []
        if group is not None:
            for work in works:
                with contextlib.suppress(WorldBroken):
                    group.finish(work)

    def take_sums(self, scale: float | None) -> None:
        """Make the sums, times `scale`, the gradients; a parameter that nobody had a gradient for has none."""
        used = self._active.used.tolist()
        for parameter, view, users in zip(self._parameters, self._active.views, used, strict=True):
            if not users:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = view.clone() if scale is None else view * scale
            elif scale is None:
                parameter.grad.copy_(view)
            else:
                torch.mul(view, scale, out=parameter.grad)

    def copy_in(self) -> None:
        """Put this worker's own gradients where the sums are: alone, they are the sums."""
        self._active = self._free_set()
        self._weight = 1.0
        self._copied = {}
        self._waiting = []
        for index in range(len(self._parameters)):
            self._copy(index, contributes=True)
        self._write_used()

    def receive(self, receive: Callable[[Tensor], None]) -> None:
        """Take sums that another worker sent, in the place of this worker's own."""
        for flat in self._active.tensors:
            if flat.is_cuda:
                staged = torch.empty_like(flat, device="cpu")
                receive(staged)
                flat.copy_(staged)
            else:
                receive(flat)

    def hold(self) -> Callable[[], None]:
        """Keep the sums of the last round until the answer is called."""
        held = self._active
        held.holders += 1

        def release() -> None:
            with self._released:
                held.holders -= 1
                self._released.notify_all()

        return release

    def wait_for_room(self) -> None:
        """Wait until the next sums have a place."""
        self._free_set()

    def _free_set(self) -> _Flats:
        """Buffers that nobody reads: the present ones, or others while those are held."""
        with self._released:
            if len(self._sets) == 1 and self._active.holders:
                self._sets.append(_Flats(self._buckets, self._parameters))
            self._released.wait_for(lambda: any(not flats.holders for flats in self._sets))
            return next(flats for flats in self._sets if not flats.holders)

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        bucket = self._place[index]

        def ready(_: Tensor) -> None:
            if not self._overlap:
                return
            self._copy(index, contributes=True)
            if not self._waiting[bucket] and self._broken is None:
                # All workers must send in the same order.
                upto = next((n for n, waiting in enumerate(self._waiting) if waiting), len(self._waiting))
                try:
                    self._send(upto)
                except WorldBroken as error:
                    self._broken = error  # Backward goes on: its gradients will be needed.

        return ready

    @torch.no_grad()
    def _copy(self, index: int, *, contributes: bool) -> None:
        gradient = self._parameters[index].grad if contributes else None
        view = self._active.views[index]
        if gradient is None:
            view.zero_()
        elif gradient.is_sparse:
            raise InvalidInput("trainer: sparse gradients cannot be averaged; use Embedding(sparse=False)")
        elif self._weight == 1.0:
            view.copy_(gradient)
        else:
            torch.mul(gradient, self._weight, out=view)
        self._copied[index] = gradient is not None
        if self._waiting:
            self._waiting[self._place[index]] -= 1

    def _send(self, upto: int) -> None:
        if self._group is None:
            return
        if upto == len(self._buckets):
            self._write_used()
        while len(self._works) < upto:
            self._works.append(self._group.start_sum(self._active.tensors[len(self._works)]))

    def _write_used(self) -> None:
        flags = [float(self._copied[index]) for index in range(len(self._parameters))]
        self._active.used.copy_(torch.tensor(flags, dtype=self._active.used.dtype))


def _partition(parameters: Sequence[Tensor]) -> list[_Bucket]:
    """Backward comes to the last parameters first: so do the buckets. The last one has room for the use of each."""
    buckets: list[_Bucket] = []
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        most = BUCKET_BYTES if len(buckets) > 1 else FIRST_BUCKET_BYTES
        last = buckets[-1] if buckets else None
        if (
            last is None
            or (last.dtype, last.device) != (parameter.dtype, parameter.device)
            or last.size * parameter.element_size() >= most
        ):
            last = _Bucket([], [], 0, parameter.dtype, parameter.device)
            buckets.append(last)
        last.parameters.append(index)
        last.offsets.append(last.size)
        last.size += parameter.numel()
    buckets[-1].size += len(parameters)
    return buckets
