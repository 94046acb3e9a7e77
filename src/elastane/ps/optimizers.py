"""How a gradient changes a row. The rules are those of torch.optim, applied to one row; FTRL is McMahan's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elastane.model.ps import OptimizerKind, OptimizerSpec
from elastane.ps.addresses import WORD, floats, load_f64
from elastane.ps.compiled import part
from elastane.ps.slab import WEIGHTS

SGD, MOMENTUM, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = range(6)
NUMBERS = {
    OptimizerKind.SGD: SGD,
    OptimizerKind.MOMENTUM: MOMENTUM,
    OptimizerKind.ADAGRAD: ADAGRAD,
    OptimizerKind.ROWWISE_ADAGRAD: ROWWISE_ADAGRAD,
    OptimizerKind.ADAM: ADAM,
    OptimizerKind.FTRL: FTRL,
}

# The settings of an optimizer as kernels have them: one row of float64 numbers.
DECAY, FACTOR, DAMPENING, NESTEROV, EPS, ACCUMULATOR, BETA1, BETA2, BETA, L1, L2 = range(11)
SETTINGS = 11


def settings_of(spec: OptimizerSpec) -> npt.NDArray[np.float64]:
    """The settings of an optimizer, for kernels."""
    return np.array(
        [
            spec.weight_decay,
            spec.momentum,
            spec.dampening,
            spec.nesterov,
            spec.eps,
            spec.initial_accumulator_value,
            *spec.betas,
            spec.beta,
            spec.l1,
            spec.l2,
        ],
        np.float64,
    )


@part
def setting(settings: Any, which: Any) -> Any:
    """One of the settings at an address."""
    return load_f64(settings + 8 * which)


@part
def fill_slots(at: Any, kind: Any, dim: Any, settings: Any) -> Any:
    """Write the slots that a row begins with."""
    if kind == SGD:
        return
    count = dim
    if kind == ROWWISE_ADAGRAD:
        count = np.int64(1)
    elif kind in (ADAM, FTRL):
        count = 2 * dim
    slots = floats(at + WEIGHTS + WORD * dim, count)
    for i in range(count):
        slots[i] = np.float32(0.0)
    if kind in (ADAGRAD, ROWWISE_ADAGRAD):
        for i in range(count):
            slots[i] = np.float32(setting(settings, ACCUMULATOR))
    elif kind == FTRL:
        for i in range(dim):
            slots[dim + i] = np.float32(setting(settings, ACCUMULATOR))


@part
def _sgd(w: Any, g: Any, dim: Any, lr: Any, decay: Any) -> Any:
    for i in range(dim):
        w[i] -= lr * (g[i] + decay * w[i])


@part
def _momentum(w: Any, g: Any, s: Any, dim: Any, lr: Any, settings: Any, updates: Any) -> Any:
    decay = np.float32(setting(settings, DECAY))
    factor = np.float32(setting(settings, FACTOR))
    share = np.float32(1.0 - setting(settings, DAMPENING))
    if updates == 0:
        factor = np.float32(0.0)
        share = np.float32(1.0)
    ahead = np.float32(setting(settings, FACTOR))
    if setting(settings, NESTEROV) != 0.0:
        for i in range(dim):
            d = g[i] + decay * w[i]
            s[i] = factor * s[i] + share * d
            w[i] -= lr * (d + ahead * s[i])
    else:
        for i in range(dim):
            s[i] = factor * s[i] + share * (g[i] + decay * w[i])
            w[i] -= lr * s[i]


@part
def _adagrad(w: Any, g: Any, s: Any, dim: Any, lr: Any, settings: Any) -> Any:
    decay = np.float32(setting(settings, DECAY))
    eps = np.float32(setting(settings, EPS))
    for i in range(dim):
        d = g[i] + decay * w[i]
        s[i] += d * d
        w[i] -= lr * d / (np.sqrt(s[i]) + eps)


@part
def _rowwise_adagrad(w: Any, g: Any, s: Any, dim: Any, lr: Any, settings: Any) -> Any:
    decay = np.float32(setting(settings, DECAY))
    total = np.float32(0.0)
    for i in range(dim):
        d = g[i] + decay * w[i]
        total += d * d
    s[0] += total / np.float32(dim)
    rate = lr / (np.sqrt(s[0]) + np.float32(setting(settings, EPS)))
    for i in range(dim):
        w[i] -= rate * (g[i] + decay * w[i])


@part
def _adam(w: Any, g: Any, s: Any, v: Any, dim: Any, lr: Any, settings: Any, updates: Any) -> Any:
    decay = np.float32(setting(settings, DECAY))
    eps = np.float32(setting(settings, EPS))
    beta2 = np.float32(setting(settings, BETA2))
    share1 = np.float32(1.0 - setting(settings, BETA1))
    share2 = np.float32(1.0 - setting(settings, BETA2))
    times = np.float64(updates + 1)
    rate = np.float32(np.float64(lr) / (1.0 - setting(settings, BETA1) ** times))
    root = np.float32(np.sqrt(1.0 - setting(settings, BETA2) ** times))
    for i in range(dim):
        d = g[i] + decay * w[i]
        s[i] += share1 * (d - s[i])
        v[i] = beta2 * v[i] + share2 * d * d
        w[i] -= rate * s[i] / (np.sqrt(v[i]) / root + eps)


@part
def _ftrl(w: Any, g: Any, z: Any, n: Any, dim: Any, lr: Any, settings: Any) -> Any:
    beta = np.float32(setting(settings, BETA))
    l1 = np.float32(setting(settings, L1))
    l2 = np.float32(setting(settings, L2))
    for i in range(dim):
        d = g[i]
        after = n[i] + d * d
        z[i] += d - (np.sqrt(after) - np.sqrt(n[i])) / lr * w[i]
        n[i] = after
        if abs(z[i]) <= l1:
            w[i] = np.float32(0.0)
        else:
            pull = l1 if z[i] > np.float32(0.0) else -l1
            w[i] = (pull - z[i]) / ((beta + np.sqrt(after)) / lr + l2)


@part
def update_row(row: Any, kind: Any, dim: Any, gradient_at: Any, lr: Any, settings: Any, updates: Any) -> Any:
    """Apply a gradient to the row at an address, which has had so many updates before."""
    w = floats(row + WEIGHTS, dim)
    g = floats(gradient_at, dim)
    s = floats(row + WEIGHTS + WORD * dim, dim)
    if kind == ADAGRAD:
        _adagrad(w, g, s, dim, lr, settings)
    elif kind == SGD:
        _sgd(w, g, dim, lr, np.float32(setting(settings, DECAY)))
    elif kind == ADAM:
        _adam(w, g, s, floats(row + WEIGHTS + 2 * WORD * dim, dim), dim, lr, settings, updates)
    elif kind == MOMENTUM:
        _momentum(w, g, s, dim, lr, settings, updates)
    elif kind == ROWWISE_ADAGRAD:
        _rowwise_adagrad(w, g, s, dim, lr, settings)
    else:
        _ftrl(w, g, s, floats(row + WEIGHTS + 2 * WORD * dim, dim), dim, lr, settings)
