"""What changed who trains, for the chart of the workers, in bounded memory. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_MARKS = 500


@dataclass
class Mark:
    """Something that changed who trains, and what it cost, once that is known."""

    number: int
    at: float
    kind: str
    """join, drain, crash or resize"""
    text: str
    node: str = ""
    version: int = 0
    """Of the world that it led to; 0 until there is one."""
    stall_ms: float | None = None


class Marks:
    """The newest marks; of those before it is only known how many they were."""

    def __init__(self, most: int = MOST_MARKS) -> None:
        if most < 1:
            raise ValueError(f"most: {most} is below 1")
        self._most = most
        self._marks: list[Mark] = []
        self.total = 0

    def add(self, at: float, kind: str, text: str, node: str = "", version: int = 0) -> Mark:
        self.total += 1
        mark = Mark(self.total, at, kind, text, node, version)
        self._marks.append(mark)
        if len(self._marks) > self._most:
            # A tenth at a time, so that one more does not move all.
            del self._marks[: max(1, self._most // 10)]
        return mark

    def cost(self, first: int, version: int, stall_ms: float) -> list[Mark]:
        """What the changes to these worlds cost; the answer is their marks."""
        found = [mark for mark in self._marks if first <= mark.version <= version]
        for mark in found:
            mark.stall_ms = stall_ms
        return found

    @property
    def dropped(self) -> int:
        return self.total - len(self._marks)

    def __iter__(self) -> Iterator[Mark]:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)
