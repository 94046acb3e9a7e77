"""What the tests' closures do, on the workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from elastane.core.owners import OwnerMap
from elastane.ps.closure_client import ClosureClient
from tests.integration.ps_driver import COUNTING, TOKEN


def counting_client(owner_map: OwnerMap) -> ClosureClient:
    client = ClosureClient(owner_map, TOKEN, owner_map.n_buckets, timeout_s=60)
    client.define(COUNTING)
    return client


def count(client: ClosureClient, row: int) -> int:
    """Add 1 to a row; the answer is this process."""
    client.push({COUNTING.name: (np.array([row]), np.full((1, COUNTING.dim), -1, np.float32))}, {}, 0)
    return os.getpid()


def count_and_be_killed_once(client: ClosureClient, row: int, marker: Path) -> None:
    """Count twice; in the first run the process is killed between that and its answer."""
    count(client, row)
    count(client, row)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


def take_next(numbers: Iterator[int]) -> int:
    return next(numbers)


def fail(text: str) -> None:
    raise LookupError(text)
