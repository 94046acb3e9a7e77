"""How buckets come to a server and leave it: owned, learned, copied to others, handed over, promoted.

A move is: become a copy, then take over. Everything that two servers say to each other about a bucket goes over one
link in order, so what the other one has is a matter of how far it has read.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from elastane.core.owners import Entry, OwnerMap, ServerAddress, ServerId, is_decision, next_turn
from elastane.model.errors import ElastaneError, MalformedMessage, RequestRefused
from elastane.ps import frames
from elastane.ps.engine import Engine
from elastane.ps.frames import Flag, Hello, Op, Peer
from elastane.ps.ledger import NOBODY, State
from elastane.ps.link import Link
from elastane.ps.server_events import HandedOver, LinkLost, Replicated, ReplicationFailed, SteppedDown
from elastane.ps.sockets import ask_for_map
from elastane.ps.table_wire import write_table

_LOOK_AROUND_S = 0.5
_AT_ONCE = 8
"""How many buckets are copied together, at most."""


@dataclass(frozen=True)
class _Job:
    bucket: int
    to: ServerId
    hand_over: bool


@dataclass(frozen=True)
class _Handing:
    """A bucket that another server was told to take."""

    entry: Entry
    """What holds when it has."""
    old_backup: int


class Ownership:
    """The buckets of one server, as they come and go. Callable from any thread."""

    def __init__(self, engine: Engine, token: str, copy_share: float = 1.0) -> None:
        self._copy_share = copy_share
        self._engine = engine
        self._ledger = engine.ledger
        self._token = token
        self._life = 0
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._stopped = False
        self._handing: dict[int, _Handing] = {}
        self._buried: dict[ServerId, ServerAddress] = {}
        self._copier = threading.Thread(target=self._copy_all, name="copier", daemon=True)

    def start(self, life: int) -> None:
        self._life = life
        self._copier.start()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        for link in list(self._engine.links.values()):
            link.close()
        self._copier.join()

    # -- what the control side asks

    def own(self, buckets: Iterable[int], epoch: int) -> None:
        """Own these buckets with what is here of them. Raises RequestRefused for an epoch that is not newer."""
        engine, ledger = self._engine, self._ledger
        with engine.order:
            wanted = list(buckets)
            self._check_epoch(wanted, epoch)
            engine.apply_whole_steps(also=wanted)
            for bucket in wanted:
                self._become_owner(bucket)
            ledger.note_all({bucket: Entry(epoch, ledger.me) for bucket in wanted})
        self._nudge()

    def give_up(self, buckets: Iterable[int], epoch: int) -> None:
        """Serve these buckets no more, for another content of them. Raises RequestRefused for an epoch not newer."""
        with self._engine.order:
            wanted = list(buckets)
            self._check_epoch(wanted, epoch)
            for bucket in wanted:
                if self._ledger.state[bucket] != State.NOTHING:
                    self._drop(bucket)
        self._nudge()

    def _check_epoch(self, buckets: list[int], epoch: int) -> None:
        entries = self._ledger.map.entries
        late = [bucket for bucket in buckets if entries[bucket].epoch >= epoch]
        if late:
            raise RequestRefused(f"epoch {epoch} is not above {entries[late[0]].epoch}, at which bucket {late[0]} is")

    def _become_owner(self, bucket: int) -> None:
        ledger = self._ledger
        handing = self._handing.pop(bucket, None)
        self._give_up(bucket, "the master decided on the bucket meanwhile")
        ledger.put(bucket, State.OWNED)
        ledger.backup[bucket] = NOBODY
        if handing is not None and handing.entry.owner is not None:
            self._engine.tell(
                ReplicationFailed(bucket, handing.entry.owner, "the master decided on the bucket meanwhile")
            )

    def promote(self, bucket: int, epoch: int) -> None:
        """Own a bucket of which a whole copy is here. Raises RequestRefused without one."""
        with self._engine.order:
            if self._ledger.state[bucket] == State.OWNED and self._ledger.map.entries[bucket].epoch == epoch:
                return  # It has heard of it by the map.
            if self._ledger.state[bucket] < State.REPLICA:
                raise RequestRefused(f"bucket {bucket} cannot be promoted here: there is no whole copy of it")
            self.own([bucket], epoch)

    def learn(self, owner_map: OwnerMap) -> None:
        """Take newer entries over. What others own by them is dropped here.

        By a decision of the master alone a whole copy becomes this server's own; not by what servers say of each other,
        for what they have sent may not have been read yet.
        """
        engine, ledger = self._engine, self._ledger
        with engine.order:
            for bucket in ledger.learn(owner_map):
                self._adjust(bucket, ledger.map.entries[bucket])
        self._nudge()

    def _adjust(self, bucket: int, entry: Entry) -> None:
        engine, ledger = self._engine, self._ledger
        state = State(ledger.state[bucket])
        if state is State.OWNED and entry.owner == ledger.me:
            if ledger.joined[bucket] and entry.backup == ledger.joining[bucket]:
                self._confirm_joined(bucket, entry)  # The new backup has told others before its answer came.
                return
            # The master never names a backup, so this says that the one that was is no more.
            ledger.backup[bucket] = NOBODY
            if ledger.joined[bucket]:
                self._give_up(bucket, "the master decided on the bucket meanwhile")
        elif state >= State.REPLICA and entry.owner == ledger.me:
            if is_decision(entry.epoch):
                engine.apply_whole_steps(also=[bucket])
                self._become_owner(bucket)
            elif bucket in self._handing:
                self.taken(bucket, self._handing[bucket].entry)  # Who gives it back has taken it.
        elif state in {State.OWNED, State.HANDING}:
            self._drop(bucket)
            engine.tell(SteppedDown(bucket, entry.epoch))
        elif (state is State.REPLICA and entry.backup != ledger.me) or (
            # To be handed over to is no reason to drop it: the word of it has come before the last pages.
            state is State.RECEIVING and entry.owner not in {ledger.source[bucket], ledger.me}
        ):
            self._drop(bucket)

    def _drop(self, bucket: int) -> None:
        self._handing.pop(bucket, None)
        self._ledger.put(bucket, State.NOTHING)
        self._engine.forget(bucket)

    def replicate(self, bucket: int, to: ServerId) -> None:
        """Make `to` the backup of a bucket, in the background."""
        self._ask(_Job(bucket, to, hand_over=False))

    def hand_over(self, bucket: int, to: ServerId) -> None:
        """Make `to` the owner of a bucket, in the background."""
        self._ask(_Job(bucket, to, hand_over=True))

    def _ask(self, job: _Job) -> None:
        with self._wake:
            self._jobs.append(job)
            self._wake.notify_all()

    # -- links

    def link_to(self, peer: ServerId) -> Link:
        """The link to a server, opened if there is none. The caller has the lock. Raises RequestRefused."""
        links = self._engine.links
        link = links.get(peer)
        if link is not None and not link.lost:
            return link
        if self._waits_for_decision(peer):
            # A new link would go on where the old one has left something out.
            raise RequestRefused(f"the link to server {peer} was lost, and the master has not decided on its buckets")
        address = self._ledger.map.servers.get(peer)
        if address is None or self._buried.get(peer) == address:
            raise RequestRefused(f"server {peer} is {'not known here' if address is None else 'dead'}")
        hello = Hello(Peer.SERVER, self._ledger.me, self._life, self._ledger.n_buckets)
        link = Link(peer, address, hello, self._token, self._refused, self._lost)
        links[peer] = link
        link.send(Op.MAP, [self._ledger.map_bytes()])
        for spec in self._engine.store.tables():
            link.send(Op.DEFINE, [write_table(spec)])
        return link

    def _refused(self, map_bytes: bytes) -> None:
        self.learn(OwnerMap.from_bytes(map_bytes))

    def _lost(self, link: Link, reason: str) -> None:
        ledger = self._ledger
        with self._engine.order:
            if self._engine.links.get(link.peer) is not link:
                return
            for bucket in np.nonzero((ledger.joining == link.peer) & ~ledger.joined)[0].tolist():
                self._give_up(bucket, reason)
            needed = self._waits_for_decision(link.peer)
        if needed and not self._stopped:
            self._engine.tell(LinkLost(link.peer, reason))
            threading.Thread(target=self._look_around, args=(link,), name="look-around", daemon=True).start()
        self._nudge()

    def _look_around(self, link: Link) -> None:
        """Ask all others for their maps until it is known what becomes of the buckets that were copied over a link.

        The master tells it too, if it still takes this server for alive: one that was stopped for long may be replaced.
        """
        ledger = self._ledger
        hello = Hello(Peer.CLIENT, secrets.randbits(64), 0, ledger.n_buckets)
        while self._engine.links.get(link.peer) is link:
            if not self._waits_for_decision(link.peer):
                return
            for server, address in list(ledger.map.servers.items()):
                if server != ledger.me:
                    with contextlib.suppress(OSError, MalformedMessage):
                        self.learn(ask_for_map(server, address, hello, self._token))
            with self._wake:
                if self._wake.wait_for(lambda: self._stopped, _LOOK_AROUND_S):
                    return

    def bury(self, peer: ServerId) -> None:
        """Send nothing more to a dead server, and begin no copy to it."""
        with self._engine.order:
            address = self._ledger.map.servers.get(peer)
            if address is not None:
                self._buried[peer] = address
            link = self._engine.links.get(peer)
        with self._wake:
            dropped = [job for job in self._jobs if job.to == peer]
            self._jobs = deque(job for job in self._jobs if job.to != peer)
        for job in dropped:
            self._engine.tell(ReplicationFailed(job.bucket, job.to, "the server is dead"))
        if link is not None:
            link.close("the server is dead")

    def _waits_for_decision(self, peer: ServerId) -> bool:
        """Whether there are buckets of which this peer has a copy, or may have taken them."""
        return bool(self._ledger.needs(peer).any()) or any(
            handing.entry.owner == peer for handing in self._handing.values()
        )

    def _give_up(self, bucket: int, reason: str) -> None:
        ledger = self._ledger
        peer = int(ledger.joining[bucket])
        if peer != NOBODY:
            ledger.joining[bucket] = NOBODY
            ledger.joined[bucket] = False
            self._engine.tell(ReplicationFailed(bucket, ServerId(peer), reason))

    def _nudge(self) -> None:
        for link in list(self._engine.links.values()):
            link.nudge()

    # -- copying, some buckets to one server at a time: clients hear of all of them at once

    def _copy_all(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._stopped:
                    self._wake.wait()
                if self._stopped:
                    return
                jobs = self._next_jobs()
            begin = time.monotonic()
            requests = self._engine.requests
            self._do(jobs)
            if self._engine.requests != requests:
                self._yield_to_requests(time.monotonic() - begin)

    def _next_jobs(self) -> list[_Job]:
        """The next job, and those behind it that are of its kind."""
        first = self._jobs.popleft()
        jobs = {first.bucket: first}
        while self._jobs and len(jobs) < _AT_ONCE:
            following = self._jobs[0]
            if (following.to, following.hand_over) != (first.to, first.hand_over) or following.bucket in jobs:
                break
            jobs[following.bucket] = self._jobs.popleft()
        return list(jobs.values())

    def _yield_to_requests(self, spent_s: float) -> None:
        """Rest after a copy for so long that copying takes no more than its share of the time."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopped, spent_s * (1 / self._copy_share - 1))

    def _do(self, jobs: list[_Job]) -> None:
        under_way = [(job, *found) for job in jobs if (found := self._copied(job)) is not None]
        for _, link, _ in under_way:
            # The buckets are served here until the other server has all this: then they are away only for a moment.
            link.wait(link.last, lambda link=link: link.lost)  # type: ignore[misc]
        with self._engine.order:
            asked = [(job, link, number or self._send_end(link, job)) for job, link, number in under_way]
        for job, link, number in asked:
            if number:
                applied = link.wait(number, lambda link=link: link.lost)  # type: ignore[misc]
                end = self._taken_or_not if job.hand_over else self._joined_or_not
                end(job.bucket, job.to, applied=applied, link=link)

    def _copied(self, job: _Job) -> tuple[Link, int] | None:
        """Send all of a bucket. The answer is the link, and the number of the last frame if the job ends with it.

        None if there is nothing more to do for the job: it failed, or it was done.
        """
        ledger, bucket = self._ledger, job.bucket
        try:
            with self._engine.order:
                if ledger.state[bucket] != State.OWNED:
                    raise RequestRefused(f"bucket {bucket} is not owned here")
                if job.to == ledger.me:
                    raise RequestRefused(f"bucket {bucket} is here already")
                link = self.link_to(job.to)
                if ledger.backup[bucket] == job.to:
                    if job.hand_over:
                        return link, self._send_take(link, bucket)
                    self._engine.tell(Replicated(bucket, job.to, ledger.map.entries[bucket].epoch))
                    return None
                self._send_begin(link, job)
        except ElastaneError as error:
            self._engine.tell(ReplicationFailed(bucket, job.to, str(error)))
            return None
        self._send_pages(link, job)
        return link, 0

    def _send_begin(self, link: Link, job: _Job) -> None:
        engine, ledger, bucket = self._engine, self._ledger, job.bucket
        ledger.joining[bucket] = job.to
        applied = frames.write_applied(*ledger.applied_in(bucket))
        link.send(Op.BEGIN, frames.write_bucket(bucket, ledger.map.entries[bucket].epoch, applied))
        for held in engine.holds.of_bucket(bucket):
            link.send(Op.FORWARD, frames.write_push(held), Flag.HOLD | Flag.COPIED)

    def _send_pages(self, link: Link, job: _Job) -> None:
        engine = self._engine
        pages = engine.store.pages(job.bucket)
        while True:
            link.wait_for_room(copying=True)
            with engine.order:
                if self._ledger.joining[job.bucket] != job.to or link.lost:
                    return
                # A page and what is pushed before and after it must go in the order in which the store had them.
                page = next(pages, None)
                if page is None:
                    return
                link.send(Op.PAGE, frames.write_bucket(job.bucket, 0, page))

    def _send_end(self, link: Link, job: _Job) -> int:
        """Say that the bucket is the other one's, or its copy whole. The answer is that frame's number; 0: given up."""
        ledger, bucket = self._ledger, job.bucket
        if link.lost or ledger.joining[bucket] != job.to:
            return 0
        if job.hand_over:
            return self._send_take(link, bucket)
        ledger.joined[bucket] = True
        link.send(Op.MEMBERS, frames.write_members(self._engine.clocks.members()))
        return link.send(Op.COMPLETE, frames.write_bucket(bucket, next_turn(ledger.map.entries[bucket].epoch)))

    def _send_take(self, link: Link, bucket: int) -> int:
        ledger = self._ledger
        before = ledger.map.entries[bucket]
        keep = before.backup is not None
        entry = Entry(next_turn(before.epoch), link.peer, ledger.me if keep else None)
        self._handing[bucket] = _Handing(entry, int(ledger.backup[bucket]))
        ledger.put(bucket, State.HANDING)
        ledger.note(bucket, entry)
        link.send(Op.MEMBERS, frames.write_members(self._engine.clocks.members()))
        return link.send(Op.TAKE, frames.write_bucket(bucket, entry.epoch), Flag.KEEP if keep else Flag.NONE)

    def _joined_or_not(self, bucket: int, to: ServerId, *, applied: bool, link: Link) -> None:
        engine, ledger = self._engine, self._ledger
        with engine.order:
            if ledger.joining[bucket] != to or not ledger.joined[bucket]:
                return
            if not applied:
                # Refused: it is no backup. Lost: it may be one, and only the master can know.
                if not link.lost:
                    self._give_up(bucket, "the other server refused it")
                return
            entry = Entry(next_turn(ledger.map.entries[bucket].epoch), ledger.me, to)
            ledger.note(bucket, entry)
            self._confirm_joined(bucket, entry)
        self._nudge()

    def _confirm_joined(self, bucket: int, entry: Entry) -> None:
        ledger = self._ledger
        old, to = int(ledger.backup[bucket]), ServerId(int(ledger.joining[bucket]))
        ledger.backup[bucket] = to
        ledger.joining[bucket] = NOBODY
        ledger.joined[bucket] = False
        self._release(bucket, old, entry.epoch)
        self._engine.tell(Replicated(bucket, to, entry.epoch))

    def _taken_or_not(self, bucket: int, to: ServerId, *, applied: bool, link: Link) -> None:
        engine, ledger = self._engine, self._ledger
        with engine.order:
            handing = self._handing.get(bucket)
            if handing is None or handing.entry.owner != to:
                return
            if applied:
                self.taken(bucket, handing.entry)
            elif not link.lost:
                # It has not taken it, and never will: so the bucket is still this server's, and whole. The backup that
                # it had may have heard that it is none any more, and have dropped its copy.
                del self._handing[bucket]
                engine.apply_whole_steps(also=[bucket])
                ledger.put(bucket, State.OWNED)
                ledger.note(bucket, Entry(next_turn(ledger.map.entries[bucket].epoch), ledger.me))
                engine.tell(ReplicationFailed(bucket, to, "the other server refused it"))
        self._nudge()

    def taken(self, bucket: int, entry: Entry) -> None:
        """The new owner has said that it owns a bucket that this server gave it. The caller has the lock.

        It counts what was given: by now the owner may have said that it gives the bucket back.
        """
        engine, ledger = self._engine, self._ledger
        handing = self._handing.get(bucket)
        if handing is None or handing.entry != entry or entry.owner is None:
            return
        if entry.backup == ledger.me:
            del self._handing[bucket]
            ledger.put(bucket, State.REPLICA, source=entry.owner)
        else:
            self._drop(bucket)
        if handing.old_backup != entry.owner:
            self._release(bucket, handing.old_backup, entry.epoch)
        engine.tell(HandedOver(bucket, entry.owner, entry.epoch, entry.backup))

    def _release(self, bucket: int, old_backup: int, epoch: int) -> None:
        link = self._engine.links.get(old_backup)
        if link is not None and not link.lost:
            link.send(Op.RELEASE, frames.write_bucket(bucket, epoch))
