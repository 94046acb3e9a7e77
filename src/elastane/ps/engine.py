"""What a server does with requests: pulls, pushes applied exactly once and forwarded in order, steps held and applied.

One lock (`order`) makes the order of pushes: a push is applied to the store and put on the links to other servers under
it, so that every copy of a bucket gets the same pushes in the same order, and a page of a copy between the right two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from elastane.core.owners import ServerId
from elastane.model.errors import MalformedMessage, TableUnknown
from elastane.model.ps import TableSpec
from elastane.ps import frames, keys
from elastane.ps.clocks import Clocks
from elastane.ps.frames import Flag, Keys, Op, Pull, Push
from elastane.ps.holds import Holds
from elastane.ps.ledger import Ledger
from elastane.ps.link import Link
from elastane.ps.server_events import OnEvent
from elastane.ps.store import Store
from elastane.ps.table_wire import write_table

_BEHIND_S = 5.0
"""A pull that waits for others longer than this is refused, so that its client may look where things are now."""

_MOST_COMBINATIONS = 1000
"""Combinations of tables whose row lengths are remembered; the same clients ask for the same ones again and again."""

Refused = npt.NDArray[np.uint32]
_NONE: Refused = np.zeros(0, np.uint32)


class Engine:
    """The requests of one server, from any number of threads."""

    def __init__(self, store: Store, n_buckets: int, server: ServerId, on_event: OnEvent) -> None:
        self.store = store
        self.ledger = Ledger(n_buckets, server)
        self.clocks = Clocks()
        self.holds = Holds(self.dims_of)
        self.order = threading.RLock()
        self.links: dict[int, Link] = {}
        self.tell = on_event
        self.requests = 0
        """Counts pulls and pushes, to see whether there are any."""
        self.steps = 0
        """One more than the highest step of a push so far."""
        self._dims: dict[int, int] = {}
        self._dims_of: dict[bytes, npt.NDArray[np.int64]] = {}
        self.refresh_tables()

    # -- tables

    def define(self, spec: TableSpec) -> None:
        """Make a table here and on every server that gets this one's pushes. Raises TableMismatch."""
        with self.order:
            known = spec.number in self._dims
            self.store.define(spec)
            self._dims[spec.number] = spec.dim
            if not known:
                for link in self.links.values():
                    link.send(Op.DEFINE, [write_table(spec)])

    def dims_of(self, tables: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The row length of each table. Raises TableUnknown."""
        key = tables.tobytes()
        dims = self._dims_of.get(key)
        if dims is None:
            try:
                dims = np.array([self._dims[table] for table in tables.tolist()], np.int64)
            except KeyError as error:
                raise TableUnknown(f"no table of number {error} is defined here") from None
            if len(self._dims_of) < _MOST_COMBINATIONS:
                self._dims_of[key] = dims
        return dims

    # -- pulls

    def pull(
        self, pull: Pull, buffer: Callable[[int], npt.NDArray[np.float32]]
    ) -> tuple[npt.NDArray[np.float32], Refused]:
        """The rows, one after another, and the positions of those that this server does not own (their rows are 0)."""
        self.requests += 1
        wanted = pull.keys
        dims = self.dims_of(wanted.tables)
        out = buffer(int((wanted.counts * dims).sum()))
        if not self.clocks.wait(pull.wait_for, _BEHIND_S):
            out[:] = 0
            return out, np.arange(len(wanted.ids), dtype=np.uint32)
        while True:
            moves = self.ledger.moves
            if keys.all_served(wanted, self.ledger.serving):
                self.store.pull(wanted.tables, wanted.counts, wanted.ids, out)
                refused = _NONE
            else:
                buckets = self.store.buckets_of(wanted.tables, wanted.counts, wanted.ids)
                owned = self.ledger.serving[buckets] != 0
                refused = np.nonzero(~owned)[0].astype(np.uint32)
                self._pull_some(wanted, dims, owned, out)
            # A bucket that left meanwhile may have been read when it was empty already.
            if moves == self.ledger.moves:
                break
        return out, refused

    def _pull_some(
        self, wanted: Keys, dims: npt.NDArray[np.int64], owned: npt.NDArray[np.bool_], out: npt.NDArray[np.float32]
    ) -> None:
        some = keys.select_keys(wanted, owned)
        parts = [
            np.empty((count, dim), np.float32) for count, dim in zip(some.counts.tolist(), dims.tolist(), strict=True)
        ]
        self.store.pull(some.tables, some.counts, some.ids, parts)
        out[:] = 0
        at = 0
        for part, whole in zip(parts, _cut(out, wanted.counts, dims), strict=True):
            whole[owned[at : at + len(whole)]] = part
            at += len(whole)

    # -- pushes

    def push(self, push: Push, flags: Flag) -> Refused:
        """Apply what this server owns of a push, once, and wait until every backup has it. The answer is the rest."""
        self.requests += 1
        dims = self.check(push)
        for link in list(self.links.values()):
            link.wait_for_room(copying=False)
        with self.order:
            applied = self.ledger.applied(push.client)
            judged = keys.judge(push.keys, self.ledger.serving, applied, push.sequence)
            if len(judged.buckets) > judged.refused + judged.repeated:
                if flags & Flag.SCALE:
                    push = _slower(push, self.clocks.lead(push.client))
                whole = not judged.refused and not judged.repeated
                part = push if whole and not flags & Flag.HOLD else keys.select(push, dims, judged.taken)
                with self.store.lock:  # Who has this lock sees rows and sequences that fit each other.
                    self.apply_locked(part, judged.buckets if whole else judged.buckets[judged.taken], flags)
                    keys.mark(judged, applied, push.sequence)
            waits = self._forward(push, dims, judged, flags) if self.links else []
        if waits:
            return self._settle(judged, waits)
        return judged.positions(keys.REFUSED) if judged.refused else _NONE

    def apply_locked(self, part: Push, buckets: npt.NDArray[np.uint32], flags: Flag) -> None:
        """Change the store, or hold the push, which then has memory of its own. The caller has both locks."""
        if flags & Flag.HOLD:
            self.holds.add(part, buckets)
            return
        if flags & Flag.VALUES:
            at = 0
            rows = _cut(part.values, part.keys.counts, self.dims_of(part.keys.tables))
            for table, values in zip(part.keys.tables.tolist(), rows, strict=True):
                ids = part.keys.ids[at : at + len(values)]
                self.store.assign_locked(table, ids, values, only_new=bool(flags & Flag.ONLY_NEW))
                at += len(values)
        else:
            self.store.push_locked(part.keys.tables, part.keys.counts, part.keys.ids, part.values, part.lrs, part.step)

    def check(self, push: Push) -> npt.NDArray[np.int64]:
        """The row length of each table of a push that fits them. Raises TableUnknown and MalformedMessage."""
        dims = self.dims_of(push.keys.tables)
        wanted = int((push.keys.counts * dims).sum())
        if wanted != len(push.values):
            raise MalformedMessage(f"a push of {len(push.values)} numbers for rows of {wanted}")
        if push.step < 0 or push.sequence < 0:
            raise MalformedMessage(f"a push of step {push.step}, sequence {push.sequence}")
        self.steps = max(self.steps, push.step + 1)
        return dims

    def _forward(
        self, push: Push, dims: npt.NDArray[np.int64], judged: keys.Judgement, flags: Flag
    ) -> list[tuple[Link, int]]:
        waits = []
        buckets, taken = judged.buckets, judged.taken
        for peer in self.ledger.peers():
            link = self.links[peer]
            theirs = ((self.ledger.backup == peer) | (self.ledger.joining == peer))[buckets]
            mine = theirs & taken
            if mine.any():
                body = frames.write_push(keys.select(push, dims, mine))
                link.send(Op.FORWARD, body, flags & ~Flag.SCALE)
            # A repeated row was sent before, and its peer may not have it yet.
            if (theirs & (judged.verdicts != keys.REFUSED) & self.ledger.needs(peer)[buckets]).any():
                waits.append((link, link.last))
        return waits

    def _settle(self, judged: keys.Judgement, waits: Sequence[tuple[Link, int]]) -> Refused:
        buckets = judged.buckets
        doubtful = np.zeros(len(buckets), np.bool_)
        for link, number in waits:
            peer = int(link.peer)

            def needless(peer: int = peer) -> bool:
                return not self.ledger.needs(peer)[buckets].any()

            if not link.wait(number, needless):
                doubtful[:] = True
        with self.order:
            # To refuse what was applied is safe: whoever owns the bucket now knows whether it has this push.
            lost = doubtful & (self.ledger.serving[buckets] == 0)
        return np.nonzero(lost | (judged.verdicts == keys.REFUSED))[0].astype(np.uint32)

    # -- steps

    def tick(self, client: int, step: int, weight: float) -> None:
        """Note that a client has pushed all of a step, and apply what is whole by that."""
        self.clocks.tick(client, step, weight)
        self.apply_whole_steps()

    def heed(self, members: Mapping[int, tuple[int, int]]) -> None:
        """Take over who counts, and apply what is whole by that."""
        self.clocks.heed(members)
        self.apply_whole_steps()

    def apply_whole_steps(self, also: Iterable[int] = ()) -> None:
        """Apply what is held of every step that all who count have pushed, in the buckets that this server owns.

        `also` are buckets that it is about to own: nobody may pull from them before.
        """
        with self.order:
            floor = self.clocks.floor()
            chosen = self.ledger.serving.view(np.bool_).copy()
            chosen[list(also)] = True
            for step in self.holds.steps(floor) if self.holds else []:
                if self.clocks.lacks(step, self.holds.clients(step)):
                    floor = step - 1  # A server that came back has not heard of all who count yet.
                    break
                shares = self.clocks.shares(step) or self.holds.shares(step)
                if not self._apply_held(step, chosen, shares):
                    continue
                for peer in self.ledger.peers():
                    self.links[peer].send(Op.APPLY, frames.write_scales(step, shares))
            self.clocks.applied(floor)

    def apply_as_told(self, peer: int, step: int, shares: dict[int, float]) -> None:
        """Apply what is held of a step in a peer's buckets, as the peer did. The caller has the lock."""
        self._apply_held(step, self.ledger.source == peer, shares)

    def _apply_held(self, step: int, chosen: npt.NDArray[np.bool_], shares: dict[int, float]) -> bool:
        with self.store.lock:
            whole = self.holds.take(step, chosen, shares)
            if whole is not None:
                self.apply_locked(whole, _NONE, Flag.NONE)
        return whole is not None

    # -- the rest

    def evict(self, step: int) -> int:
        """Forget rows that their tables need not keep at this step, here and in the copies. The answer is how many."""
        gone = 0
        for bucket in np.nonzero(self.ledger.serving)[0].tolist():
            with self.order:
                if not self.ledger.serving[bucket]:
                    continue
                gone += self.store.evict(bucket, step)
                for peer in {int(self.ledger.backup[bucket]), int(self.ledger.joining[bucket])} - {-1}:
                    self.links[peer].send(Op.EVICT, frames.write_bucket(bucket, step))
        return gone

    def notes_locked(self, bucket: int) -> bytes:
        """What a checkpoint must have of a bucket beside its rows. The caller has the store's lock."""
        held = [b"".join(frames.write_push(push)) for push in self.holds.of_bucket(bucket)]
        # What is held waits for all who count: whoever has it from here must wait for the same.
        members = [b"".join(frames.write_members(self.clocks.members()))] if held else []
        return frames.write_notes([frames.write_applied(*self.ledger.applied_in(bucket)), *members, *held])

    def recall(self, bucket: int, notes: bytes) -> None:
        """Take over what a checkpoint has beside the rows. The caller has the lock. Raises MalformedMessage."""
        applied, *more = frames.read_notes(notes) or [frames.write_applied([], [])]
        self.refresh_tables()
        self.holds.forget(bucket)
        self.ledger.set_applied(bucket, frames.read_applied(applied))
        if not more:
            return
        members, *held = more
        self.clocks.heed(frames.read_members(members))
        for body in held:
            push = frames.read_push(bytearray(body))
            self.check(push)
            self.holds.add(push, np.full(len(push.keys.ids), bucket, np.uint32))

    def refresh_tables(self) -> None:
        """Look which tables the store has; pages may have brought some."""
        self._dims = {spec.number: spec.dim for spec in self.store.tables()}

    def forget(self, bucket: int) -> None:
        """Drop all that is here of a bucket. The caller has the lock."""
        with self.store.lock:
            self.store.drop_locked(bucket)
            self.holds.forget(bucket)
            self.ledger.set_applied(bucket, {})


def _cut(
    flat: npt.NDArray[np.float32], counts: npt.NDArray[np.uint32], dims: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.float32]]:
    rows = []
    at = 0
    for count, dim in zip(counts.tolist(), dims.tolist(), strict=True):
        end = at + count * dim
        rows.append(flat[at:end].reshape(count, dim))
        at = end
    return rows


def _slower(push: Push, lead: int) -> Push:
    lrs = (push.lrs / np.float32(1 + lead)).astype(np.float32)
    return Push(push.client, push.sequence, push.step, push.weight, push.keys, lrs, push.values)
