"""Memory limits without privileges: the memory of a process and of all that it started, looked at often."""

from __future__ import annotations

from pathlib import Path

import psutil


class MemoryWatch:
    """Compares one process tree's memory with its limit."""

    EVERY_S = 0.1
    _FAMILY_EVERY = 10
    """The tree is walked at every tenth look only: finding children reads all of /proc."""

    def __init__(self, pid: int, limit_bytes: int) -> None:
        self._root = psutil.Process(pid)
        self._limit = limit_bytes
        self._family = [self._root]
        self._looks = 0

    @property
    def limit_mib(self) -> int:
        return self._limit >> 20

    def over_limit(self) -> int | None:
        """The bytes in use if they are above the limit.

        The resident size, which is cheap to read, counts shared pages once for each process; so a tree that is above
        by it is measured again by its proportional size.
        """
        try:
            if self._looks % self._FAMILY_EVERY == 0:
                self._family = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return None
        self._looks += 1
        if sum(_read(process, full=False) for process in self._family) <= self._limit:
            return None
        used = sum(_read(process, full=True) for process in self._family)
        return used if used > self._limit else None


def _read(process: psutil.Process, *, full: bool) -> int:
    try:
        return int(process.memory_full_info().pss if full else process.memory_info().rss)
    except psutil.Error:
        return 0  # It has ended, or is of another user now.


def kernel_oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory so far."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
