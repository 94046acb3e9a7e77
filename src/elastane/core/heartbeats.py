"""The rule of silence: who has not been heard for longer than the limit."""

from __future__ import annotations

from elastane.model.ids import NodeName


class Heartbeats:
    """When each node was last heard. A watcher that was itself asleep blames nobody for the silence."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._heard: dict[NodeName, float] = {}
        self._looked: float | None = None

    @property
    def interval_s(self) -> float:
        """How often a node should speak, so that a few lost beats do not lose it."""
        return self.limit_s / 5

    @property
    def look_every_s(self) -> float:
        """How often `silent` should be asked, so that silence is seen soon after the limit."""
        return self.limit_s / 20

    def heard(self, node: NodeName, now: float) -> None:
        self._heard[node] = now

    def forget(self, node: NodeName) -> None:
        self._heard.pop(node, None)

    def silent(self, now: float) -> tuple[NodeName, ...]:
        """The nodes that are silent past the limit; they are forgotten with this answer."""
        slept = self._looked is not None and now - self._looked > self.limit_s / 2
        self._looked = now
        if slept:
            self._heard = dict.fromkeys(self._heard, now)
            return ()
        # One look early, so that silence is known within the limit and not one look after it.
        late = tuple(node for node, heard in self._heard.items() if now - heard > self.limit_s - self.look_every_s)
        for node in late:
            del self._heard[node]
        return late
