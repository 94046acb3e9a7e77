"""The rules of the parameter servers: which there are, who has which bucket, what moves, and when a server may go.

A server is known by its node's id, which is never used twice. Each bucket has an entry (`core.owners`): what the
servers said last of who has it, or what was decided here. Each bucket also has a home: the server that should own it,
and the one that should be its backup. Whatever happens, the rules compare the two and order what is missing:

    scale up     new servers are expected; once all run, the cluster with them is published, and buckets move
    scale down   leaving servers are in `pre_dropped_ps` and out of the next cluster; a server is removed only after
                 every bucket has moved and every worker has confirmed the version that says so
    migrate      a twin is expected and the old one leaves: the same two rules
    failure      every server buries the dead one and says what it has; then its buckets' backups are promoted, or the
                 buckets are restored from the last checkpoint at their homes, or made anew

So a change in the middle of another, or back, needs no rule of its own. A bucket has at most one order at a time, and
an order stands until an entry shows that it is carried out, or until one of its servers is gone: a server that attends
anew, or a master that comes after another, just gives it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from elastane.core.owners import Entry, ServerId, next_term
from elastane.core.ps_homes import Homes
from elastane.core.ps_inquiries import Inquiries
from elastane.core.ps_orders import (
    Ask,
    Bury,
    Change,
    Decision,
    ForgetClients,
    Inform,
    InformWorker,
    Order,
    OrderKind,
    Publish,
    Remove,
    Still,
)
from elastane.core.ps_workers import Confirmations
from elastane.model.ids import NodeName

MOST_MOVES = 32
"""How many buckets move at a time."""
RETRY_S = 0.5
"""After a move failed, how long until it is tried again."""


@dataclass
class _Server:
    attended: bool = False
    """Whether it has ever attended: until then nobody can know of it."""
    here: bool = False
    """Whether its stream is open."""
    leaving: bool = False
    removed: bool = False


class PSCluster:
    """The servers, their buckets and the workers who must agree. It is told what happened, and says what to do."""

    def __init__(self, n_buckets: int, *, with_backups: bool = False, most_moves: int = MOST_MOVES) -> None:
        self.entries: list[Entry] = [Entry(0, None)] * n_buckets
        self.version = 0
        """Of the last publication; 0 before the first."""
        self.training_ps_cluster: tuple[int, ...] = ()
        """The servers that had all buckets when the last change was through."""
        self.next_training_ps_cluster: tuple[int, ...] | None = None
        """The servers that will have them, while a change is on its way."""
        self.checkpoint = ""
        """The last whole checkpoint; empty if there is none."""
        self.held = False
        """Whether moves wait, because the servers save or are about to."""
        self._most_moves = most_moves
        self._servers: dict[int, _Server] = {}
        self._confirmations = Confirmations()
        self.homes = Homes(n_buckets, with_backups=with_backups)
        self._orders: dict[int, Order] = {}
        self._not_before: dict[int, float] = {}
        self._in_doubt: dict[int, list[int]] = {}
        """Servers to which a bucket was being copied, and is no longer: its owner may wait for them."""
        self._inquiries = Inquiries()
        self._settled = True
        self._settled_version = 0
        self._to_publish = False

    @property
    def servers(self) -> tuple[int, ...]:
        """All that live, or are expected."""
        return tuple(sorted(self._servers))

    @property
    def pre_dropped_ps(self) -> frozenset[int]:
        """The servers that are to leave once they hold nothing and nobody counts on them."""
        return frozenset(server for server, known in self._servers.items() if known.leaving)

    @property
    def settled(self) -> bool:
        """Whether every bucket is where it should be."""
        return self._settled

    @property
    def workers(self) -> tuple[NodeName, ...]:
        """The workers that use the servers."""
        return self._confirmations.workers

    def order_of(self, bucket: int) -> Order | None:
        """What is being done about a bucket."""
        return self._orders.get(bucket)

    @property
    def moving(self) -> int:
        """How many buckets are on their way."""
        return sum(order.kind.moves for order in self._orders.values())

    # What happens to servers.

    def roster(self, members: list[tuple[int, bool]], now: float) -> list[Decision]:
        """These servers live or are launched, each with whether it is to leave when it can; all others are gone."""
        decisions: list[Decision] = []
        known = dict(members)
        for server in [server for server in self._servers if server not in known]:
            decisions += self._ended(server)
        for server, leaving in members:
            self._servers.setdefault(server, _Server()).leaving = leaving
        return decisions + self._step(now)

    def here(self, server: int, changes: list[Change], now: float) -> list[Decision]:
        """A server attends, and says all that it has."""
        known = self._servers.get(server)
        if known is None:
            return []
        known.attended = known.here = True
        self._said_all(server, changes, now)
        decisions: list[Decision] = [Inform((server,))]
        if dead := self._confirmations.dead_clients:
            decisions.append(ForgetClients(server, tuple(dead)))
        decisions += [Bury(server, dead) for dead in self._inquiries.to_bury(server)]
        decisions += [order for order in self._orders.values() if order.server == server]
        return decisions + self._step(now)

    def away(self, server: int, now: float) -> list[Decision]:
        """A server's stream broke. It may come back, or its end be known soon."""
        if server in self._servers:
            self._servers[server].here = False
        return self._step(now)

    def learned(self, server: int, changes: list[Change], now: float) -> list[Decision]:
        """A server says what has become of these buckets."""
        if server not in self._servers:
            return []
        self._merge(server, changes)
        return self._step(now)

    def answered(self, server: int, changes: list[Change], buried: int | None, now: float) -> list[Decision]:
        """A server says all that it has, because it was asked, or because it takes nothing more of a dead one."""
        if server not in self._servers:
            return []
        self._said_all(server, changes, now)
        if buried is not None:
            self._inquiries.buried(server, buried)
        return self._step(now)

    def link_lost(self, server: int, peer: int, now: float) -> list[Decision]:
        """A server has no connection to another. If that one lives, both are asked what they have."""
        if server not in self._servers or peer not in self._servers or not self._inquiries.part(server, peer):
            return []
        for order in [order for order in self._orders.values() if order.kind.moves and order[1::2] == (server, peer)]:
            self._give_up(order)
            self._not_before[order.bucket] = now + RETRY_S
        asked = [Ask(one) for one in (server, peer) if self._servers[one].here]
        return [*asked, *self._step(now)]

    def failed(self, server: int, bucket: int, now: float) -> list[Decision]:
        """A server could not carry out its order about a bucket: nothing has changed."""
        order = self._orders.get(bucket)
        if order is None or order.server != server:
            return []
        self._give_up(order)
        self._not_before[bucket] = now + RETRY_S
        if order.kind is OrderKind.PROMOTE:
            # Its copy is not whole after all: the next to try is the checkpoint.
            self.entries[bucket] = Entry(order.value, self.entries[bucket].owner)
            self._not_before.pop(bucket)
        return self._step(now)

    # What happens to workers.

    def worker_here(self, worker: NodeName, clients: list[int], now: float) -> list[Decision]:
        """A worker uses the servers from now on, as these clients: no server is removed before it has confirmed."""
        self._confirmations.here(worker, clients)
        informed = [InformWorker(worker)] if self.version else []
        return [*informed, *self._step(now)]

    def worker_away(self, worker: NodeName, now: float) -> list[Decision]:
        """A worker's stream broke."""
        self._confirmations.away(worker)
        return self._step(now)

    def worker_ended(self, worker: NodeName, now: float) -> list[Decision]:
        """A worker is gone for good: nobody waits for its clients."""
        dead = self._confirmations.ended(worker)
        here = [server for server, known in self._servers.items() if known.here] if dead else []
        return [*(ForgetClients(server, tuple(dead)) for server in here), *self._step(now)]

    def confirmed(self, worker: NodeName, version: int, now: float) -> list[Decision]:
        """A worker has learned the cluster of this version."""
        self._confirmations.confirmed(worker, min(version, self.version))
        return self._step(now)

    # What is asked for.

    def rehome(self, moves: list[tuple[int, int]], now: float) -> list[Decision]:
        """Move these buckets to these servers, which are in the cluster."""
        self.homes.move(moves, self._cluster, self.entries)
        self._settled = False
        return self._step(now)

    def hold(self, now: float) -> list[Decision]:
        """Start no move before `saved` or `release`; once none is on its way, say so."""
        self.held = True
        return self._step(now)

    def release(self, now: float) -> list[Decision]:
        self.held = False
        return self._step(now)

    def saved(self, checkpoint: str, now: float) -> list[Decision]:
        """A whole checkpoint is there: what must be restored comes from it. Moves may go on."""
        self.checkpoint = checkpoint
        self.held = False
        return self._step(now)

    def tick(self, now: float) -> list[Decision]:
        return self._step(now)

    def next_tick(self) -> float | None:
        """When `tick` has something to do."""
        audit = self._inquiries.next_audit()
        return min((*self._not_before.values(), *([] if audit is None else [audit])), default=None)

    def resume(self, now: float) -> list[Decision]:
        """A master before this one died: nobody is here yet, and what it said last may not have been heard."""
        for known in self._servers.values():
            known.here = False
        self.held = False
        again = [Remove(server) for server, known in self._servers.items() if known.removed]
        return [*again, *self._step(now)]

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {
            "entries": [list(entry) for entry in self.entries],
            "version": self.version,
            "training": list(self.training_ps_cluster),
            "next": None if self.next_training_ps_cluster is None else list(self.next_training_ps_cluster),
            "checkpoint": self.checkpoint,
            "held": self.held,
            "servers": [[server, asdict(known)] for server, known in self._servers.items()],
            "workers": self._confirmations.snapshot(),
            "homes": self.homes.snapshot(),
            "orders": [list(order) for order in self._orders.values()],
            "not_before": list(self._not_before.items()),
            "in_doubt": list(self._in_doubt.items()),
            "inquiries": self._inquiries.snapshot(),
            "settled": [self._settled, self._settled_version, self._to_publish],
        }

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # its times are the job's own
        """Take the state of a snapshot."""
        self.entries = [Entry(*entry) for entry in state["entries"]]
        self.version = state["version"]
        self.training_ps_cluster = tuple(state["training"])
        self.next_training_ps_cluster = None if state["next"] is None else tuple(state["next"])
        self.checkpoint = state["checkpoint"]
        self.held = state["held"]
        self._servers = {server: _Server(**known) for server, known in state["servers"]}
        self._confirmations.load(state["workers"])
        self.homes.load(state["homes"])
        orders = (Order(OrderKind(kind), *rest) for kind, *rest in state["orders"])
        self._orders = {order.bucket: order for order in orders}
        self._not_before = dict(state["not_before"])
        self._in_doubt = {bucket: list(servers) for bucket, servers in state["in_doubt"]}
        self._inquiries.load(state["inquiries"])
        self._settled, self._settled_version, self._to_publish = state["settled"]

    def _give_up(self, order: Order) -> None:
        del self._orders[order.bucket]
        if order.kind.moves:
            self._in_doubt.setdefault(order.bucket, []).append(order.value)

    def _ended(self, server: int) -> list[Decision]:
        """A server is gone for good: all who may have something of it say so, and take no more."""
        known = self._servers.pop(server)
        for order in [order for order in self._orders.values() if order.concerns(server)]:
            self._give_up(order)
        self._inquiries.ended(server)
        self.held = False
        if not known.attended:
            return []
        self._settled = False
        others = [other for other, there in self._servers.items() if there.attended]
        self._inquiries.bury(server, others)
        return [Bury(other, server) for other in others if self._servers[other].here]

    # The comparison of what is with what should be.

    def _step(self, now: float) -> list[Decision]:
        self._not_before = {bucket: due for bucket, due in self._not_before.items() if due > now}
        self._inquiries.close_burials()
        self._form_cluster()
        decisions: list[Decision] = list(self._look_for_missing(now))
        if self._drop_backups():
            decisions.append(Inform(tuple(server for server, known in self._servers.items() if known.here)))
        for order in [*self._claims(), *self._moves()]:
            self._orders[order.bucket] = order
            if self._servers[order.server].here:
                decisions.append(order)
        self._settle()
        if self._to_publish and not any(not order.kind.moves for order in self._orders.values()) and self._all_owned:
            self._to_publish = False
            self.version += 1
            if self._settled:
                self._settled_version = self.version
            decisions.append(Publish(self.version))
        on_its_way = (
            self._orders or self._inquiries.missing or not all(entry.owner in self._servers for entry in self.entries)
        )
        if self.held and not on_its_way:
            decisions.append(Still())
        return [*decisions, *self._removals()]

    @property
    def _cluster(self) -> tuple[int, ...]:
        """The servers that are to have the buckets."""
        return self.training_ps_cluster if self.next_training_ps_cluster is None else self.next_training_ps_cluster

    @property
    def _all_owned(self) -> bool:
        """Whether every bucket has had an owner, be it one that has died since."""
        return all(entry.owner is not None for entry in self.entries)

    def _form_cluster(self) -> None:
        """Once all that are wanted run, they are the next cluster."""
        wanted = {server: known for server, known in self._servers.items() if not known.leaving}
        cluster = tuple(sorted(wanted))
        if not wanted or cluster == self._cluster or not all(known.attended for known in wanted.values()):
            return
        self.next_training_ps_cluster = cluster
        self.homes.spread(cluster, self.entries)
        self._settled = False
        self._to_publish = True

    def _drop_backups(self) -> bool:
        """A backup that is dead, out of touch or not wanted is given up, so that its owner need not wait for it."""
        dropped = False
        apart = self._inquiries.parted()
        for bucket, (epoch, owner, backup) in enumerate(self.entries):
            # What is on its way is left alone: it may be through already, and have another backup.
            if owner is None or owner not in self._servers or bucket in self._orders:
                continue
            copies = [*self._in_doubt.get(bucket, []), *([] if backup is None else [backup])]
            dead = any(copy not in self._servers and not self._inquiries.unclear(copy) for copy in copies)
            parted = any((owner, copy) in apart for copy in copies)
            # As long as its new owner has not said that it has it, the giver's copy may be all that there is.
            has_come = bucket not in self._inquiries.missing
            unwanted = has_come and backup is not None and self.homes.has(bucket, Entry(epoch, owner))
            if dead or parted or (unwanted and not self.held):
                self.entries[bucket] = Entry(next_term(epoch), owner)
                self._in_doubt.pop(bucket, None)
                dropped = True
        moving = {(self.entries[bucket].owner, self.entries[bucket].backup) for bucket in self._orders}
        self._inquiries.part_no_more(moving)
        return dropped

    def _look_for_missing(self, now: float) -> Iterator[Decision]:
        """A bucket that its server gave away, and that nobody has when all are asked again, is nobody's."""
        missing = self._inquiries.missing
        for bucket in [bucket for bucket, (server, _) in missing.items() if self.entries[bucket].owner != server]:
            del missing[bucket]
        if not self._all_heard:
            return
        attended = [server for server, known in self._servers.items() if known.attended]
        yield from (Ask(server) for server in self._inquiries.audit(attended, now))
        for bucket in self._inquiries.lost(now):
            epoch, _, backup = self.entries[bucket]
            self.entries[bucket] = Entry(epoch, None, backup)

    @property
    def _all_heard(self) -> bool:
        """Whether all who may have a bucket have said so."""
        return not self._inquiries.any_burial and all(known.here for known in self._servers.values() if known.attended)

    def _claims(self) -> Iterator[Order]:
        """Orders that give the buckets of nobody, or of a dead server, to a living one."""
        for bucket, (epoch, owner, backup) in enumerate(self.entries):
            busy = bucket in self._orders or bucket in self._not_before
            if owner in self._servers or self._inquiries.unclear(owner) or busy:
                continue
            home = self.homes.owners[bucket]
            if backup in self._servers:
                yield Order(OrderKind.PROMOTE, backup, bucket, next_term(epoch))
            elif home is not None and home in self._servers and not self._inquiries.unclear(backup):
                kind = OrderKind.RESTORE if self.checkpoint else OrderKind.OWN
                yield Order(kind, home, bucket, next_term(epoch))

    def _moves(self) -> Iterator[Order]:
        """Orders that bring buckets home, a few at a time."""
        room = 0 if self.held else self._most_moves - self.moving
        for bucket, (_, owner, backup) in enumerate(self.entries):
            if room <= 0:
                return
            if owner is None or not self._is_here(owner) or bucket in self._orders or bucket in self._not_before:
                continue
            home, backup_home = self.homes.owners[bucket], self.homes.backups[bucket]
            if owner != home:
                kind, to = OrderKind.HAND_OVER, home
            elif backup_home not in (None, backup, owner):
                kind, to = OrderKind.REPLICATE, backup_home
            else:
                continue
            if to is not None and self._is_here(to):
                room -= 1
                yield Order(kind, owner, bucket, to)

    def _settle(self) -> None:
        """The change is through once every bucket is where it should be."""
        if self._settled or self._orders or not self._inquiries.all_closed:
            return
        for bucket, entry in enumerate(self.entries):
            if entry.owner not in self._servers or not self.homes.has(bucket, entry):
                return
        self.training_ps_cluster = self._cluster
        self.next_training_ps_cluster = None
        self._settled = self._to_publish = True

    def _removals(self) -> Iterator[Decision]:
        for server, known in self._servers.items():
            if known.leaving and not known.removed and self._may_go(server, known):
                known.removed = True
                yield Remove(server)

    def _may_go(self, server: int, known: _Server) -> bool:
        if not known.attended:
            return True  # Nobody ever heard of it.
        holds = any(server in (entry.owner, entry.backup) for entry in self.entries)
        if holds or not self._settled or self._to_publish or server in self._cluster:
            return False
        return self._confirmations.have_all(self._settled_version)

    def _is_here(self, server: int) -> bool:
        return server in self._servers and self._servers[server].here

    def _said_all(self, server: int, changes: list[Change], now: float) -> None:
        """A server has said all that it has. What was thought to be its own, and is not, may be with nobody.

        And so may what it has given away, as long as the one who got it does not say so.
        """
        given = [change for change in changes if change[2] != server and change[1] > self.entries[change[0]].epoch]
        self._merge(server, changes)
        for bucket, _, owner, _ in given:
            if owner is not None and owner in self._servers:
                self._inquiries.missing.setdefault(bucket, (owner, now))
        has = {bucket for bucket, _, owner, _ in changes if owner == server}
        for bucket, entry in enumerate(self.entries):
            if entry.owner == server and bucket not in has and bucket not in self._orders:
                self._inquiries.missing.setdefault(bucket, (server, now))
        self._inquiries.answered(server)

    def _merge(self, speaker: int, changes: Iterable[Change]) -> None:
        for bucket, epoch, owner, backup in changes:
            known = self.entries[bucket]
            if owner == speaker and epoch >= known.epoch:
                self._inquiries.missing.pop(bucket, None)
            # Who has given a bucket away, and not heard that it was taken, still speaks of its own copy: of two words
            # on one epoch, the owner's counts.
            if epoch < known.epoch or (epoch == known.epoch and (owner != speaker or (owner, backup) == known[1:])):
                continue
            self.entries[bucket] = Entry(
                epoch, None if owner is None else ServerId(owner), None if backup is None else ServerId(backup)
            )
            self._in_doubt.pop(bucket, None)
            order = self._orders.get(bucket)
            if order is not None and order.is_done(owner, backup):
                del self._orders[bucket]
                if not order.kind.moves:
                    self._to_publish = True  # Who waits for a dead server must hear of its successor.
