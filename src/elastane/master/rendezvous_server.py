"""RendezvousServer: tells the workers which world they form. The rules are `core.world`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from elastane.core.world import Decision, Go, NextWorld, Rendezvous, Settled
from elastane.master.event_log import EventLog
from elastane.model.ids import NodeName
from elastane.model.world import World
from elastane.rpc.protos import node_pb2 as pb

SETTLE_S = 0.1
"""How long joins are gathered, when the job waits for more workers than are here."""

Tell = Callable[[NodeName, pb.MasterMessage], None]
"""Says something to a node, if its stream is open."""


class RendezvousServer:
    """The job's worlds: who is a member, in which rank, and who is to come or go next."""

    def __init__(
        self, events: EventLog, tell: Tell, *, min_size: int, max_size: int, target: int, clock: Callable[[], float]
    ) -> None:
        self._events = events
        self._tell = tell
        self._clock = clock
        self._rules = Rendezvous(min_size=min_size, max_size=max_size, target=target, settle_s=SETTLE_S)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def world(self) -> World:
        """The current world."""
        return self._rules.current

    def join(self, node: NodeName) -> None:
        self._carry_out(self._rules.join(node, self._clock()))

    def leave(self, node: NodeName) -> None:
        self._carry_out(self._rules.leave(node, self._clock()))

    def lost(self, node: NodeName) -> None:
        self._carry_out(self._rules.lost(node, self._clock()))

    def ready(self, node: NodeName, version: int) -> None:
        self._carry_out(self._rules.ready(node, version, self._clock()))

    def moved(self, node: NodeName, version: int) -> None:
        self._carry_out(self._rules.moved(node, version, self._clock()))

    def set_target(self, workers: int) -> None:
        self._carry_out(self._rules.set_target(workers, self._clock()))

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._rules.tick(self._clock()))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case NextWorld(world, recover):
                    self._publish(world, recover=recover)
                case Go(world):
                    message = pb.MasterMessage(go_to_world=pb.GoToWorld(version=world.version))
                    for node in world.members:
                        self._tell(node, message)
                case Settled(world):
                    self._events.emit("world_settled", version=world.version, members=list(world.members))
        due = self._rules.next_tick()
        if due is not None and self._timer is None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _publish(self, world: World, *, recover: bool) -> None:
        self._events.emit("world_next", version=world.version, size=len(world), recover=recover)
        for node, rank in world.ranks.items():
            told = pb.NextWorld(version=world.version, size=len(world), rank=rank)
            self._tell(node, pb.MasterMessage(next_world=told))
