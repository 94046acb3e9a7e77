"""What a change of the world cost: how long the workers that stayed had to wait for a step, beyond a usual one.

Workers say about once a second how long their steps took. A change is measured from the moment its world is published
until every member that stayed has said what its steps in the new world took.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from elastane.model.ids import NodeName

SEEN_S = 0.5
"""What a worker says so soon after a change is hardly about steps in the new world."""


@dataclass(frozen=True)
class Stall:
    """The longest step of those who stayed was so much longer than the usual one.

    Where worlds followed each other too fast to tell them apart, it is that of all from `first` to `version`.
    """

    first: int
    version: int
    size: int
    stall_s: float
    step_s: float
    """The usual one, before the change."""


@dataclass
class _Change:
    before: frozenset[NodeName]
    usual_s: float
    first: int = 0
    longest_s: dict[NodeName, float] = field(default_factory=dict)
    version: int = 0
    size: int = 0
    settled_at: float | None = None
    stayed: frozenset[NodeName] = frozenset()
    unheard: set[NodeName] = field(default_factory=set)


class StallMeter:
    """Measures one change at a time; one that begins before anything was heard of the last is measured with it."""

    def __init__(self) -> None:
        self._step_s: dict[NodeName, float] = {}
        self._change: _Change | None = None

    def coming(self, members: Iterable[NodeName]) -> Stall | None:
        """A next world was published to the members of this one. The answer is what is known of the change before."""
        change = self._change
        if change is not None and (change.settled_at is None or change.unheard == change.stayed):
            change.settled_at = None
            return None  # It is the same change, with another world at its end.
        known = None if change is None else self._end(change)
        before = frozenset(members)
        steps = [step_s for node, step_s in self._step_s.items() if node in before]
        self._change = _Change(before, statistics.median(steps)) if steps else None
        return known

    def settled(self, version: int, members: Iterable[NodeName], now: float) -> None:
        """Every member is in the next world."""
        new = frozenset(members)
        self._step_s = {node: step_s for node, step_s in self._step_s.items() if node in new}
        change = self._change
        if change is None:
            return
        change.first = change.first or version
        change.version, change.size, change.settled_at = version, len(new), now
        change.stayed = change.before & new
        change.unheard = set(change.stayed)
        if not change.stayed:
            self._change = None

    def heard(self, node: NodeName, step_s: float, longest_s: float, now: float) -> Stall | None:
        """A worker says what its steps took, and the longest of them. The answer is a change that is measured now."""
        change = self._change
        if change is None:
            self._step_s[node] = step_s
            return None
        change.longest_s[node] = max(longest_s, change.longest_s.get(node, 0.0))
        if change.settled_at is None or now < change.settled_at + SEEN_S:
            return None
        self._step_s[node] = step_s
        change.unheard.discard(node)
        return None if change.unheard else self._end(change)

    def _end(self, change: _Change) -> Stall | None:
        self._change = None
        longest = [change.longest_s[node] for node in change.stayed if node in change.longest_s]
        if not longest:
            return None
        return Stall(change.first, change.version, change.size, max(0.0, max(longest) - change.usual_s), change.usual_s)
