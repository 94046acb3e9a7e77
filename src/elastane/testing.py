"""For tests: a platform whose nodes exist only in memory, so that a master can be driven without processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.node import ExitReason, Node, NodeExit, NodeStatus
from elastane.model.plan import ScalePlan


class MemoryPlatform:
    """Says of every node that it runs as soon as it is launched; a node ends when the test, or a plan, says so."""

    change_cost_s = 2.0

    def __init__(self) -> None:
        self.nodes: dict[NodeName, Node] = {}
        """The nodes that live."""
        self._events: asyncio.Queue[NodeEvent] = asyncio.Queue()
        self._known: dict[NodeName, NodeEvent] = {}

    async def scale(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        for node in plan.launch_nodes:
            self.nodes[node.name] = node
            self._say(NodeEvent(node.name, NodeStatus.RUNNING))
        for node in plan.remove_nodes:
            self.end(node.name, ExitReason.KILLED if at_once else ExitReason.DONE)

    def end(self, name: NodeName, reason: ExitReason) -> None:
        """Let a node end; nothing happens if it has ended before."""
        if self.nodes.pop(name, None) is not None:
            done = reason is ExitReason.DONE
            status = NodeStatus.SUCCEEDED if done else NodeStatus.FAILED
            self._say(NodeEvent(name, status, exit=NodeExit(reason, 0 if done else 1)))

    async def known(self) -> list[NodeEvent]:
        return list(self._known.values())

    async def events(self) -> AsyncIterator[NodeEvent]:
        while True:
            yield await self._events.get()

    def room(self) -> None:
        """Nodes that exist only in memory need none."""

    def _say(self, event: NodeEvent) -> None:
        self._known[event.node] = event
        self._events.put_nowait(event)
