"""A model of a job's parameter servers: they come, move buckets, die and leave, and so do workers and the master."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.core.ps_cluster import RETRY_S, PSCluster
from elastane.core.ps_inquiries import MISSING_S
from elastane.core.ps_orders import Ask, Bury, Decision, Inform, InformWorker, Order, Publish, Remove, Still
from elastane.model.ids import NodeName
from tests.property.ps_servers import Server, Servers
from tests.property.restarting_journal import RestartingJournal

N_BUCKETS = 8
MOST_MOVES = 3
WORKERS = [NodeName(f"job-worker-{number}") for number in range(2)]


class PSMachine(RuleBasedStateMachine):
    """Messages wait in each server's queues, so everything may happen between any two of them."""

    rules_class: type[PSCluster] = PSCluster

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.unheard: list[int] = []
        """Servers that died, which the master does not know."""
        self.workers: dict[NodeName, int] = {}
        """The workers here, and the last version that each has heard of."""
        self.confirmed: dict[NodeName, int] = {}
        self.published: dict[int, frozenset[int | None]] = {}
        """Who held buckets in each version."""
        self.removed: set[int] = set()

    @initialize(count=st.integers(1, 3), with_backups=st.booleans(), calm=st.sampled_from([True, True, False]))
    def start(self, count: int, with_backups: bool, calm: bool) -> None:
        self.with_backups = with_backups
        self.servers = Servers(N_BUCKETS, with_backups=with_backups)
        self.journal = RestartingJournal()
        self.cluster = self.journal.watch(self._make())
        for _ in range(count):
            self._expect()
        for server in list(self.servers.living):
            self.attends_again(server)
        while calm and not self._quieter():
            pass  # What happens in a job that runs well is more than what happens while it starts.
        for bucket in range(N_BUCKETS):
            self.push(bucket)

    def _make(self) -> PSCluster:
        return self.rules_class(N_BUCKETS, with_backups=self.with_backups, most_moves=MOST_MOVES)

    def _expect(self) -> None:
        server = Server(len(self.servers.all))
        self.servers.all[server.id] = server
        self._call_the_roll()

    def _call_the_roll(self) -> None:
        known = [s for s in self.servers.all.values() if s.alive or s.id in self.unheard]
        self._carry_out(self.cluster.roster([(server.id, server.leaving) for server in known], self.now))

    def attends_again(self, server: Server) -> None:
        server.inbox.clear()
        server.outbox.clear()
        server.attending = True
        self._carry_out(self.cluster.here(server.id, server.all_it_has(), self.now))

    @property
    def wanted(self) -> list[Server]:
        return [server for server in self.servers.living if not server.leaving]

    # What happens.

    @precondition(lambda self: any(not server.attending for server in self.servers.living))
    @rule(data=st.data())
    def a_server_attends(self, data: st.DataObject) -> None:
        self.attends_again(data.draw(st.sampled_from([s for s in self.servers.living if not s.attending])))

    @precondition(lambda self: len(self.wanted) < 4)
    @rule()
    def scale_up(self) -> None:
        self._expect()

    @precondition(lambda self: len(self.wanted) > 1)
    @rule(data=st.data())
    def scale_down(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from(self.wanted))
        server.leaving = True
        self._call_the_roll()

    @precondition(lambda self: self._keepable())
    @rule(data=st.data())
    def change_back(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from(self._keepable()))
        server.leaving = False
        self._call_the_roll()

    def _keepable(self) -> list[Server]:
        return [server for server in self.servers.living if server.leaving and server.id not in self.removed]

    @rule(data=st.data())
    def migrate(self, data: st.DataObject) -> None:
        if self.wanted and len(self.wanted) < 4:
            old = data.draw(st.sampled_from(self.wanted))
            old.leaving = True
            self._expect()

    @rule(bucket=st.integers(0, N_BUCKETS - 1))
    def push(self, bucket: int) -> None:
        self.servers.push(bucket)

    @rule(data=st.data(), count=st.integers(1, 6))
    def messages_arrive(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            busy = [s for s in self.servers.living if self._busy(s)]
            if not busy:
                return
            self._advance(data.draw(st.sampled_from(busy)), data.draw(st.integers(0, 2)))

    def _busy(self, server: Server) -> bool:
        joining = any(bucket not in server.told_lost for bucket in server.joined)
        return bool(server.inbox or (server.outbox and server.attending) or server.half_way or joining)

    def _advance(self, server: Server, way: int) -> None:
        """One message of a server, or the next step of one of its moves."""
        ways = [self._listens, self._speaks, self._finishes]
        for turn in range(3):
            if ways[(way + turn) % 3](server):
                return

    def _listens(self, server: Server) -> bool:
        if not server.inbox:
            return False
        match server.inbox.popleft():
            case Order() as order:
                self.servers.obey(server, order)
            case Bury(_, dead):
                server.buried.add(dead)
                server.say("buried", dead)
            case Ask():
                server.say("answered")
            case list() as entries:
                self.servers.informed(server, entries)
        return True

    def _speaks(self, server: Server) -> bool:
        if not server.outbox or not server.attending:
            return False
        method, number, changes = server.outbox.popleft()
        match method:
            case "learned":
                self._carry_out(self.cluster.learned(server.id, changes, self.now))
            case "answered":
                self._carry_out(self.cluster.answered(server.id, changes, None, self.now))
            case "buried":
                self._carry_out(self.cluster.answered(server.id, changes, number, self.now))
            case "failed":
                self._carry_out(self.cluster.failed(server.id, number, self.now))
            case "link_lost":
                self._carry_out(self.cluster.link_lost(server.id, number, self.now))
        return True

    def _finishes(self, server: Server) -> bool:
        joining = [bucket for bucket in server.joined if bucket not in server.told_lost]
        if server.half_way:
            self.servers.finish(server, min(server.half_way))
        elif joining:
            self.servers.join(server, min(joining))
        return bool(server.half_way or joining)

    @precondition(lambda self: self.servers.living)
    @rule(data=st.data())
    def a_server_dies(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from(self.servers.living))
        self.servers.die(server, self.cluster.entries)
        self.unheard.append(server.id)

    @precondition(lambda self: self.unheard)
    @rule()
    def a_death_is_heard_of(self) -> None:
        server = self.servers.all[self.unheard.pop(0)]
        if server.leaving:
            self._call_the_roll()
        else:
            self._expect()

    @precondition(lambda self: any(server.attending for server in self.servers.living))
    @rule(data=st.data())
    def a_stream_breaks(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from([s for s in self.servers.living if s.attending]))
        server.attending = False
        server.inbox.clear()
        server.outbox.clear()
        self._carry_out(self.cluster.away(server.id, self.now))

    @rule()
    def the_master_dies(self) -> None:
        self.cluster = self.journal.restart(self.cluster, self._make())
        for server in self.servers.all.values():
            server.attending = False
            server.inbox.clear()
            server.outbox.clear()
        self._carry_out(self.cluster.resume(self.now))
        for worker in self.workers:
            self.workers[worker] = self.cluster.version  # It is told again.

    @rule(worker=st.sampled_from(WORKERS))
    def a_worker_comes_or_goes(self, worker: NodeName) -> None:
        if worker in self.workers:
            del self.workers[worker]
            self.confirmed.pop(worker, None)
            ends = self.cluster.worker_ended if len(self.servers.all) % 2 else self.cluster.worker_away
            self._carry_out(ends(worker, self.now))
        else:
            self.workers[worker] = 0
            self._carry_out(self.cluster.worker_here(worker, [WORKERS.index(worker)], self.now))

    @precondition(lambda self: any(self.confirmed.get(w, 0) < version for w, version in self.workers.items()))
    @rule(data=st.data())
    def a_worker_confirms(self, data: st.DataObject) -> None:
        late = [w for w, version in self.workers.items() if self.confirmed.get(w, 0) < version]
        worker = data.draw(st.sampled_from(late))
        version = self.confirmed[worker] = self.workers[worker]
        self._carry_out(self.cluster.confirmed(worker, version, self.now))

    @rule()
    def a_checkpoint_is_made(self) -> None:
        self._carry_out(self.cluster.hold(self.now))

    @precondition(lambda self: self.cluster.settled and len(self.cluster.training_ps_cluster) > 1)
    @rule(bucket=st.integers(0, N_BUCKETS - 1), place=st.integers(0, 3))
    def a_hot_bucket_moves(self, bucket: int, place: int) -> None:
        servers = self.cluster.training_ps_cluster
        self._carry_out(self.cluster.rehome([(bucket, servers[place % len(servers)])], self.now))

    @precondition(lambda self: not any(server.half_way for server in self.servers.living))
    @rule()
    def time_passes(self) -> None:
        self.now += max(RETRY_S, MISSING_S)
        self._carry_out(self.cluster.tick(self.now))

    # What is decided.

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Order(_, server) | Bury(server) | Ask(server):
                    self._send(server, decision)
                case Inform(servers):
                    for server in servers:
                        self._send(server, list(self.cluster.entries))
                case Publish(version):
                    assert version not in self.published, "a version was published twice"
                    self.published[version] = frozenset(entry.owner for entry in self.cluster.entries)
                    for living in self.servers.living:
                        self._send(living.id, list(self.cluster.entries))
                    self.workers = dict.fromkeys(self.workers, version)
                case InformWorker(worker):
                    self.workers[worker] = self.cluster.version
                case Remove(server):
                    if server not in self.removed:  # A new master says it again, also to workers that came since.
                        self._check_may_go(self.servers.all[server])
                    self.removed.add(server)
                case Still():
                    self._save()

    def _send(self, server: int, message: object) -> None:
        if self.servers.all[server].attending:
            self.servers.all[server].inbox.append(message)

    def _check_may_go(self, server: Server) -> None:
        assert server.leaving, "nobody asked this server to leave"
        held = [bucket for bucket in server.known if server.owns(bucket)]
        assert not held, f"server {server.id} is removed with buckets {held}"
        for worker in self.workers:
            version = self.confirmed.get(worker, 0)
            counted_on = self.published.get(version, frozenset(self.servers.all))
            assert not server.known or server.id not in counted_on
            # One that was in no cluster is nobody's concern.
            ever = any(server.id in holders for holders in self.published.values())
            assert not ever or server.id not in counted_on, "a worker counts on a server that is removed"

    def _save(self) -> None:
        assert not any(server.half_way for server in self.servers.living if server.attending) or self.unheard
        content: list[set[int]] = []
        for bucket in range(N_BUCKETS):
            owners = [server for server in self.servers.living if server.owns(bucket)]
            if not owners:
                self._carry_out(self.cluster.release(self.now))
                return  # Somebody has died whom the master has not missed yet.
            content.append(set(max(owners, key=lambda owner: owner.known[bucket].epoch).data[bucket]))
        self.servers.checkpoint = content
        self._carry_out(self.cluster.saved("checkpoint", self.now))

    # What must always hold.

    @invariant()
    def few_move_at_a_time(self) -> None:
        if hasattr(self, "cluster"):
            assert self.cluster.moving <= MOST_MOVES

    @invariant()
    def no_two_own_a_bucket_in_one_epoch(self) -> None:
        if not hasattr(self, "servers"):
            return
        for bucket in range(N_BUCKETS):
            epochs = [server.known[bucket].epoch for server in self.servers.living if server.owns(bucket)]
            assert len(epochs) == len(set(epochs))

    def teardown(self) -> None:
        """Whatever happened, once it is quiet every bucket is at home and nothing acknowledged is lost."""
        if not hasattr(self, "cluster"):
            return
        if not self.wanted:
            self._expect()
        for _ in range(1000):
            if self._quieter():
                break
        else:
            raise AssertionError(f"it does not come to rest: {self.cluster.snapshot()}")
        assert self.cluster.settled, f"a change never ends: {self.cluster.snapshot()}"
        cluster = sorted(server.id for server in self.wanted)
        assert list(self.cluster.training_ps_cluster) == cluster
        assert not {server.id for server in self.servers.living if server.leaving} - self.removed, "a server stays"
        self._check_owners(cluster)

    def _quieter(self) -> bool:
        """Let what can happen by itself happen; true if nothing did."""
        while self.unheard:
            self.a_death_is_heard_of()
        for server in self.servers.living:
            if not server.attending:
                self.attends_again(server)
        before = (self.cluster.version, self.cluster.settled, len(self.removed))
        moved = False
        for server in self.servers.living:
            while self._busy(server):
                moved = True
                self._advance(server, 0)
        for worker, version in self.workers.items():
            if self.confirmed.get(worker, 0) < version:
                self.confirmed[worker] = version
                self._carry_out(self.cluster.confirmed(worker, version, self.now))
        self.time_passes()
        return not moved and before == (self.cluster.version, self.cluster.settled, len(self.removed))

    def _check_owners(self, cluster: list[int]) -> None:
        for bucket in range(N_BUCKETS):
            owners = [server for server in self.servers.living if server.owns(bucket)]
            assert len(owners) == 1, (
                f"bucket {bucket} is owned by {owners}, and should be as {self.cluster.entries[bucket]}"
            )
            owner = owners[0]
            assert owner.id in cluster
            assert self.cluster.entries[bucket] == owner.known[bucket]
            self.servers.push(bucket)
            assert self.servers.pushes in self.servers.acknowledged[bucket], f"bucket {bucket} stands still"
            lost = self.servers.acknowledged[bucket] - owner.data[bucket]
            assert not lost, f"updates {lost} of bucket {bucket} were acknowledged, and are lost"
            backup = owner.known[bucket].backup
            assert (backup is not None) == (self.with_backups and len(cluster) > 1)
            if backup is not None:
                assert backup != owner.id
                assert self.servers.all[backup].data[bucket] == owner.data[bucket]
