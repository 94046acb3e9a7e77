"""The client of the parameter servers: pull and push rows of many tables at once, wherever their buckets are."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from elastane.core.owners import OwnerMap
from elastane.model.errors import ElastaneError, InvalidInput, ServersUnreachable, TableUnknown
from elastane.model.ps import TableSpec
from elastane.ps import frames
from elastane.ps.batch import Batch, Tables
from elastane.ps.calls import Directory, PullCall, PushCall, ask_around
from elastane.ps.frames import Flag, Hello, Op, Peer
from elastane.ps.keys import Ids, Rows, warm_up
from elastane.ps.lane import Lane, Request
from elastane.ps.table_wire import write_table
from elastane.ps.ticks import Ticks

_PAUSE_S = 0.02
_MOST_GROUPS = 1000


class Client:
    """Pulls and pushes rows. Any thread may call; one push, one pull and one pull ahead are under way at a time.

    Operations wait for servers that are away until `timeout_s` has passed, and then raise ServersUnreachable. A push
    is applied exactly once, however often it has to be sent. `staleness` None: nobody waits for anybody; s: a pull for
    step t waits until every client that has joined has pushed step t - 1 - s; 0: the synchronous mode.
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
        most_body: int = frames.MAX_BODY,
        number: int | None = None,
    ) -> None:
        if owner_map.n_buckets != n_buckets:
            raise InvalidInput(f"buckets: {n_buckets} is not the {owner_map.n_buckets} of the owner map")
        if staleness is not None and staleness < 0:
            raise InvalidInput(f"staleness: {staleness} is below 0; None is for no bound")
        warm_up()
        self.number = secrets.randbits(64) if number is None else number
        """What stands for this client on the servers; another one goes on under its name only by `continue_from`."""
        self._directory = Directory(owner_map)
        self._staleness = staleness
        self._flags = (Flag.SCALE if slow_down_when_behind else Flag.NONE) | (
            Flag.HOLD if staleness == 0 else Flag.NONE
        )
        self._timeout_s = timeout_s
        self._specs: dict[str, TableSpec] = {}
        self._groups: dict[tuple[str, ...], Tables] = {}
        hello = Hello(Peer.CLIENT, self.number, 0, n_buckets)
        lanes = [Lane(hello, token, lambda: self._directory.map, self._all_specs, most_body) for _ in range(3)]
        self._pulls, self._aheads, self._pushes = lanes
        self._pending_pull: PullAhead | None = None
        self._pending_push: PushAhead | None = None
        self._sequence = 0
        self._ticks = Ticks(self._pushes, self._directory) if staleness is not None or slow_down_when_behind else None

    # -- tables

    def define(self, spec: TableSpec) -> None:
        """Make a table on every server. Raises TableMismatch if there is another one of that name."""
        if self._specs.get(spec.name) == spec:
            return
        self._specs[spec.name] = spec
        self._groups.clear()
        self._ask_all(Request(Op.DEFINE, [write_table(spec)]), f'table "{spec.name}" could not be defined')

    # -- rows

    def pull(self, keys: Mapping[str, Ids], step: int | None = None) -> dict[str, Rows]:
        """The rows of ids, table by table; an id may come twice. A row that was never pushed has its initial value.

        `step` is the one that they are for; without one nobody is waited for.
        """
        self._settle_push_before(step)
        call = self._pull_call(self._pulls, keys, step)
        with self._pulls.lock:
            call.start()
            call.finish()
        return dict(zip(call.batch.tables.names, call.batch.rows, strict=True))

    def pull_ahead(self, keys: Mapping[str, Ids], step: int | None = None) -> PullAhead:
        """Ask for rows now, and take them later: from the answer's `result()`."""
        call = self._pull_call(self._aheads, keys, step)
        with self._aheads.lock:
            if self._pending_pull is not None:
                self._pending_pull.settle()
            call.start()
            self._pending_pull = PullAhead(self, call, step)
            return self._pending_pull

    def push(
        self, gradients: Mapping[str, tuple[Ids, Rows]], lrs: Mapping[str, float], step: int, weight: float = 1.0
    ) -> None:
        """Apply gradients to rows, each once; the ids of a table must be different ones (see `keys.unique`).

        A learning rate is by default that of the table. `weight` counts against other clients' in the synchronous mode.
        """
        self.push_ahead(gradients, lrs, step, weight).result()

    def push_ahead(
        self, gradients: Mapping[str, tuple[Ids, Rows]], lrs: Mapping[str, float], step: int, weight: float = 1.0
    ) -> PushAhead:
        """Send gradients now, and see later, by the answer's `result()`, that they are applied.

        Their arrays must not change before that. The next push waits for it.
        """
        tables = self._tables(gradients)
        rates = tables.rates
        if lrs:
            rates = np.array([lrs.get(spec.name, spec.optimizer.lr) for spec in tables.specs], np.float32)
        return self._push(Op.PUSH, gradients, rates, step, weight, self._flags)

    def assign(self, name: str, ids: Ids, values: Rows, *, only_new: bool = True) -> None:
        """Set rows of a table; with `only_new` those alone that nobody has set or pushed to before."""
        flags = Flag.ONLY_NEW if only_new else Flag.NONE
        self._push(Op.ASSIGN, {name: (ids, values)}, np.zeros(1, np.float32), 0, 0.0, flags).result()

    # -- who counts, and where things are

    def join(self) -> int:
        """Count for the staleness bound. The answer is the step to go on from. Without a bound it is 0."""
        if self._ticks is None:
            return 0
        with self._pushes.lock:
            self._settle_push()
            version = self._ticks.next_version()
            asked = self._ask_all(Request(Op.JOIN, frames.write_join(version, -1)), "no server could be joined")
            step = max(frames.read_join(body)[1] for body in asked)
            self._ticks.joined(step)
            self._ask_all(Request(Op.JOIN, self._ticks.membership()), "no server could be joined")
        return step

    def leave(self) -> None:
        """Do not count for the staleness bound any more, until `join`."""
        if self._ticks is None:
            return
        with self._pushes.lock:
            self._settle_push()
            self._ticks.next_version()
            self._ticks.joined(-1)
            self._ask_all(Request(Op.LEAVE, self._ticks.membership()), "no server could be left")

    def continue_from(self, sequence: int) -> None:
        """Count pushes on from here: those with numbers that the servers have seen of this client are not applied."""
        with self._pushes.lock:
            self._settle_push()
            self._sequence = sequence

    def learn(self, owner_map: OwnerMap) -> None:
        """Take newer entries and addresses over."""
        self._directory.learn(owner_map)

    @property
    def owner_map(self) -> OwnerMap:
        """Where the buckets are, as far as this client knows."""
        return self._directory.map

    def close(self) -> None:
        """End all connections; what waits is broken off."""
        for lane in (self._pulls, self._aheads, self._pushes):
            lane.close()
        if self._ticks is not None:
            self._ticks.close()

    # -- one call

    def _pull_call(self, lane: Lane, keys: Mapping[str, Ids], step: int | None) -> PullCall:
        batch = Batch.to_fetch(self._tables(keys), list(keys.values()))
        waits = step is not None and self._staleness is not None
        wait_for = step - 1 - self._staleness if waits else -1  # type: ignore[operator]
        return PullCall(lane, self._directory, batch, self._timeout_s, step=step or 0, wait_for=max(-1, wait_for))

    def _push(
        self,
        op: Op,
        given: Mapping[str, tuple[Ids, Rows]],
        lrs: npt.NDArray[np.float32],
        step: int,
        weight: float,
        flags: Flag,
    ) -> PushAhead:
        ids, rows = [ids for ids, _ in given.values()], [rows for _, rows in given.values()]
        batch = Batch.to_send(self._tables(given), ids, rows)
        with self._pushes.lock:
            self._settle_push()
            self._sequence += 1
            call = PushCall(
                self._pushes,
                self._directory,
                batch,
                self._timeout_s,
                op=op,
                client=self.number,
                sequence=self._sequence,
                step=step,
                weight=weight,
                lrs=lrs,
                flags=flags,
            )
            call.start()
            self._pending_push = PushAhead(self._pushes, call, self._ticks if op is Op.PUSH else None)
            return self._pending_push

    def _settle_push(self) -> None:
        if self._pending_push is not None:
            self._pending_push.result()

    def _settle_push_before(self, step: int | None) -> None:
        """Others wait for this client's push, and its pull for theirs: so the push must be through first."""
        if self._ticks is not None and step is not None:
            with self._pushes.lock:
                self._settle_push()

    def _ask_all(self, request: Request, failure: str) -> list[memoryview]:
        """Ask all servers, until at least one has answered; the others hear the same when they are connected."""
        deadline = time.monotonic() + self._timeout_s
        with self._pushes.lock:
            self._settle_push()
            while True:
                requests = dict.fromkeys(self._directory.map.servers, request)
                answers = self._pushes.ask(requests, max(0.0, deadline - time.monotonic()))
                if answers:
                    return [body for _, body in answers.values()]
                if self._pushes.closed or time.monotonic() > deadline:
                    raise ServersUnreachable(f"{failure} in {self._timeout_s:g} s: no parameter server answers")
                time.sleep(_PAUSE_S)
                ask_around(self._pushes, self._directory)

    def _tables(self, names: Iterable[str]) -> Tables:
        key = tuple(names)
        found = self._groups.get(key)
        if found is None:
            unknown = [name for name in key if name not in self._specs]
            if unknown:
                raise TableUnknown(f'table "{unknown[0]}" was not defined by this client')
            found = Tables([self._specs[name] for name in key])
            if len(self._groups) < _MOST_GROUPS:
                self._groups[key] = found
        return found

    def _all_specs(self) -> list[TableSpec]:
        return list(self._specs.values())


class PullAhead:
    """Rows on their way."""

    def __init__(self, client: Client, call: PullCall, step: int | None) -> None:
        self._client = client
        self._call = call
        self._step = step
        self._done = False
        self._error: ElastaneError | None = None

    def result(self) -> dict[str, Rows]:
        """Wait for the rows. Raises what `pull` does."""
        self._client._settle_push_before(self._step)
        with self._client._aheads.lock:
            self.settle()
        if self._error is not None:
            raise self._error
        return dict(zip(self._call.batch.tables.names, self._call.batch.rows, strict=True))

    def settle(self) -> None:
        """Take the rows, or the error. The caller has the lane's lock."""
        if self._done:
            return
        self._done = True
        try:
            self._call.finish()
        except ElastaneError as error:
            self._error = error


class PushAhead:
    """Gradients on their way."""

    def __init__(self, lane: Lane, call: PushCall, ticks: Ticks | None) -> None:
        self._lane = lane
        self._call = call
        self._ticks = ticks
        self._done = False

    def result(self) -> None:
        """Wait until every server has applied its part. After ServersUnreachable it may be waited for again."""
        with self._lane.lock:
            if self._done:
                return
            try:
                self._call.finish()
            except ServersUnreachable:
                raise
            except ElastaneError:
                self._done = True
                raise
            self._done = True
            if self._ticks is not None:
                self._ticks.tick(self._call.step, self._call.weight)
