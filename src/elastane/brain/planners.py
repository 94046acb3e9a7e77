"""The processes that make the plans, beside the one that serves."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

from elastane.platform.local.prctl import die_with_parent


def start_planners() -> ProcessPoolExecutor:
    """Start half as many as there are cores, without waiting until they are ready."""
    count = max(1, (os.cpu_count() or 1) // 2)
    planners = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_begin)
    for _ in range(count):
        planners.submit(_load)
    return planners


def _begin() -> None:
    die_with_parent()  # Also when it is killed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is told to all; the one that serves knows what to do.


def _load() -> None:
    """Import what the first plan would wait for."""
    import scipy.optimize  # noqa: F401

    from elastane.brain import advisor  # noqa: F401
