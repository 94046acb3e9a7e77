"""ClosureFeed: tells the coordinator of a job which workers there are, and a leaving worker when it may go.

It keeps nothing over the death of a master: every node says again what it said, and the coordinator goes on with the
workers that it has.
"""

from __future__ import annotations

from collections.abc import Callable

from elastane.master.event_log import EventLog
from elastane.model.ids import NodeName
from elastane.rpc import closure_wire
from elastane.rpc.protos import node_pb2 as pb

Tell = Callable[[NodeName, pb.MasterMessage], None]


class ClosureFeed:
    """The addresses at which nodes run closures, and the node that coordinates."""

    def __init__(self, events: EventLog, tell: Tell) -> None:
        self._events = events
        self._tell = tell
        self._serving: dict[NodeName, str] = {}
        self._leaving: dict[NodeName, str] = {}
        self._coordinator: NodeName | None = None
        self._using: frozenset[str] = frozenset()
        self._over = False

    def handle(self, name: NodeName, message: pb.NodeMessage) -> None:
        """What a worker or the coordinator says. Raises MalformedMessage."""
        if message.WhichOneof("body") == "serve_closures":
            self._serves(name, closure_wire.checked_service(message.serve_closures))
        else:
            self._coordinates(name, closure_wire.checked_use(message.coordinate))

    def gone(self, name: NodeName) -> None:
        """A node has ended, or its stream has: the coordinator sees by itself that a connection broke."""
        self._serving.pop(name, None)
        self._leaving.pop(name, None)
        if name == self._coordinator:
            self._coordinator, self._using = None, frozenset()
            self._let_go()

    def _serves(self, name: NodeName, service: pb.ServeClosures) -> None:
        if service.leaving:
            self._serving.pop(name, None)
            self._leaving[name] = service.address
        elif self._serving.get(name) != service.address:
            self._events.emit("worker_serves", node=name, address=service.address)
            self._serving[name] = service.address
        if self._over:
            self._tell(name, pb.MasterMessage(closures_over=pb.ClosuresOver()))
        self._tell_coordinator()
        self._let_go()

    def _coordinates(self, name: NodeName, use: pb.Coordinate) -> None:
        new = name != self._coordinator
        self._coordinator = name
        if self._using != frozenset(use.using):
            self._events.emit("coordinator_workers", node=name, workers=sorted(use.using))
        self._using = frozenset(use.using)
        if use.over:
            self._over = True
            for node in (*self._serving, *self._leaving):
                self._tell(node, pb.MasterMessage(closures_over=pb.ClosuresOver()))
        elif new:
            self._over = False
            self._tell_coordinator()
        self._let_go()

    def _tell_coordinator(self) -> None:
        if self._coordinator is not None:
            told = pb.ClosureWorkers(serving=self._serving.values(), leaving=self._leaving.values())
            self._tell(self._coordinator, pb.MasterMessage(closure_workers=told))

    def _let_go(self) -> None:
        for node, address in self._leaving.items():
            if address not in self._using:
                self._tell(node, pb.MasterMessage(closures_over=pb.ClosuresOver()))
