"""A check of this worker before it joins: one that computes wrongly or very slowly would spoil every step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from elastane.model.errors import NodeUnfit

SIZE = 256
TRIES = 5
TIMES_SLOWER = 20.0
"""Much more than the noise of a busy machine: each worker's best of some tries is compared."""


def measure(device: torch.device) -> float:
    """Seconds for a small matrix product, the best of some tries. Raises NodeUnfit if the product is wrong."""
    # Small whole numbers: every sum of products is exact, in whatever order it is made.
    rows = torch.arange(SIZE, dtype=torch.float32, device=device) % 7
    matrix = rows[:, None] + rows[None, :]
    expected = (
        (SIZE * rows[:, None] * rows[None, :]) + rows.square().sum() + rows.sum() * (rows[:, None] + rows[None, :])
    )
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        product = matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
        if not torch.equal(product, expected):
            raise NodeUnfit("this worker is kept out of the world: it computes a matrix product wrongly")
    return best


def compare(mine: float, others: Sequence[float]) -> None:
    """Raises NodeUnfit if this worker is much slower than the others."""
    if others and mine > TIMES_SLOWER * statistics.median(others):
        raise NodeUnfit(
            f"this worker is kept out of the world: a matrix product takes it {1000 * mine:.1f} ms, "
            f"and the others {1000 * statistics.median(others):.1f} ms"
        )
