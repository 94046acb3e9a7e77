"""A forward and backward before a worker trains with others: a process takes several times as long for its first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def rehearse(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    """Compute a loss and its gradients, and leave the model and the random numbers as they were."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({parameter.get_device() for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices):
        loss().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    model.zero_grad(set_to_none=True)
