"""TaskRecovery: task fault tolerance. What a lost worker held goes to others as soon as it is known to be lost."""

from __future__ import annotations

import asyncio

from elastane.master.task_manager import TaskManager
from elastane.model.ids import NodeName
from elastane.model.node import ExitReason, Node, NodeExit

EXIT_WORD_S = 1.0
"""After a stream broke, how long the node manager has to say why, before the node's leases go to others."""

_BLAMED = frozenset({ExitReason.ERROR, ExitReason.OOM, ExitReason.LOST})
"""The ends of a worker that count as a failed try of the shard that it worked on."""


class TaskRecovery:
    """Follows the nodes on the task manager's behalf."""

    def __init__(self, task_manager: TaskManager) -> None:
        self._task_manager = task_manager
        self._awaiting_word: dict[NodeName, asyncio.TimerHandle] = {}

    def attended(self, name: NodeName) -> None:
        """It is back; what it holds from now on is its own."""
        if timer := self._awaiting_word.pop(name, None):
            timer.cancel()

    def disconnected(self, name: NodeName) -> None:
        """The stream broke: the process died, or only the connection did. Soon somebody knows which."""
        loop = asyncio.get_running_loop()
        self._awaiting_word[name] = loop.call_later(EXIT_WORD_S, self._return_shards, name, None)

    def ended(self, node: Node, exit: NodeExit) -> None:
        blamed = exit.reason in _BLAMED and not node.is_released
        self._return_shards(node.name, f"{node.short_name} ended ({exit.reason})" if blamed else None)

    def _return_shards(self, name: NodeName, error: str | None) -> None:
        self.attended(name)
        self._task_manager.worker_lost(name, error)
