"""The client of the parameter servers: pull and push rows of many tables at once, wherever their buckets are."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastane.core.owners import OwnerMap, ServerId
from elastane.model.errors import InvalidInput, MalformedMessage, ServersUnreachable, TableUnknown
from elastane.model.ps import TableSpec
from elastane.ps import frames, keys
from elastane.ps.addresses import address_of
from elastane.ps.frames import Flag, Hello, Keys, Op, Peer, Pull, Push
from elastane.ps.keys import Ids, Positions, Rows
from elastane.ps.lane import Answer, Lane, Request
from elastane.ps.sockets import FrameSocket
from elastane.ps.table_wire import write_table

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.05
_ASK_AROUND_S = 0.1
_TICKS_KEPT = 64


@dataclass(frozen=True)
class _Batch:
    """The rows of one call: the ids of all tables one after another, and an array of rows for each table."""

    numbers: npt.NDArray[np.uint32]
    ids: Ids
    starts: Positions
    dims: Positions
    rows: Sequence[Rows]
    addresses: Positions


class Client:
    """Pulls and pushes rows. Any thread may call; two pushes, or two pulls, wait for each other.

    Operations wait for servers that are away until `timeout_s` has passed, and then raise ServersUnreachable. A push
    is applied exactly once, however often it has to be sent. `staleness` None: nobody waits for anybody; s: a pull for
    step t waits until every active client has pushed step t - 1 - s; 0: the synchronous mode.
    """

    def __init__(
        self,
        owner_map: OwnerMap,
        token: str,
        n_buckets: int,
        *,
        staleness: int | None = None,
        slow_down_when_behind: bool = False,
        timeout_s: float = 600.0,
        number: int | None = None,
        most_body: int = frames.MAX_BODY,
    ) -> None:
        if owner_map.n_buckets != n_buckets:
            raise InvalidInput(f"buckets: {n_buckets} is not the {owner_map.n_buckets} of the owner map")
        if staleness is not None and staleness < 0:
            raise InvalidInput(f"staleness: {staleness} is below 0; None is for no bound")
        self.number = secrets.randbits(64) if number is None else number
        self._map = owner_map
        self._map_lock = threading.Lock()
        self._owners: tuple[OwnerMap, list[ServerId], npt.NDArray[np.int64]] | None = None
        self._staleness = staleness
        self._ticking = staleness is not None or slow_down_when_behind
        self._scale = Flag.SCALE if slow_down_when_behind else Flag.NONE
        self._timeout_s = timeout_s
        self._specs: dict[str, TableSpec] = {}
        hello = Hello(Peer.CLIENT, self.number, 0, n_buckets)
        self._pulls = Lane(hello, token, lambda: self._map, most_body)
        self._pushes = Lane(hello, token, lambda: self._map, most_body)
        for lane in (self._pulls, self._pushes):
            lane.specs = lambda: list(self._specs.values())
        self._pushes.greet = self._tell_ticks
        self._ticks: dict[int, float] = {}
        self._ticked: dict[ServerId, int] = {}
        self._sequence = 0
        self._pushed = -1
        self._asked_around = 0.0
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="pull-ahead")
        self._closed = threading.Event()
        self._behind = threading.Event()
        self._ticker = threading.Thread(target=self._mend_ticks, name="ticks", daemon=True)
        if self._ticking:
            self._ticker.start()

    # -- what a trainer calls

    def define(self, spec: TableSpec) -> None:
        """Make a table on every server. Raises TableMismatch if there is another one of that name."""
        known = self._specs.get(spec.name)
        self._specs[spec.name] = spec
        if known == spec:
            return
        deadline = time.monotonic() + self._timeout_s
        pause = _FIRST_PAUSE_S
        with self._pushes.lock:
            while not self._define_everywhere(spec, deadline):
                pause = self._rest(self._pushes, pause, deadline, f'define table "{spec.name}"')

    def pull(self, wanted: Mapping[str, Ids], *, step: int | None = None) -> dict[str, Rows]:
        """The rows of ids, table by table; an id may come twice. `step` is the one that they are for, by default the
        next one that this client pushes. A row that was never pushed has its initial value."""
        batch = self._batch({name: (ids, None) for name, ids in wanted.items()})
        for_step = self._pushed + 1 if step is None else step
        wait_for = -1 if self._staleness is None else for_step - 1 - self._staleness
        deadline = time.monotonic() + self._timeout_s
        positions: Positions | None = None
        pause = _FIRST_PAUSE_S
        with self._pulls.lock:
            while True:
                servers, route = self._route(batch, positions)
                requests = {}
                for at, server in servers:
                    order = route.order[route.starts[at] : route.starts[at + 1]]
                    pull = Pull(for_step, wait_for, Keys(batch.numbers, _u32(route.counts[at]), batch.ids[order]))
                    requests[server] = Request(Op.PULL, frames.write_pull(pull))
                answers = self._pulls.ask(requests, deadline)
                left = self._left(batch, positions, servers, route, answers)
                if not len(left):
                    return dict(zip(wanted, batch.rows, strict=True))
                positions = left
                pause = self._rest(
                    self._pulls, pause, deadline, f"pull {len(left)} rows", unanswered=len(answers) < len(servers)
                )

    def pull_ahead(self, wanted: Mapping[str, Ids], *, step: int | None = None) -> Future[dict[str, Rows]]:
        """The same in the background."""
        for_step = self._pushed + 1 if step is None else step
        return self._ahead.submit(self.pull, wanted, step=for_step)

    def push(
        self,
        gradients: Mapping[str, tuple[Ids, Rows]],
        lrs: Mapping[str, float] | None = None,
        step: int = 0,
        weight: float = 1.0,
    ) -> None:
        """Apply gradients to rows, each once; the ids of a table must be different ones (see `keys.unique`).

        A learning rate is by default that of the table. `weight` counts against other clients' in the synchronous mode.
        """
        hold = Flag.HOLD if self._staleness == 0 else Flag.NONE
        given = lrs or {}
        rates = [given.get(name, self._spec(name).optimizer.lr) for name in gradients]
        with self._pushes.lock:
            self._send(Op.PUSH, gradients, np.array(rates, np.float32), step, weight, hold | self._scale)
            self._pushed = max(self._pushed, step)
            if self._ticking:
                self._tick(step, weight)

    def assign(self, values: Mapping[str, tuple[Ids, Rows]], *, only_new: bool = True) -> None:
        """Set rows; with `only_new` those alone that nobody has set or pushed to before."""
        with self._pushes.lock:
            rates = np.zeros(len(values), np.float32)
            self._send(Op.ASSIGN, values, rates, 0, 0.0, Flag.ONLY_NEW if only_new else Flag.NONE)

    def learn(self, owner_map: OwnerMap) -> None:
        """Take newer entries and addresses over."""
        with self._map_lock:
            before = self._map
            self._map = before.merge(owner_map)
        if self._map is not before and self._ticking:
            self._behind.set()

    @property
    def owner_map(self) -> OwnerMap:
        return self._map

    def close(self) -> None:
        """End all connections; what waits is broken off."""
        self._closed.set()
        self._behind.set()
        self._pulls.close()
        self._pushes.close()
        self._ahead.shutdown(wait=True, cancel_futures=True)
        if self._ticking:
            self._ticker.join()

    # -- one call

    def _send(
        self,
        op: Op,
        given: Mapping[str, tuple[Ids, Rows]],
        rates: npt.NDArray[np.float32],
        step: int,
        weight: float,
        flags: Flag,
    ) -> None:
        batch = self._batch(dict(given))
        self._sequence += 1
        deadline = time.monotonic() + self._timeout_s
        positions: Positions | None = None
        pause = _FIRST_PAUSE_S
        while len(batch.ids):
            servers, route = self._route(batch, positions)
            requests = {}
            for at, server in servers:
                order = route.order[route.starts[at] : route.starts[at + 1]]
                counts = route.counts[at]
                values = np.empty(int((counts * batch.dims).sum()), np.float32)
                keys.gather(order, counts, batch.starts, batch.addresses, batch.dims, values)
                rows = Keys(batch.numbers, _u32(counts), batch.ids[order])
                push = Push(self.number, self._sequence, step, weight, rows, rates, values)
                requests[server] = Request(op, frames.write_push(push), flags)
            answers = self._pushes.ask(requests, deadline)
            left = self._left(None, positions, servers, route, answers, len(batch.ids))
            if not len(left):
                return
            positions = left
            pause = self._rest(
                self._pushes, pause, deadline, f"push {len(left)} rows", unanswered=len(answers) < len(servers)
            )

    def _batch(self, given: Mapping[str, tuple[Ids, Rows | None]]) -> _Batch:
        specs = [self._spec(name) for name in given]
        ids = [np.ascontiguousarray(one, np.int64).reshape(-1) for one, _ in given.values()]
        rows = []
        for spec, one, (_, values) in zip(specs, ids, given.values(), strict=True):
            if values is None:
                rows.append(np.empty((len(one), spec.dim), np.float32))
                continue
            if values.shape != (len(one), spec.dim):
                raise InvalidInput(
                    f'table "{spec.name}": rows of shape {values.shape} do not fit {len(one)} ids of {spec.dim} numbers'
                )
            rows.append(np.ascontiguousarray(values, np.float32))
        return _Batch(
            numbers=np.array([spec.number for spec in specs], np.uint32),
            ids=np.concatenate(ids) if ids else np.zeros(0, np.int64),
            starts=np.concatenate(([0], np.cumsum([len(one) for one in ids], dtype=np.int64))).astype(np.int64),
            dims=np.array([spec.dim for spec in specs], np.int64),
            rows=rows,
            addresses=np.array([address_of(one) for one in rows], np.int64),
        )

    def _spec(self, name: str) -> TableSpec:
        spec = self._specs.get(name)
        if spec is None:
            raise TableUnknown(f'table "{name}" was not defined by this client')
        return spec

    def _route(self, batch: _Batch, positions: Positions | None) -> tuple[list[tuple[int, ServerId]], keys.Route]:
        owner_map = self._map
        if self._owners is None or self._owners[0] is not owner_map:
            ids = sorted({entry.owner for entry in owner_map.entries if entry.owner is not None})
            places = {server: place for place, server in enumerate(ids)}
            lookup = [-1 if entry.owner is None else places[entry.owner] for entry in owner_map.entries]
            self._owners = (owner_map, ids, np.array(lookup, np.int64))
        _, ids, lookup_array = self._owners
        route = keys.route(batch.ids, positions, batch.starts, batch.numbers, lookup_array, len(ids))
        return [(at, server) for at, server in enumerate(ids) if route.starts[at + 1] > route.starts[at]], route

    def _left(
        self,
        batch: _Batch | None,
        positions: Positions | None,
        servers: Sequence[tuple[int, ServerId]],
        route: keys.Route,
        answers: Mapping[ServerId, Answer],
        n_ids: int = 0,
    ) -> Positions:
        """The positions that are still to be asked for; the rows of the others are put in their places."""
        left = []
        for at, server in servers:
            order = route.order[route.starts[at] : route.starts[at + 1]]
            answer = answers.get(server)
            if answer is None:
                left.append(order)
                continue
            header, body = answer
            begin = 0
            if header.flags & Flag.REFUSED:
                refused, map_bytes, begin = frames.read_refusal(body, len(order))
                self.learn(OwnerMap.from_bytes(map_bytes))
                left.append(order[refused.astype(np.int64)])
            if batch is not None:
                counts = route.counts[at]
                if header.op is not Op.ROWS or len(body) - begin != 4 * int((counts * batch.dims).sum()):
                    raise MalformedMessage(
                        f"server {server} answered a pull with {header.op.name} of {len(body)} bytes"
                    )
                rows = np.frombuffer(body, np.float32, offset=begin)
                keys.scatter(order, counts, batch.starts, batch.addresses, batch.dims, rows)
        asked = len(positions) if positions is not None else (len(batch.ids) if batch is not None else n_ids)
        if asked > len(route.order):  # Some have no owner yet.
            every = np.arange(asked, dtype=np.int64) if positions is None else positions
            left.append(np.setdiff1d(every, route.order))
        return np.sort(np.concatenate(left)) if left else np.zeros(0, np.int64)

    def _rest(self, lane: Lane, pause: float, deadline: float, what: str, *, unanswered: bool = True) -> float:
        now = time.monotonic()
        if self._closed.is_set() or now > deadline:
            raise ServersUnreachable(
                f"could not {what} in {self._timeout_s:g} s: their servers are away; see whether they run"
            )
        if unanswered and now > self._asked_around + _ASK_AROUND_S:
            self._asked_around = now
            self._ask_around(lane)
        time.sleep(pause)
        return min(pause * 2, _LONGEST_PAUSE_S)

    def _ask_around(self, lane: Lane) -> None:
        """Ask all servers for what they know: one of them may know who has what a dead one had."""
        requests = {server: Request(Op.MAP, []) for server in self._map.servers}
        for _, body in lane.ask(requests, time.monotonic() + 1.0).values():
            self.learn(OwnerMap.from_bytes(body))

    def _define_everywhere(self, spec: TableSpec, deadline: float) -> bool:
        # A connection that is new defines all tables by itself, so this is for those that are there.
        frame = Request(Op.DEFINE, [write_table(spec)])
        requests = dict.fromkeys(self._map.servers, frame)
        return bool(self._pushes.ask(requests, deadline))

    # -- ticks

    def _tick(self, step: int, weight: float) -> None:
        self._ticks[step] = weight
        while len(self._ticks) > _TICKS_KEPT:
            del self._ticks[min(self._ticks)]
        told = [self._tell_server(server) for server in self._map.servers if self._pushes.is_open(server)]
        if len(told) < len(self._map.servers) or not all(told):
            self._behind.set()

    def _tell_server(self, server: ServerId) -> bool:
        """Tell a server the ticks that it has not heard. False: it is away."""
        if not self._pushes.reach(server):  # If this opens a connection, all ticks are told on it.
            return False
        heard = self._ticked.get(server, -1)
        for step in sorted(step for step in self._ticks if step > heard):
            if not self._pushes.say(server, Request(Op.TICK, frames.write_tick(step, self._ticks[step]))):
                return False
            self._ticked[server] = step
        return True

    def _tell_ticks(self, server: ServerId, connection: FrameSocket) -> None:
        for step, weight in sorted(self._ticks.items()):
            connection.send(Op.TICK, 0, frames.write_tick(step, weight))
        self._ticked[server] = max(self._ticks, default=-1)

    def _mend_ticks(self) -> None:
        """Tell servers that could not be told, until they are: others wait for this client's steps there."""
        while not self._closed.is_set():
            self._behind.wait()
            self._behind.clear()
            with self._pushes.lock:
                told = [self._tell_server(server) for server in self._map.servers]
            if not all(told) and not self._closed.wait(_ASK_AROUND_S):
                self._behind.set()


def _u32(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    return counts.astype(np.uint32)
