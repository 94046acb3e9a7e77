"""Reference: what the kernels do, said again in numpy and torch, slowly and plainly. They are checked against it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elastane.model.ps import InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.hashing import hash64_plain
from elastane.ps.initial import stream_of


def initial_weights(spec: TableSpec, key: int) -> Tensor:
    """The weights that an id of a table begins with."""
    kind, scale = spec.initializer.kind, spec.initializer.scale
    if kind is InitializerKind.ZEROS:
        return torch.zeros(spec.dim)
    base = hash64_plain(key, stream_of(spec.initializer, spec.salt))
    bits = [hash64_plain(pair, base) for pair in range((spec.dim + 1) // 2)]
    first = (np.array([one >> 32 for one in bits], np.float64) + 0.5) * 2.0**-32
    second = (np.array([one & 0xFFFFFFFF for one in bits], np.float64) + 0.5) * 2.0**-32
    if kind is InitializerKind.NORMAL:
        radius = np.sqrt(-2 * np.log(first))
        columns = scale * radius * np.stack([np.cos(2 * np.pi * second), np.sin(2 * np.pi * second)])
    else:
        columns = scale * (2 * np.stack([first, second]) - 1)
    return torch.from_numpy(columns.T.reshape(-1)[: spec.dim].astype(np.float32))


def initial_slots(spec: OptimizerSpec, rows: int, dim: int) -> Tensor:
    """The slots that rows begin with."""
    slots = torch.zeros(rows, spec.slot_floats(dim))
    if spec.kind in (OptimizerKind.ADAGRAD, OptimizerKind.ROWWISE_ADAGRAD):
        slots += spec.initial_accumulator_value
    elif spec.kind is OptimizerKind.FTRL:
        slots[:, dim:] += spec.initial_accumulator_value
    return slots


def update(spec: OptimizerSpec, weights: Tensor, slots: Tensor, updates: Tensor, gradients: Tensor, lr: float) -> None:
    """Apply gradients to rows, in place. `updates` says how many updates each row has had before."""
    dim = weights.shape[1]
    if spec.weight_decay:
        gradients = gradients + spec.weight_decay * weights
    match spec.kind:
        case OptimizerKind.SGD:
            weights -= lr * gradients
        case OptimizerKind.MOMENTUM:
            again = spec.momentum * slots + (1 - spec.dampening) * gradients
            slots.copy_(torch.where(updates[:, None] == 0, gradients, again))
            weights -= lr * (gradients + spec.momentum * slots if spec.nesterov else slots)
        case OptimizerKind.ADAGRAD:
            slots += gradients.square()
            weights -= lr * gradients / (slots.sqrt() + spec.eps)
        case OptimizerKind.ROWWISE_ADAGRAD:
            slots += gradients.square().mean(1, keepdim=True)
            weights -= lr * gradients / (slots.sqrt() + spec.eps)
        case OptimizerKind.ADAM:
            mean, square = slots[:, :dim], slots[:, dim:]
            times = (updates[:, None] + 1).double()
            mean.lerp_(gradients, 1 - spec.betas[0])
            square.mul_(spec.betas[1]).addcmul_(gradients, gradients, value=1 - spec.betas[1])
            root = (1 - spec.betas[1] ** times).sqrt().float()
            weights -= (lr / (1 - spec.betas[0] ** times)).float() * mean / (square.sqrt() / root + spec.eps)
        case OptimizerKind.FTRL:
            linear, total = slots[:, :dim], slots[:, dim:]
            after = total + gradients.square()
            linear += gradients - (after.sqrt() - total.sqrt()) / lr * weights
            total.copy_(after)
            shrunk = linear.sign() * (linear.abs() - spec.l1).clamp(min=0)
            weights.copy_(-shrunk / ((spec.beta + after.sqrt()) / lr + spec.l2))
