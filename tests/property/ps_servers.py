"""Parameter servers as their master sees them, with all that is in them: the other side of the rules' model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastane.core.owners import Entry, ServerId
from elastane.core.ps_orders import Change, Order, OrderKind

Said = tuple[str, int, list[Change]]
"""What a server says: the rules' method, its number (a bucket or a server), and entries."""


@dataclass(repr=False)
class Server:
    """One server: what it owns, the whole copies that it has for others, and its messages on their way."""

    id: int
    alive: bool = True
    attending: bool = False
    leaving: bool = False
    known: dict[int, Entry] = field(default_factory=dict)
    """The entries that it knows of buckets that it owns, or has a whole copy of."""
    data: dict[int, set[int]] = field(default_factory=dict)
    buried: set[int] = field(default_factory=set)
    inbox: deque[object] = field(default_factory=deque)
    outbox: deque[Said] = field(default_factory=deque)
    half_way: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """Buckets that another server was told to take, which has not answered; with that server and the backup."""
    joined: dict[int, int] = field(default_factory=dict)
    """Buckets of which another server was told that it is the backup, which has not answered."""

    told_lost: set[int] = field(default_factory=set)

    def owns(self, bucket: int) -> bool:
        return bucket in self.known and self.known[bucket].owner == self.id

    def all_it_has(self) -> list[Change]:
        return [(bucket, *entry) for bucket, entry in sorted(self.known.items())]

    def say(self, method: str, number: int = 0, buckets: list[int] | None = None) -> None:
        has: list[Change] = self.all_it_has()
        if buckets is not None:
            has = [(bucket, *self.known[bucket]) for bucket in buckets]
        self.outbox.append((method, number, has))

    def forget(self, bucket: int) -> None:
        self.known.pop(bucket, None)
        self.data.pop(bucket, None)
        self.half_way.pop(bucket, None)
        self.joined.pop(bucket, None)


class Servers:
    """All servers of a job, and what of them is acknowledged to clients."""

    def __init__(self, n_buckets: int, *, with_backups: bool) -> None:
        self.n_buckets = n_buckets
        self.with_backups = with_backups
        self.all: dict[int, Server] = {}
        self.acknowledged: list[set[int]] = [set() for _ in range(n_buckets)]
        self.checkpoint: list[set[int]] = [set() for _ in range(n_buckets)]
        self.pushes = 0

    @property
    def living(self) -> list[Server]:
        return [server for server in self.all.values() if server.alive]

    def push(self, bucket: int) -> None:
        """A client's update: it is acknowledged if the owner has it, and the backup if there is one."""
        self.pushes += 1
        for server in self.living:
            if not server.owns(bucket):
                continue
            copies = [copy for copy in (server.known[bucket].backup, server.joined.get(bucket)) if copy is not None]
            server.data[bucket].add(self.pushes)
            have_it = [self.forwarded(server, copy, bucket) for copy in copies]
            if all(have_it):
                self.acknowledged[bucket].add(self.pushes)

    def forwarded(self, owner: Server, copy: int, bucket: int) -> bool:
        other = self.all[copy]
        if not other.alive or owner.id in other.buried or bucket not in other.known:
            return False
        if other.known[bucket].owner != owner.id:
            return False
        other.data[bucket].add(self.pushes)
        return True

    def die(self, server: Server, decided: Sequence[Entry]) -> None:
        """What was only here is lost; what another has whole must not be, unless the master had given up that copy."""

        def counts(other: Server, bucket: int) -> bool:
            known, entry = other.known.get(bucket), decided[bucket]
            decided_since = known is not None and entry.epoch > known.epoch
            given_up = decided_since and entry.owner == server.id and entry.backup != other.id
            return other.alive and not given_up and self.acknowledged[bucket] <= other.data.get(bucket, set())

        server.alive = server.attending = False
        server.inbox.clear()
        server.outbox.clear()
        for bucket, acknowledged in enumerate(self.acknowledged):
            if not any(counts(other, bucket) for other in self.living):
                acknowledged.clear()

    def informed(self, server: Server, entries: list[Entry]) -> None:
        for bucket, entry in enumerate(entries):
            known = server.known.get(bucket)
            if known is None or entry.epoch <= known.epoch:
                continue
            if entry.owner == server.id:
                # By a decision of the master a whole copy becomes the server's own.
                server.known[bucket] = entry
                server.joined.pop(bucket, None)
                server.half_way.pop(bucket, None)
            elif entry.backup != server.id:
                server.forget(bucket)

    def obey(self, server: Server, order: Order) -> None:
        bucket = order.bucket
        match order.kind:
            case OrderKind.OWN | OrderKind.RESTORE:
                if bucket not in server.known or server.known[bucket].epoch < order.value:
                    if not server.owns(bucket):
                        restored = self.checkpoint[bucket] if order.kind is OrderKind.RESTORE else set()
                        server.data[bucket] = set(restored)
                    server.known[bucket] = Entry(order.value, ServerId(server.id))
                server.say("learned", buckets=[bucket])
            case OrderKind.PROMOTE:
                if bucket not in server.known:
                    server.say("failed", bucket, [])
                elif server.known[bucket].epoch < order.value:
                    server.half_way.pop(bucket, None)
                    server.joined.pop(bucket, None)
                    server.known[bucket] = Entry(order.value, ServerId(server.id))
                    server.say("learned", buckets=[bucket])
            case OrderKind.REPLICATE | OrderKind.HAND_OVER:
                self._copy(server, order)

    def _copy(self, server: Server, order: Order) -> None:
        bucket, to = order.bucket, self.all[order.value]
        unable = not server.owns(bucket) or bucket in server.joined
        if unable or not to.alive or to.id in server.buried or server.id in to.buried:
            server.say("failed", bucket, [])
            return
        entry = server.known[bucket]
        if order.kind is OrderKind.HAND_OVER:
            # From now on it serves the bucket no more; whether the other one does, it does not know.
            server.known[bucket] = Entry(entry.epoch + 1, ServerId(to.id), ServerId(server.id))
            server.half_way[bucket] = (to.id, entry.backup)
            return
        if entry.backup == to.id:
            server.say("learned", buckets=[bucket])
            return
        to.known[bucket] = Entry(entry.epoch + 1, ServerId(server.id), ServerId(to.id))
        to.data[bucket] = set(server.data[bucket])
        server.joined[bucket] = to.id

    def join(self, server: Server, bucket: int) -> None:
        """The second half of a copy: the other one says that it has it, or cannot be reached."""
        to = self.all[server.joined[bucket]]
        if not to.alive or server.id in to.buried or to.id in server.buried:
            if bucket not in server.told_lost:
                server.told_lost.add(bucket)
                server.say("link_lost", to.id, [])
            return  # It stands still until the master decides.
        del server.joined[bucket]
        if bucket not in to.known or to.known[bucket].owner != server.id:
            server.say("failed", bucket, [])
            return
        entry = server.known[bucket]
        if entry.backup is not None:
            self.all[entry.backup].forget(bucket)
        server.known[bucket] = Entry(entry.epoch + 1, ServerId(server.id), ServerId(to.id))
        to.known[bucket] = server.known[bucket]
        server.say("learned", buckets=[bucket])

    def finish(self, server: Server, bucket: int) -> None:
        """The second half of a hand-over: the other one takes the bucket, or cannot be reached."""
        number, backup = server.half_way.pop(bucket)
        to = self.all[number]
        if not to.alive or server.id in to.buried or to.id in server.buried:
            server.say("link_lost", to.id, [])
            return
        entry = server.known[bucket]
        to.known[bucket] = entry if backup is not None else entry._replace(backup=None)
        to.data[bucket] = set(server.data[bucket])
        to.say("learned", buckets=[bucket])
        server.say("learned", buckets=[bucket])
        if backup is None:
            server.forget(bucket)
        elif backup != to.id:
            self.all[backup].forget(bucket)
