"""Compiled kernels are kept: the next process does not compile them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np
from elastane.ps.hashing import fill_buckets
from elastane.ps.store import Store
Store(4).buckets_of(np.zeros(1, np.uint32), np.ones(1, np.uint32), np.zeros(1, np.int64))
print(sum(fill_buckets.stats.cache_hits.values()), sum(fill_buckets.stats.cache_misses.values()))
"""


def run(folder: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=100
    ).stdout.strip()


def test_a_kernel_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    assert run(tmp_path) == "0 1"
    assert run(tmp_path) == "1 0"
    (place,) = tmp_path.iterdir()
    assert place.name.startswith("kernels-")


def test_a_kernel_is_compiled_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert run(tmp_path / "file").split()[0] == "0"
