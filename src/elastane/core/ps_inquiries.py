"""The rules of asking: what must be known before anything is decided of a bucket whose server is gone.

burial    a server died: all others say what they have, and take nothing more of it
parting   two servers lost touch: both say what they have
missing   a bucket that its server gave away, and that nobody has said to have got: after a while all are asked
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

MISSING_S = 2.0
"""How long a bucket may be with nobody, as one that is on its way is for a moment, before it counts as lost."""


class Inquiries:
    """What was asked, and who has not answered yet."""

    def __init__(self) -> None:
        self.missing: dict[int, tuple[int, float]] = {}
        """The server that should have each bucket that is missing, and since when."""
        self._burials: dict[int, list[int]] = {}
        self._partings: dict[tuple[int, int], list[int]] = {}
        self._audit: list[int] | None = None

    @property
    def any_burial(self) -> bool:
        return bool(self._burials)

    @property
    def all_closed(self) -> bool:
        """Whether nothing is asked, and nothing is missing."""
        return not self._burials and not self._partings and not self.missing

    def unclear(self, server: int | None) -> bool:
        """Whether a server is gone, and not all have said what they had of it."""
        return server in self._burials

    def bury(self, dead: int, others: Iterable[int]) -> None:
        self._burials[dead] = list(others)

    def to_bury(self, server: int) -> list[int]:
        """The dead of whom a server has not said what it has."""
        return [dead for dead, waiting in self._burials.items() if server in waiting]

    def buried(self, server: int, dead: int) -> None:
        _discard(self._burials.get(dead, []), server)

    def part(self, server: int, peer: int) -> bool:
        """Two servers lost touch; false if that is known."""
        known = (server, peer) in self._partings
        self._partings.setdefault((server, peer), [server, peer])
        return not known

    def parted(self) -> set[tuple[int, int]]:
        """The pairs of which both have answered."""
        return {pair for pair, waiting in self._partings.items() if not waiting}

    def part_no_more(self, still: Collection[tuple[int | None, int | None]]) -> None:
        """What both have answered is decided, but for these pairs."""
        self._partings = {pair: waiting for pair, waiting in self._partings.items() if waiting or pair in still}

    def answered(self, server: int) -> None:
        """A server has said all that it has."""
        for waiting in (*self._partings.values(), self._audit or []):
            _discard(waiting, server)

    def ended(self, server: int) -> None:
        """Nobody waits for a server that is gone."""
        for waiting in (*self._burials.values(), self._audit or []):
            _discard(waiting, server)
        self._partings = {pair: waiting for pair, waiting in self._partings.items() if server not in pair}

    def close_burials(self) -> None:
        """Those of whom all have said what they had are buried."""
        self._burials = {dead: waiting for dead, waiting in self._burials.items() if waiting}

    def audit(self, servers: Iterable[int], now: float) -> list[int]:
        """Have all servers asked, if a bucket is missing for too long; the answer are those to ask."""
        if self._audit is not None or not self._late(now):
            return []
        self._audit = list(servers)
        return list(self._audit)

    def lost(self, now: float) -> list[int]:
        """The buckets that nobody has, once all have answered."""
        if self._audit != []:
            return []
        self._audit = None
        lost = self._late(now)
        for bucket in lost:
            del self.missing[bucket]
        return lost

    def next_audit(self) -> float | None:
        """When `audit` has something to do."""
        waits = [] if self._audit is not None else [since + MISSING_S for _, since in self.missing.values()]
        return min(waits, default=None)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {
            "burials": list(self._burials.items()),
            "partings": [[*pair, waiting] for pair, waiting in self._partings.items()],
            "missing": [[bucket, *found] for bucket, found in self.missing.items()],
            "audit": self._audit,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take the state of a snapshot."""
        self._burials = {dead: list(waiting) for dead, waiting in state["burials"]}
        self._partings = {(server, peer): list(waiting) for server, peer, waiting in state["partings"]}
        self.missing = {bucket: (server, since) for bucket, server, since in state["missing"]}
        self._audit = None if state["audit"] is None else list(state["audit"])

    def _late(self, now: float) -> list[int]:
        return [bucket for bucket, (_, since) in self.missing.items() if since + MISSING_S <= now]


def _discard(waiting: list[int], server: int) -> None:
    if server in waiting:
        waiting.remove(server)
