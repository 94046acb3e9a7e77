"""Follows log files as they grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

NOT_NODES = frozenset({"master", "agent", "launcher"})
"""Logs of processes that no node is."""


class GrowingFile:
    """Reads what is new in a file, by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, *, last: bool = False) -> list[str]:
        """The new lines; at the `last` call also one that does not end. A file that is gone has none."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = len(data) if last else data.rfind(b"\n") + 1
        self._offset += whole
        return data[:whole].decode(errors="replace").splitlines()


class LogTail:
    """Reads what is new in a folder of logs, by whole lines."""

    def __init__(self, folder: Path, on_line: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._on_line = on_line
        self._files: dict[Path, GrowingFile] = {}

    def read(self, *, last: bool = False) -> None:
        """Pass on the new lines; at the `last` call also one that does not end."""
        for path in sorted(self._folder.glob("*.log")):
            if path.stem not in NOT_NODES:
                for line in self._files.setdefault(path, GrowingFile(path)).read(last=last):
                    self._on_line(path.stem, line)
