"""What a row is before its first update: a pure function of the seed, its table, its id and the column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from elastane.model.ps import Initializer, InitializerKind
from elastane.ps.addresses import floats
from elastane.ps.compiled import part
from elastane.ps.hashing import hash64, hash64_plain

ZEROS, UNIFORM, NORMAL = 0, 1, 2
NUMBERS = {InitializerKind.ZEROS: ZEROS, InitializerKind.UNIFORM: UNIFORM, InitializerKind.NORMAL: NORMAL}


def stream_of(initializer: Initializer, salt: int) -> int:
    """64 bits that all values of one table are drawn from."""
    return hash64_plain(initializer.seed, salt)


@part
def fill_initial(at: Any, dim: Any, kind: Any, scale: Any, stream: Any, key: Any) -> Any:
    """Write the weights that an id begins with. One hash gives two columns their 32 random bits each."""
    weights = floats(at, dim)
    if kind == ZEROS:
        for column in range(dim):
            weights[column] = np.float32(0.0)
        return
    base = hash64(key, np.uint64(stream))
    for pair in range((dim + 1) // 2):
        bits = hash64(np.uint64(pair), base)
        first = (np.float64(bits >> np.uint64(32)) + 0.5) * 2.0**-32
        second = (np.float64(bits & np.uint64(0xFFFFFFFF)) + 0.5) * 2.0**-32
        if kind == NORMAL:
            radius = math.sqrt(-2.0 * math.log(first))
            angle = 2.0 * math.pi * second
            first = scale * radius * math.cos(angle)
            second = scale * radius * math.sin(angle)
        else:
            first = scale * (2.0 * first - 1.0)
            second = scale * (2.0 * second - 1.0)
        weights[2 * pair] = np.float32(first)
        if 2 * pair + 1 < dim:
            weights[2 * pair + 1] = np.float32(second)
