"""Follows log files as they grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_NOT_NODES = frozenset({"master", "agent"})


class LogTail:
    """Reads what is new in a folder of logs, by whole lines."""

    def __init__(self, folder: Path, on_line: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._on_line = on_line
        self._offsets: dict[Path, int] = {}

    def read(self, *, last: bool = False) -> None:
        """Pass on the new lines; at the `last` call also one that does not end."""
        for path in sorted(self._folder.glob("*.log")):
            if path.stem not in _NOT_NODES:
                self._offsets[path] = self._read_one(path, self._offsets.get(path, 0), last=last)

    def _read_one(self, path: Path, offset: int, *, last: bool) -> int:
        if path.stat().st_size <= offset:
            return offset
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        whole = len(data) if last else data.rfind(b"\n") + 1
        for line in data[:whole].decode(errors="replace").splitlines():
            self._on_line(path.stem, line)
        return offset + whole
