"""What the rest of a master asks of the one who manages its nodes, whether they are launched or come by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from elastane.core.nodes import Outcome
from elastane.model.ids import NodeName
from elastane.model.node import Node, NodeExit

OnNodeEnd = Callable[[Node, NodeExit], None]


class NodeManager(Protocol):
    """The nodes, and with them the job's end. Others follow along through the callbacks.

    `on_node_end` is called when a node has ended or is given up, `on_target` with how many workers the job is to have.
    """

    on_node_end: list[OnNodeEnd]
    on_target: list[Callable[[int], None]]
    pids: dict[NodeName, int]

    @property
    def stopping(self) -> bool:
        """Whether somebody ended the job."""

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; None while it goes on."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Every node that is worth showing, the ended ones too."""

    @property
    def target(self) -> int:
        """How many workers the job is to have."""

    def expects(self, name: str) -> bool:
        """Whether a node of this name may attend."""

    def is_server(self, name: NodeName) -> bool:
        """Whether this node is a parameter server."""

    def is_evaluator(self, name: NodeName) -> bool:
        """Whether this node evaluates, and does not train."""

    @property
    def evaluators_expected(self) -> bool:
        """Whether an evaluator lives, or is to be launched."""

    def error_of(self, outcome: Outcome) -> str:
        """What the node at fault printed last."""

    async def run(self) -> Outcome:
        """Follow the nodes to the job's end. Raises PlatformError if the platform is gone."""

    def scale(self, workers: int) -> None:
        """Grow or shrink. Raises RequestRefused."""

    def drain(self, name: str) -> None:
        """Let one node leave. Raises RequestRefused."""

    def stop(self, *, at_once: bool) -> None:
        """End the job."""

    def fail(self, reason: str) -> None:
        """End the job as failed, for a reason found elsewhere."""

    def abandon(self, reason: str) -> Outcome:
        """End the job as failed, without waiting for anybody."""

    def lost(self, name: NodeName, why: str) -> None:
        """A node is silent or stuck: give it up."""
