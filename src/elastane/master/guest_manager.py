"""GuestManager: the nodes that others start. It launches none, follows who is here, and ends when it is told to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from elastane.core.nodes import JobEnd, Outcome
from elastane.master.event_log import EventLog
from elastane.master.node_manager import OnNodeEnd
from elastane.model.errors import RequestRefused
from elastane.model.ids import JobName, NodeName
from elastane.model.node import ExitReason, Node, NodeExit, NodeStatus, NodeType
from elastane.rpc.protos import node_pb2 as pb

MOST_GUESTS = 10_000
RETURN_S = 1.0
"""After a guest's stream broke, how long it has to open another before it counts as gone."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class GuestManager:
    """A NodeManager for a job whose nodes come by themselves. Any holder of the token may come, under any name.

    All that it knows of its guests are their streams, so that is what it must be told of: `attended`, `disconnected`
    and `left`. If nobody tells it, it follows nobody, and only keeps the job's end.
    """

    def __init__(self, job: JobName, events: EventLog) -> None:
        self.on_node_end: list[OnNodeEnd] = []
        self.on_target: list[Callable[[int], None]] = []
        self.pids: dict[NodeName, int] = {}
        self.stopping = False
        self.outcome: Outcome | None = None
        self._job = job
        self._events = events
        self._guests: dict[NodeName, Node] = {}
        self._count = 0
        self._leaving: dict[NodeName, asyncio.TimerHandle] = {}
        self._ended = asyncio.Event()

    @property
    def nodes(self) -> Sequence[Node]:
        return tuple(self._guests.values())

    @property
    def target(self) -> int:
        """Nobody is waited for: as many as are here."""
        return sum(not guest.status.final for guest in self._guests.values())

    def expects(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and (name in self._guests or self.target < MOST_GUESTS)

    def is_evaluator(self, name: NodeName) -> bool:  # noqa: ARG002  # guests only train
        return False

    def is_server(self, name: NodeName) -> bool:  # noqa: ARG002  # likewise
        return False

    evaluators_expected = False

    def error_of(self, outcome: Outcome) -> str:  # noqa: ARG002  # a guest's output is not seen here
        return ""

    async def run(self) -> Outcome:
        while self.outcome is None:
            await self._ended.wait()
        return self.outcome

    def scale(self, workers: int) -> None:
        raise RequestRefused(f'workers: {workers} cannot be launched; the workers of job "{self._job}" start elsewhere')

    def drain(self, name: str) -> None:
        raise RequestRefused(f'node "{name}" was not launched by job "{self._job}"; ask it to leave where it was')

    def stop(self, *, at_once: bool) -> None:  # noqa: ARG002  # nobody is there to be waited for
        self.stopping = True
        self._end(Outcome(JobEnd.STOPPED))

    def fail(self, reason: str) -> None:
        self._end(Outcome(JobEnd.FAILED, reason))

    def abandon(self, reason: str) -> Outcome:
        return self._end(Outcome(JobEnd.FAILED, reason))

    def attended(self, name: NodeName) -> None:
        """A guest has opened a stream; one that had ended starts a new life under its old name."""
        self._still_here(name)
        known = self._guests.pop(name, None)
        if known is None or known.status.final:
            self._make_room()
            known = Node(
                self._job,
                NodeType.WORKER,
                id=self._count,
                slot=self._count,
                status=NodeStatus.RUNNING,
                relaunchable=False,
                given_name=name,
            )
            self._count += 1
        self._guests[name] = known

    def disconnected(self, name: NodeName) -> None:
        """A guest's stream broke. Nobody can say why, so it is waited for, and then it is gone."""
        loop = asyncio.get_running_loop()
        self._leaving[name] = loop.call_later(RETURN_S, self._guest_ended, name, NodeExit(ExitReason.KILLED))

    def left(self, name: NodeName, goodbye: pb.Goodbye) -> None:
        reason = ExitReason.PREEMPTED if goodbye.preempted else ExitReason.DONE
        self._guest_ended(name, NodeExit(reason))

    def lost(self, name: NodeName, why: str) -> None:
        self._events.emit("node_lost", node=name, reason=why)
        self._guest_ended(name, NodeExit(ExitReason.LOST, log_tail=why))

    def _guest_ended(self, name: NodeName, node_exit: NodeExit) -> None:
        self._still_here(name)
        guest = self._guests.get(name)
        if guest is None or guest.status.final:
            return
        done = node_exit.reason is ExitReason.DONE
        guest = guest.moved_to(NodeStatus.SUCCEEDED if done else NodeStatus.FAILED, node_exit)
        self._guests[name] = guest
        self._events.emit(
            "node_ended", node=name, status=guest.status, reason=node_exit.reason, code=None, released=False, error=None
        )
        for callback in self.on_node_end:
            callback(guest, node_exit)

    def _still_here(self, name: NodeName) -> None:
        if timer := self._leaving.pop(name, None):
            timer.cancel()

    def _make_room(self) -> None:
        """Forget those who ended longest ago, so that a master may serve for ever."""
        ended = [name for name, guest in self._guests.items() if guest.status.final]
        for name in ended[: max(0, len(self._guests) + 1 - MOST_GUESTS)]:
            del self._guests[name]

    def _end(self, outcome: Outcome) -> Outcome:
        """The first end counts."""
        self.outcome = self.outcome or outcome
        self._ended.set()
        return self.outcome
