"""A job's folder in shared memory: what its nodes put there outlives them, and goes with the agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108  # the kernel's, not a place for temporary files


class SharedMemory:
    """The folder, which this process owns. `path` is None where there is no shared memory."""

    def __init__(self, memory: Path = MEMORY) -> None:
        self._prefix = f"elastane-{os.getuid()}-"
        self._descriptor = -1
        self.path: Path | None = None
        with contextlib.suppress(OSError):
            self._sweep(memory)
            while self.path is None:
                self.path = self._make(memory)

    def close(self) -> None:
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self.path = None

    def _make(self, memory: Path) -> Path | None:
        path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=memory))
        descriptor = _lock(path)
        # Another agent that sweeps may have taken it for one that was left behind.
        if descriptor is None or not path.exists():
            return None
        self._descriptor = descriptor
        return path

    def _sweep(self, memory: Path) -> None:
        """Remove what agents that were killed left behind."""
        for path in memory.glob(f"{self._prefix}*"):
            descriptor = _lock(path)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Lock a folder as long as the answer is open; None if another process has."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
