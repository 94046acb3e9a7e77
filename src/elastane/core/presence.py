"""The rule of presence: which nodes attend, so that a master that comes after another knows whom to await."""

from __future__ import annotations

from typing import Any

from elastane.model.ids import NodeName


class Presence:
    """The nodes whose streams are open."""

    def __init__(self) -> None:
        self.nodes: set[NodeName] = set()

    def arrived(self, node: NodeName) -> None:
        self.nodes.add(node)

    def gone(self, node: NodeName) -> None:
        """Its stream has ended or broke, or it was given up."""
        self.nodes.discard(node)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {"nodes": sorted(self.nodes)}

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # it knows no times
        """Take the state of a snapshot."""
        self.nodes = set(state["nodes"])
