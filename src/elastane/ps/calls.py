"""One pull or push on its way: cut by owners, sent to all of them, and sent again where it is refused or unanswered."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from elastane.core.owners import Changes, OwnerMap, ServerId
from elastane.model.errors import MalformedMessage, ServersUnreachable
from elastane.ps import frames, keys
from elastane.ps.batch import Batch
from elastane.ps.frames import Flag, Keys, Op, Pull, Push
from elastane.ps.keys import Positions, Rows
from elastane.ps.lane import Answer, Lane, Request, Sent

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.05
_ASK_AROUND_S = 0.1
_UNKNOWN = -2
_NOTHING: Positions = np.zeros(0, np.int64)


class Directory:
    """The owner map as a client knows it, from whoever tells. Any thread may use it."""

    def __init__(self, owner_map: OwnerMap) -> None:
        self.map = owner_map
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        """Called when there are servers that were not known."""
        self._lookup: tuple[OwnerMap, list[ServerId], Positions] | None = None

    def learn(self, owner_map: OwnerMap) -> None:
        """Merge newer entries and addresses."""
        with self._lock:
            before = self.map
            self.map = before.merge(owner_map)
        if self.map.servers is not before.servers:
            self.on_change()

    def learn_changes(self, changes: Changes) -> None:
        """Merge what is known of some buckets; this is on the way of every request while buckets move."""
        with self._lock:
            before, known = self.map, self._lookup
            self.map = before.merge_changes(changes)
            if self.map is before:
                return
            if known is not None and known[0] is before:
                places: dict[ServerId | None, int] = {server: place for place, server in enumerate(known[1])}
                of_bucket = known[2].copy()
                for bucket in changes.entries:
                    of_bucket[bucket] = places.get(self.map.entries[bucket].owner, _UNKNOWN)
                if not (of_bucket == _UNKNOWN).any():
                    self._lookup = (self.map, known[1], of_bucket)
        if self.map.servers is not before.servers:
            self.on_change()

    def learn_bytes(self, data: bytes | memoryview) -> None:
        """Merge a map from the wire."""
        self.learn(OwnerMap.from_bytes(data))

    def lookup(self) -> tuple[list[ServerId], Positions]:
        """All owners, and for each bucket the place of its owner among them, or -1."""
        with self._lock:
            owner_map, known = self.map, self._lookup
            if known is not None and known[0] is owner_map:
                return known[1], known[2]
            owners = sorted({entry.owner for entry in owner_map.entries if entry.owner is not None})
            places: dict[ServerId | None, int] = {server: place for place, server in enumerate(owners)}
            of_bucket: Positions = np.array([places.get(entry.owner, -1) for entry in owner_map.entries], np.int64)
            self._lookup = (owner_map, owners, of_bucket)
            return owners, of_bucket


class Call(ABC):
    """One pull or push. It is sent when it is made; `finish` takes the answers, and sends again until all is done.

    The caller has the lane's lock for both.
    """

    def __init__(self, lane: Lane, directory: Directory, batch: Batch, op: Op, timeout_s: float) -> None:
        self._lane = lane
        self._directory = directory
        self._op = op
        self._timeout_s = timeout_s
        self.batch = batch
        self._left: Positions | None = None
        self._asked_around = 0.0

    def start(self) -> None:
        """Send what is left to be done to its owners."""
        owners, of_bucket = self._directory.lookup()
        batch = self.batch
        self._all_to_one = self._left is None and len(owners) == 1
        if self._all_to_one:
            self._route = keys.one_way(batch.lengths)
        else:
            self._route = keys.route(batch.ids, self._left, batch.starts, batch.tables.numbers, of_bucket, len(owners))
        starts = self._route.starts
        self._servers = [(at, server) for at, server in enumerate(owners) if starts[at + 1] > starts[at]]
        self._sent: Sent = self._lane.send({server: self._request(at) for at, server in self._servers})

    def finish(self) -> None:
        """Wait until all is done. Raises ServersUnreachable, and what a server answered with."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            into = self.batch.flat if self._all_to_one else None
            answers = self._lane.receive(self._sent, max(0.0, deadline - time.monotonic()), into)
            self._left = self._take(answers)
            if not len(self._left):
                return
            self._rest(pause_s, deadline, unanswered=len(answers) < len(self._servers))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.start()

    @abstractmethod
    def _request(self, at: int) -> Request:
        """What the server of this place is asked."""

    @abstractmethod
    def _rows(self, at: int, rows: memoryview) -> None:
        """Take the rows of its answer. Raises MalformedMessage."""

    def _order(self, at: int) -> Positions:
        return self._route.order[self._route.starts[at] : self._route.starts[at + 1]]

    def _keys(self, at: int) -> Keys:
        batch = self.batch
        if self._all_to_one:
            return Keys(batch.tables.numbers, batch.counts, batch.ids)
        return Keys(batch.tables.numbers, self._route.counts[at].astype(np.uint32), batch.ids[self._order(at)])

    def _numbers(self, at: int) -> int:
        return int(self._route.counts[at].dot(self.batch.tables.dims))

    def _take(self, answers: Mapping[ServerId, Answer]) -> Positions:
        """Take what was answered; what was not, or was refused, is left."""
        left = []
        for at, server in self._servers:
            order = self._order(at)
            answer = answers.get(server)
            if answer is None:
                left.append(order)
                continue
            header, body = answer
            begin = 0
            if header.flags & Flag.REFUSED:
                refused, changes, begin = frames.read_refusal(body, len(order))
                self._directory.learn_changes(Changes.from_bytes(changes))
                left.append(order[refused.astype(np.int64)])
            elif self._all_to_one and self.batch.flat is not None and len(body) == self.batch.flat.nbytes:
                continue  # They were received where they belong.
            self._rows(at, body[begin:])
        if not left and self._all_to_one:
            return _NOTHING
        asked = len(self.batch.ids) if self._left is None else len(self._left)
        if asked > len(self._route.order):  # Some have no owner yet.
            every = np.arange(asked, dtype=np.int64) if self._left is None else self._left
            left.append(np.setdiff1d(every, self._route.order))
        return np.sort(np.concatenate(left)) if left else _NOTHING

    def _rest(self, pause_s: float, deadline: float, *, unanswered: bool) -> None:
        now = time.monotonic()
        if self._lane.closed or now > deadline:
            count = 0 if self._left is None else len(self._left)
            self._sent = Sent(self._directory.map, [])  # Whoever waits for this again must not wait for old answers.
            raise ServersUnreachable(
                f"{count} rows could not be {'pulled' if self._op is Op.PULL else 'pushed'} in {self._timeout_s:g} s: "
                "their servers are away; see whether they run"
            )
        if unanswered and now > self._asked_around + _ASK_AROUND_S:
            self._asked_around = now
            ask_around(self._lane, self._directory)
        time.sleep(pause_s)


class PullCall(Call):
    """Fetches rows into the arrays of its batch."""

    def __init__(
        self, lane: Lane, directory: Directory, batch: Batch, timeout_s: float, *, step: int, wait_for: int
    ) -> None:
        super().__init__(lane, directory, batch, Op.PULL, timeout_s)
        self._step = step
        self._wait_for = wait_for

    def _request(self, at: int) -> Request:
        return Request(Op.PULL, frames.write_pull(Pull(self._step, self._wait_for, self._keys(at))))

    def _rows(self, at: int, rows: memoryview) -> None:
        batch = self.batch
        if len(rows) != 4 * self._numbers(at):
            raise MalformedMessage(f"a pull of {4 * self._numbers(at)} bytes was answered by {len(rows)}")
        values = np.frombuffer(rows, np.float32)
        keys.scatter(self._order(at), self._route.counts[at], batch.starts, batch.addresses, batch.tables.dims, values)


class PushCall(Call):
    """Sends gradients, or values to assign, from the arrays of its batch, under one sequence number."""

    def __init__(
        self,
        lane: Lane,
        directory: Directory,
        batch: Batch,
        timeout_s: float,
        *,
        op: Op,
        client: int,
        sequence: int,
        step: int,
        weight: float,
        lrs: npt.NDArray[np.float32],
        flags: Flag,
    ) -> None:
        super().__init__(lane, directory, batch, op, timeout_s)
        self._client = client
        self._sequence = sequence
        self.step = step
        self.weight = weight
        self._lrs = lrs
        self._flags = flags

    def _request(self, at: int) -> Request:
        batch = self.batch
        if self._all_to_one:
            push = self._push(at, np.empty(0, np.float32))
            return Request(self._op, [*frames.write_push(push), *map(frames.raw, batch.rows)], self._flags)
        values = np.empty(self._numbers(at), np.float32)
        keys.gather(self._order(at), self._route.counts[at], batch.starts, batch.addresses, batch.tables.dims, values)
        return Request(self._op, frames.write_push(self._push(at, values)), self._flags)

    def _push(self, at: int, values: Rows) -> Push:
        return Push(self._client, self._sequence, self.step, self.weight, self._keys(at), self._lrs, values)

    def _rows(self, at: int, rows: memoryview) -> None:
        del at
        if len(rows):
            raise MalformedMessage(f"a push was answered by {len(rows)} bytes")


def ask_around(lane: Lane, directory: Directory) -> None:
    """Ask all servers for what they know: one of them may know who has what a dead one had."""
    requests = {server: Request(Op.MAP, []) for server in directory.map.servers}
    for _, body in lane.ask(requests, 1.0).values():
        directory.learn_bytes(body)
