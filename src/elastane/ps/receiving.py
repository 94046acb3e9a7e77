"""The other end of a link: what a server does with a peer's pages and pushes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from elastane.core.owners import Entry, OwnerMap, ServerId
from elastane.model.errors import MalformedMessage
from elastane.ps import frames, keys
from elastane.ps.engine import Engine
from elastane.ps.frames import Flag, Header, Op
from elastane.ps.ledger import NOBODY, State
from elastane.ps.ownership import Ownership
from elastane.ps.server_events import Took
from elastane.ps.table_wire import read_table


class Receiver:
    """Applies one peer's frames, in their order. Each answer is whether all of the frame was applied.

    What is not applied is refused by an older epoch, or because it belongs to a copy that was given up: the peer hears
    the map, and steps down, or begins anew.
    """

    def __init__(self, engine: Engine, ownership: Ownership, peer: ServerId) -> None:
        self.peer = peer
        self.cut = False
        """Set under the engine's lock: from then on nothing that this peer sent is applied."""
        self._engine = engine
        self._ledger = engine.ledger
        self._ownership = ownership
        self._actions: dict[Op, Callable[[Header, memoryview], bool]] = {
            Op.MAP: self._map,
            Op.DEFINE: self._define,
            Op.MEMBERS: self._members,
            Op.BEGIN: self._begin,
            Op.PAGE: self._page,
            Op.FORWARD: self._forward,
            Op.APPLY: self._apply,
            Op.EVICT: self._evict,
            Op.COMPLETE: self._complete,
            Op.TAKE: self._take,
            Op.TAKEN: self._taken,
            Op.RELEASE: self._release,
        }

    def handle(self, header: Header, body: memoryview) -> bool:
        """Apply one frame. Raises MalformedMessage, or ConnectionResetError if the peer is not to be heard any more."""
        action = self._actions.get(header.op)
        if action is None:
            raise MalformedMessage(f"{header.op.name} from a server")
        with self._engine.order:
            if self.cut:
                raise ConnectionResetError("this server is not to be heard any more")
            return action(header, body)

    def ended(self) -> None:
        """The connection is gone: copies that are not whole are of no use."""
        with self._engine.order:
            if self.cut:
                return
            self.cut = True
            ledger = self._ledger
            theirs = ledger.source == self.peer
            for bucket in np.nonzero(theirs & (ledger.state == State.RECEIVING))[0].tolist():
                self._drop(bucket)
            # A whole copy stays, for the master may make it the owner; but another link could leave a gap in it.
            ledger.source[theirs] = NOBODY

    def _map(self, header: Header, body: memoryview) -> bool:
        del header
        self._ownership.learn(OwnerMap.from_bytes(body))
        return True

    def _define(self, header: Header, body: memoryview) -> bool:
        del header
        self._engine.define(read_table(body))
        return True

    def _members(self, header: Header, body: memoryview) -> bool:
        del header
        self._engine.clocks.heed(frames.read_members(body))
        return True

    def _begin(self, header: Header, body: memoryview) -> bool:
        del header
        bucket, epoch, rest = self._bucket(body)
        if self._ledger.map.entries[bucket].epoch > epoch or self._ledger.state[bucket] >= State.OWNED:
            return False
        self._engine.forget(bucket)
        self._ledger.set_applied(bucket, frames.read_applied(rest))
        self._ledger.put(bucket, State.RECEIVING, self.peer)
        return True

    def _page(self, header: Header, body: memoryview) -> bool:
        del header
        bucket, _, page = self._bucket(body)
        if not self._comes_from_peer(bucket):
            return False
        self._engine.store.install(bucket, page)
        return True

    def _forward(self, header: Header, body: memoryview) -> bool:
        push = frames.read_push(body)
        dims = self._engine.check(push)
        buckets = self._engine.store.buckets_of(push.keys.tables, push.keys.counts, push.keys.ids)
        ours = self._ledger.source[buckets] == self.peer
        applied = self._ledger.applied(push.client)
        fresh = ours if header.flags & Flag.COPIED else ours & (applied[buckets] < push.sequence)
        if fresh.any():
            part = push if fresh.all() and not header.flags & Flag.HOLD else keys.select(push, dims, fresh)
            with self._engine.store.lock:
                self._engine.apply_locked(part, buckets[fresh], header.flags)
                if not header.flags & Flag.COPIED:
                    applied[buckets[fresh]] = push.sequence
        return bool(ours.all())

    def _apply(self, header: Header, body: memoryview) -> bool:
        del header
        step, shares = frames.read_scales(body)
        self._engine.apply_as_told(self.peer, step, shares)
        return True

    def _evict(self, header: Header, body: memoryview) -> bool:
        del header
        bucket, step, _ = self._bucket(body)
        if not self._comes_from_peer(bucket):
            return False
        self._engine.store.evict(bucket, step)
        return True

    def _complete(self, header: Header, body: memoryview) -> bool:
        del header
        bucket, epoch, _ = self._bucket(body)
        if not self._comes_from_peer(bucket) or self._ledger.map.entries[bucket].epoch >= epoch:
            return False
        self._ledger.note(bucket, Entry(epoch, self.peer, self._ledger.me))
        self._ledger.put(bucket, State.REPLICA, self.peer)
        return True

    def _take(self, header: Header, body: memoryview) -> bool:
        bucket, epoch, _ = self._bucket(body)
        known = self._ledger.map.entries[bucket]
        foretold = known.epoch == epoch and known.owner == self._ledger.me
        if not self._comes_from_peer(bucket) or (known.epoch >= epoch and not foretold):
            return False
        keep = bool(header.flags & Flag.KEEP)
        if keep:
            self._ownership.link_to(self.peer).send(Op.TAKEN, frames.write_bucket(bucket, epoch))
            self._ledger.backup[bucket] = self.peer
        # Steps that are whole here may not have been on the server before; it hears of them as the backup.
        self._engine.apply_whole_steps(also=[bucket])
        self._ledger.note(bucket, Entry(epoch, self._ledger.me, self.peer if keep else None))
        self._ledger.put(bucket, State.OWNED)
        self._engine.tell(Took(bucket, epoch, self.peer if keep else None))
        return True

    def _taken(self, header: Header, body: memoryview) -> bool:
        del header
        bucket, epoch, _ = self._bucket(body)
        self._ownership.taken(bucket, Entry(epoch, self.peer, self._ledger.me))
        return self._comes_from_peer(bucket)

    def _release(self, header: Header, body: memoryview) -> bool:
        del header
        bucket, epoch, _ = self._bucket(body)
        if self._comes_from_peer(bucket) and self._ledger.map.entries[bucket].epoch <= epoch:
            self._drop(bucket)
        return True

    def _bucket(self, body: memoryview) -> tuple[int, int, memoryview]:
        return frames.read_bucket(body, self._ledger.n_buckets)

    def _comes_from_peer(self, bucket: int) -> bool:
        return int(self._ledger.source[bucket]) == self.peer

    def _drop(self, bucket: int) -> None:
        self._ledger.put(bucket, State.NOTHING, NOBODY)
        self._engine.forget(bucket)
