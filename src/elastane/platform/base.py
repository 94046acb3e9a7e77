"""What a platform does for a job: carry out scale plans, and report what became of the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from elastane.model.event import NodeEvent
from elastane.model.plan import ScalePlan
from elastane.model.quantity import Memory


class Scaler(Protocol):
    """Carries out scale plans."""

    async def scale(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        """Launch and remove nodes. Returns when the platform has taken the plan, not when it is done.

        A removed node is asked to leave and killed after the grace period; with `at_once` it is killed now. Raises
        PlatformError if the platform is gone.
        """


class NodeMonitor(Protocol):
    """Reports what became of nodes."""

    async def known(self) -> Sequence[NodeEvent]:
        """What there is to know of every node that was ever launched, for a master that comes after another.

        The last word on a node counts. Raises PlatformError if the platform is gone.
        """

    def events(self) -> AsyncIterator[NodeEvent]:
        """Every change, in order for each node. Ends with PlatformError if the platform is gone."""


class Platform(Scaler, NodeMonitor, Protocol):
    """A place where nodes live."""

    def free_memory(self) -> Memory | None:
        """What is left for more nodes; None where nobody knows."""
