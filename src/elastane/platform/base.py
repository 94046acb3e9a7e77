"""What a platform does for a job: carry out scale plans, and report what became of the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastane.model.event import NodeEvent
from elastane.model.plan import ScalePlan
from elastane.model.quantity import Memory


@dataclass(frozen=True)
class Room:
    """What a platform has for a job's nodes: the cores that all may use together, and the memory that is left."""

    cpu: float
    free_memory: Memory


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

    change_cost_s: float
    """Seconds of training that it may cost to launch or remove nodes, until a job has measured it."""

    def room(self) -> Room | None:
        """What the nodes may take; None where nobody knows."""
