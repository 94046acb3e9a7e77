"""Members of a world as they are in real life: each hears late, builds when it can, and may die at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.core.world import Decision, Go, NextWorld, Phase, Rendezvous, Settled
from elastane.model.ids import NodeName
from elastane.model.world import World
from tests.property.restarting_journal import RestartingJournal

SETTLE_S = 1.0
MOST_NODES = 6


@dataclass
class Member:
    """One worker: the world it works in, the next one it knows of, and what it has not heard yet."""

    name: NodeName
    world: World | None = None
    stopped: bool = False
    """Its world is broken: it waits for the next one."""
    next: NextWorld | None = None
    built: int = 0
    go: int = 0
    leaving: bool = False
    away: bool = False
    """The server died, and this member has not found the next one yet."""
    inbox: list[Decision] = field(default_factory=list)
    said: list[tuple[str, int]] = field(default_factory=list)
    """What the server has not heard yet, in order."""


class WorldMachine(RuleBasedStateMachine):
    """A server and its members, with messages on the way both ways."""

    rendezvous_class: type[Rendezvous] = Rendezvous

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.count = 0
        self.alive: dict[NodeName, Member] = {}
        self.lost_unheard: list[NodeName] = []

    @initialize(low=st.integers(1, 3), more=st.integers(0, 3), aim=st.integers(1, 5))
    def start(self, low: int, more: int, aim: int) -> None:
        self.low, self.high = low, low + more
        self.aim = aim
        self.journal = RestartingJournal()
        self.server = self.journal.watch(self._make())
        for _ in range(low):
            self.join()

    @precondition(lambda self: len(self.alive) < MOST_NODES)
    @rule()
    def join(self) -> None:
        member = Member(NodeName(f"job-worker-{self.count}"))
        self.count += 1
        self.alive[member.name] = member
        member.said.append(("join", 0))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self._draw(data)
        if not member.leaving and sum(not other.leaving for other in self.alive.values()) > self.low:
            member.leaving = True
            member.said.append(("leave", 0))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self._die(self._draw(data))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die_in_the_vote(self, data: st.DataObject) -> None:
        """One dies in the all-reduce that decides: some of the others have its result, some have not."""
        victim = self._draw(data)
        voters = self._voters(victim.world)
        if not voters:
            return
        seen = data.draw(st.lists(st.sampled_from([member.name for member in voters]), unique=True))
        self._die(victim)
        self._move([member for member in voters if member is not victim and member.name in seen])

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_connection_breaks(self, data: st.DataObject) -> None:
        """A member can no longer step, though nobody died: it says so, and waits."""
        member = self._draw(data)
        if member.world is not None and not member.stopped:
            member.stopped = True
            member.said.append(("broken", member.world.version))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_build_fails(self, data: st.DataObject) -> None:
        """A member cannot connect to the others of the next world, says so, and does not try again by itself."""
        member = self._draw(data)
        if self._is_to_build(member) and member.next is not None:
            member.built = member.next.world.version
            member.said.append(("broken", member.built))

    @rule()
    def the_server_dies(self) -> None:
        """With it all that was on its way is lost, and nobody hears or is heard before coming back."""
        for member in self.alive.values():
            member.away = True
            member.inbox.clear()
            member.said.clear()
        self.server = self.journal.restart(self.server, self._make())
        self._tell(self.server.resume(self.now))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_member_comes_back(self, data: st.DataObject) -> None:
        self._come_back(self._draw(data))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def the_server_hears(self, data: st.DataObject) -> None:
        self._server_hears(self._draw(data))

    @precondition(lambda self: self.lost_unheard)
    @rule(data=st.data())
    def the_server_notices_a_loss(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.lost_unheard))
        self.lost_unheard.remove(name)
        self._tell(self.server.lost(name, self.now))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_member_hears(self, data: st.DataObject) -> None:
        self._member_hears(self._draw(data))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_member_builds(self, data: st.DataObject) -> None:
        self._build(self._draw(data))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_world_steps(self, data: st.DataObject) -> None:
        self._step(self._draw(data).world)

    @rule(rounds=st.integers(1, 4))
    def all_talk(self, rounds: int) -> None:
        """All that is on its way arrives, and all that can be built is: so that long histories are reached too."""
        for _ in range(rounds):
            self._all_talk()
            self.now += SETTLE_S
            self._tell(self.server.tick(self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._tell(self.server.tick(self.now))

    @rule(aim=st.integers(1, 5))
    def the_target_changes(self, aim: int) -> None:
        self._tell(self.server.set_target(aim, self.now))

    @invariant()
    def worlds_are_of_the_right_size(self) -> None:
        if hasattr(self, "server"):
            assert len(self.server.current) <= max(self.high, MOST_NODES)
            assert len(set(self.server.current.members)) == len(self.server.current)

    def teardown(self) -> None:
        """Whatever happened, once all is heard and done, everyone is in the one current world, or has left."""
        if not hasattr(self, "server"):
            return
        for _ in range(200):
            before = self._picture()
            while self.lost_unheard:
                self._tell(self.server.lost(self.lost_unheard.pop(), self.now))
            self._all_talk()
            for member in list(self.alive.values()):
                self._step(member.world)
            self.now += SETTLE_S
            self._tell(self.server.tick(self.now))
            if self._picture() == before:
                free = [m for m in self.alive.values() if m.leaving and m.world is None]
                if not free:
                    break
                self._die(free[0])  # It gave notice and is in no world: nothing holds it.
        staying = {name for name, member in self.alive.items() if not member.leaving}
        if len(staying) < self.low:
            return
        assert self.server.phase is Phase.STABLE, f"the world never settles: {self.server.phase}"
        expected = min(len(staying), self.high)
        members = self.server.current.members
        assert set(members) <= staying
        assert len(members) == expected, f"{members} of {staying}"
        for name in members:
            assert self.alive[name].world == self.server.current
            assert not self.alive[name].stopped
        assert not [name for name, member in self.alive.items() if member.leaving], "a leaver was not let go"

    def _make(self) -> Rendezvous:
        return self.rendezvous_class(min_size=self.low, max_size=self.high, target=self.aim, settle_s=SETTLE_S)

    def _come_back(self, member: Member) -> None:
        """It says again all that it stands for, and hears what it may have missed."""
        if not member.away:
            return
        member.away = False
        member.inbox = list(self.server.retold(member.name))
        member.said = [("join", 0)]
        if member.leaving:
            member.said.append(("leave", 0))
        if member.world is not None:
            member.said.append(("moved", member.world.version))
        if member.built:
            member.said.append(("ready", member.built))
        if member.stopped and member.world is not None:
            member.said.append(("broken", member.world.version))

    def _all_talk(self) -> None:
        for member in list(self.alive.values()):
            self._come_back(member)
            while member.inbox:
                self._member_hears(member)
            self._build(member)
            while member.said and member.name in self.alive:
                self._server_hears(member)

    def _draw(self, data: st.DataObject) -> Member:
        return self.alive[data.draw(st.sampled_from(sorted(self.alive)))]

    def _die(self, member: Member) -> None:
        del self.alive[member.name]
        self.lost_unheard.append(member.name)

    def _tell(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Settled):
                self._check_ranks(decision.world)
            for member in self.alive.values():
                if not member.away:
                    member.inbox.append(decision)

    def _check_ranks(self, world: World) -> None:
        before, self.settled = getattr(self, "settled", World(0, ())), world
        for node, rank in before.ranks.items():
            if node in world.ranks and rank < len(world):
                assert world.ranks[node] == rank, "a survivor's rank changed without need"

    def _server_hears(self, member: Member) -> None:
        if not member.said or member.away:
            return
        word, version = member.said.pop(0)
        match word:
            case "join":
                self._tell(self.server.join(member.name, self.now))
            case "leave":
                self._tell(self.server.leave(member.name, self.now))
            case "ready":
                self._tell(self.server.ready(member.name, version, self.now))
            case "moved":
                self._tell(self.server.moved(member.name, version, self.now))
            case "broken":
                self._tell(self.server.broken(member.name, version, self.now))

    def _member_hears(self, member: Member) -> None:
        if not member.inbox:
            return
        match member.inbox.pop(0):
            case NextWorld() as told:
                if member.next is not None and told.world.version <= member.next.world.version:
                    return
                member.next = told
                if told.recover and (member.world is not None):
                    member.stopped = True
            case Go(world, _):
                if member.world is not None and world.version > member.world.version and member.name not in world.ranks:
                    # Who is to leave need not have heard of the next world: it is told to vote.
                    member.next = NextWorld(world, recover=False)
                if member.next is not None and member.next.world == world:
                    member.go = world.version
                    if member.next.recover or member.world is None:
                        self._move([member])
            case Settled(world):
                coming = World(0, ()) if member.next is None else member.next.world
                needed = coming.version > world.version and member.name in coming.ranks
                if member.leaving and member.name not in world.ranks and not needed:
                    self._die(member)
                    member.inbox.clear()

    def _build(self, member: Member) -> None:
        if self._is_to_build(member) and member.next is not None:
            member.built = member.next.world.version
            member.said.append(("ready", member.built))

    def _is_to_build(self, member: Member) -> bool:
        told = member.next
        return told is not None and member.name in told.world.ranks and member.built < told.world.version

    def _voters(self, world: World | None) -> list[Member]:
        """The members of a world whose next step's vote succeeds; none if one is missing, stopped or not asked to."""
        if world is None or any(name not in self.alive for name in world.members):
            return []
        members = [self.alive[name] for name in world.members]
        if any(member.world != world or member.stopped for member in members):
            return []
        goes = {member.go for member in members}
        return members if len(goes) == 1 and goes.pop() > world.version else []

    def _step(self, world: World | None) -> None:
        self._move(self._voters(world))

    def _move(self, members: list[Member]) -> None:
        for member in members:
            assert member.next is not None
            world = member.next.world
            if member.name in world.ranks:
                others = [self.alive[name] for name in world.members if name in self.alive]
                assert all(other.built >= world.version for other in others), "a member cannot follow"
                member.world = world
                member.stopped = False
                member.said.append(("moved", world.version))
            else:
                member.world = None

    def _picture(self) -> object:
        return (
            self.server.phase,
            self.server.current,
            self.server.next,
            [(m.name, m.world, m.stopped, m.built, m.go, len(m.inbox), len(m.said)) for m in self.alive.values()],
        )
