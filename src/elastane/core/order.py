"""Which sample stands at which position of an epoch: a keyed permutation that needs no memory.

A shuffled epoch must have one order for all workers, known without a list of all indices. A Feistel network over the
bits of the position is a permutation of a power of two; positions that land outside the data set walk on along their
cycle until they land inside, which leaves a permutation of exactly `size` samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elastane.model.dataset import DatasetSpec

_ROUNDS = 8
_WORD = (1 << 64) - 1

U64Array = npt.NDArray[np.uint64]


def sample_indices(spec: DatasetSpec, epoch: int, start: int, end: int) -> list[int]:
    """The samples at positions `start` to `end` (exclusive) of the epoch's order."""
    size = spec.epoch_size
    if not spec.shuffle or size is None:
        positions = list(range(start, end))
    else:
        positions = permute(np.arange(start, end, dtype=np.uint64), size, spec.seed, epoch).tolist()
    if spec.indices is None:
        return positions
    return [spec.indices[position] for position in positions]


def permute(positions: U64Array, size: int, seed: int, epoch: int) -> U64Array:
    """Map distinct positions below `size` to distinct samples below `size`, the same for equal seed and epoch."""
    bits = max(2, (size - 1).bit_length())
    keys = _round_keys(seed, epoch)
    samples = _feistel(positions, bits, keys)
    outside = samples >= size
    while outside.any():
        samples[outside] = _feistel(samples[outside], bits, keys)
        outside = samples >= size
    return samples


def _feistel(values: U64Array, bits: int, keys: list[int]) -> U64Array:
    """One pass of an unbalanced Feistel network: the two halves change width from round to round."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left = values >> np.uint64(right_bits)
    right = values & np.uint64((1 << right_bits) - 1)
    for key in keys:
        mixed = left ^ (_mix(right, key) & np.uint64((1 << left_bits) - 1))
        left, right = right, mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mix(values: U64Array, key: int) -> U64Array:
    """Spread each value over 64 bits (the finalizer of splitmix64; overflow wraps, as it should)."""
    with np.errstate(over="ignore"):
        mixed = (values + np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> list[int]:
    state = np.array([seed & _WORD], dtype=np.uint64)
    state = _mix(state, epoch & _WORD)
    keys = []
    for round_number in range(_ROUNDS):
        state = _mix(state, round_number + 1)
        keys.append(int(state[0]))
    return keys
