"""Where buckets should be: the home of each, and of its backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastane.core import rebalance
from elastane.core.owners import Entry


class Homes:
    """The server that should own each bucket, and the one that should have its second copy; None before the first."""

    def __init__(self, n_buckets: int, *, with_backups: bool) -> None:
        self.owners: list[int | None] = [None] * n_buckets
        self.backups: list[int | None] = [None] * n_buckets
        self._with_backups = with_backups

    def spread(self, cluster: Sequence[int], entries: Sequence[Entry]) -> None:
        """Spread the buckets evenly over these servers, moving as few as that needs."""
        self.owners = list(rebalance.even(self.owners, cluster))
        self._place_backups(cluster, entries)

    def move(self, moves: Sequence[tuple[int, int]], cluster: Sequence[int], entries: Sequence[Entry]) -> None:
        """Give these buckets to these servers."""
        for bucket, server in moves:
            self.owners[bucket] = server
        self._place_backups(cluster, entries)

    def has(self, bucket: int, entry: Entry) -> bool:
        """Whether a bucket is at home, and its backup too."""
        return entry.owner == self.owners[bucket] and entry.backup == self.backups[bucket]

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {"owners": self.owners, "backups": self.backups}

    def load(self, state: dict[str, Any]) -> None:
        """Take the state of a snapshot."""
        self.owners = list(state["owners"])
        self.backups = list(state["backups"])

    def _place_backups(self, cluster: Sequence[int], entries: Sequence[Entry]) -> None:
        if not self._with_backups:
            return
        homes = [home for home in self.owners if home is not None]
        # A bucket that moves leaves its second copy where it was.
        present = [
            entry.owner if entry.owner != home else wanted
            for entry, home, wanted in zip(entries, homes, self.backups, strict=True)
        ]
        self.backups = rebalance.backups(homes, present, cluster)
