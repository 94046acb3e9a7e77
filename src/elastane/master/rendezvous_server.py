"""RendezvousServer: tells the workers which world they form. The rules are `core.world`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from elastane.core.stalls import Stall, StallMeter
from elastane.core.world import Decision, Go, NextWorld, Rendezvous, Settled
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.world_store import WorldStore
from elastane.model.ids import NodeName
from elastane.model.world import World
from elastane.rpc.protos import node_pb2 as pb

SETTLE_S = 0.1
"""How long joins are gathered, when the job waits for more workers than are here."""

Tell = Callable[[NodeName, pb.MasterMessage], None]
"""Says something to a node, if its stream is open."""


class RendezvousServer:
    """The job's worlds: who is a member, in which rank, and who is to come or go next.

    `on_differ` is called with a reason when replicas that should be equal are not.
    """

    def __init__(
        self,
        events: EventLog,
        tell: Tell,
        *,
        min_size: int,
        max_size: int,
        target: int,
        journal: Journal,
        on_differ: Callable[[str], None],
    ) -> None:
        self.store = WorldStore()
        self._events = events
        self._tell = tell
        self._clock = journal.clock
        self._on_differ = on_differ
        rules = Rendezvous(min_size=min_size, max_size=max_size, target=target, settle_s=SETTLE_S)
        self._rules = journal.watch("world", rules)
        self._voters = self._rules.current.members
        self._went_to = 0
        """The last world whose members were all ready: they look into its store, even if it passes meanwhile."""
        self._stalls = StallMeter()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def world(self) -> World:
        """The current world."""
        return self._rules.current

    def join(self, node: NodeName, min_size: int = 0, max_size: int = 0) -> None:
        """A node wants to be a member; the limits that it knows of count too. Raises RequestRefused if none fits."""
        if min_size or max_size:
            self._rules.narrow(min_size, max_size)
        if self._rules.closed:
            self._tell_closed(node)
        self._carry_out(self._rules.join(node, self._clock()))

    def leave(self, node: NodeName) -> None:
        self._carry_out(self._rules.leave(node, self._clock()))

    def left(self, node: NodeName, goodbye: pb.Goodbye, *, trained: bool) -> None:
        """A node said goodbye; `trained` unless it only evaluated.

        With `over` no world is formed any more, and those who are here hear of it.
        """
        if trained and not goodbye.preempted:
            self.completed()
        if goodbye.over and not self._rules.closed:
            self._rules.close()
            for other in self._rules.here:
                self._tell_closed(other)
        self.lost(node)

    def lost(self, node: NodeName) -> None:
        self._carry_out(self._rules.lost(node, self._clock()))

    def broken(self, node: NodeName, version: int) -> None:
        self._carry_out(self._rules.broken(node, version, self._clock()))

    def ready(self, node: NodeName, version: int) -> None:
        self._carry_out(self._rules.ready(node, version, self._clock()))

    def moved(self, node: NodeName, version: int, rounds: int, checksum: str) -> None:
        state = f"{checksum} after {rounds}" if checksum else ""
        self._carry_out(self._rules.moved(node, version, self._clock(), state))

    def heard(self, node: NodeName, figures: pb.StepFigures) -> None:
        """A worker says what its steps took: that is also what a change of the world cost."""
        step_s = figures.span_s / figures.steps
        self._tell_cost(self._stalls.heard(node, step_s, figures.longest_step_s, self._clock()))

    def completed(self) -> None:
        """A worker is done, and has left; once all have, who comes later finds nothing to do."""
        self._rules.completed()

    def resume(self) -> None:
        """A master before this one died: go on in its place."""
        self.store.open(self._rules.current)
        if (coming := self._rules.next) is not None:
            self.store.open(coming.world)
        self._carry_out(self._rules.resume(self._clock()))

    def retell(self, node: NodeName) -> None:
        """A node comes back after a master died: tell it what it may not have heard."""
        if self._rules.closed:
            self._tell_closed(node)
        for decision in self._rules.retold(node):
            match decision:
                case NextWorld(world, recover):
                    self._tell(node, self._next_world(world, node, recover=recover))
                case Go(world, _):
                    self._tell(node, pb.MasterMessage(go_to_world=pb.GoToWorld(version=world.version)))
                case Settled(world):
                    self._tell(node, pb.MasterMessage(world_settled=pb.WorldSettled(version=world.version)))

    def set_target(self, workers: int) -> None:
        self._carry_out(self._rules.set_target(workers, self._clock()))

    def _tell_closed(self, node: NodeName) -> None:
        self._tell(node, pb.MasterMessage(next_world=pb.NextWorld(version=self.world.version, over=True)))

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._rules.tick(self._clock()))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case NextWorld(world, recover):
                    self._publish(world, recover=recover)
                case Go(world, voters):
                    self._voters = voters
                    self._went_to = world.version
                    message = pb.MasterMessage(go_to_world=pb.GoToWorld(version=world.version))
                    for node in dict.fromkeys((*world.members, *voters)):
                        self._tell(node, message)
                case Settled(world, states):
                    self._settled(world, states)
        due = self._rules.next_tick()
        if due is not None and self._timer is None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _publish(self, world: World, *, recover: bool) -> None:
        self._tell_cost(self._stalls.coming(self._rules.current.members))
        self._events.emit("world_next", version=world.version, size=len(world), recover=recover)
        self.store.keep_only({self._rules.current.version, self._went_to})
        self.store.open(world)
        for node in world.members:
            self._tell(node, self._next_world(world, node, recover=recover))

    def _tell_cost(self, stall: Stall | None) -> None:
        if stall is not None:
            self._events.emit(
                "world_cost",
                first=stall.first,
                version=stall.version,
                size=stall.size,
                stall_ms=round(1000 * stall.stall_s, 1),
                step_ms=round(1000 * stall.step_s, 1),
            )

    def _next_world(self, world: World, node: NodeName, *, recover: bool) -> pb.MasterMessage:
        over = self._rules.over and not self._rules.current.members
        rank = world.ranks[node]
        told = pb.NextWorld(version=world.version, size=len(world), rank=rank, recover=recover, over=over)
        return pb.MasterMessage(next_world=told)

    def _settled(self, world: World, states: dict[NodeName, str]) -> None:
        self._events.emit(
            "world_settled",
            version=world.version,
            members=list(world.members),
            checksums={node: state.split()[0] for node, state in states.items()},
        )
        self._stalls.settled(world.version, world.members, self._clock())
        self.store.keep_only({world.version})
        message = pb.MasterMessage(world_settled=pb.WorldSettled(version=world.version))
        for node in dict.fromkeys((*world.members, *self._voters)):
            self._tell(node, message)
        if len(set(states.values())) > 1:
            found = ", ".join(f"{node} {state}" for node, state in states.items())
            self._on_differ(f"replicas differ in world {world.version}: {found}")
