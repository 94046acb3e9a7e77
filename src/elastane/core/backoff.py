"""How long to wait before the next try: twice as long each time, with full jitter, up to a limit."""

from __future__ import annotations

import random
from collections.abc import Iterator


def delays(first_s: float, most_s: float, rng: random.Random) -> Iterator[float]:
    """Endless delays; the jitter keeps many clients from coming back at the same moment."""
    ceiling = first_s
    while True:
        yield rng.uniform(0, ceiling)
        ceiling = min(most_s, ceiling * 2)
