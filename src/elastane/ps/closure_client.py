"""The parameter servers' client for closures of a coordinator: what a closure pushes is applied exactly once.

That holds also if its worker is lost and it is run again elsewhere. Each push of a closure has a name that stays the
same in every run of it: the lane of the worker that had it first, and a number within that lane; and the servers know
what they have applied of a lane. So the second run of a closure must make the same pushes in the same order, which it
does if it is a function of its arguments.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from elastane.coordinator.coordinator import token_of_environment
from elastane.coordinator.running import running_closure
from elastane.coordinator.server_maps import current_server_maps
from elastane.core.owners import OwnerMap
from elastane.model.ps import TableSpec
from elastane.ps.client import Client
from elastane.ps.keys import Ids, Rows
from elastane.worker.door import data_token

_MOST_LANES = 4
"""A worker pushes under its own lane, and now and then under that of a lost one."""


class ClosureClient:
    """Pulls and pushes rows from within closures; outside of one it is a client like any other."""

    def __init__(self, owner_map: OwnerMap, token: str, n_buckets: int, *, timeout_s: float = 600.0) -> None:
        self._token = token
        self._n_buckets = n_buckets
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._own = Client(owner_map, token, n_buckets, timeout_s=timeout_s)
        self._lanes: OrderedDict[int, Client] = OrderedDict()
        self._all: tuple[Client, ...] = (self._own,)
        self._specs: dict[str, TableSpec] = {}

    def define(self, spec: TableSpec) -> None:
        """Make a table on every server. Raises TableMismatch if there is another one of that name."""
        with self._lock:
            self._specs[spec.name] = spec
            for client in self._all:
                client.define(spec)

    def pull(self, keys: Mapping[str, Ids]) -> dict[str, Rows]:
        """The rows of ids, table by table."""
        return self._own.pull(keys)

    def push(self, gradients: Mapping[str, tuple[Ids, Rows]], lrs: Mapping[str, float], step: int) -> None:
        """Apply gradients to rows, once, however often the closure is run."""
        with self._lock:
            self._named().push(gradients, lrs, step)

    def assign(self, name: str, ids: Ids, values: Rows, *, only_new: bool = True) -> None:
        """Set rows of a table; with `only_new` those alone that nobody has set or pushed to before."""
        with self._lock:
            self._named().assign(name, ids, values, only_new=only_new)

    @property
    def owner_map(self) -> OwnerMap:
        """Where the buckets are, as far as this client knows."""
        return self._own.owner_map

    def learn(self, owner_map: OwnerMap) -> None:
        """Take newer entries and addresses over. Does not wait for a push under way, which may wait for just this."""
        for client in self._all:
            client.learn(owner_map)

    def close(self) -> None:
        with self._lock:
            for client in self._all:
                client.close()

    def _named(self) -> Client:
        """The client under whose name the next push goes out, with the push's number."""
        closure = running_closure()
        if closure is None:
            return self._own
        push = closure.next_push()
        client = self._lanes.get(push.lane)
        if client is None:
            client = self._lanes[push.lane] = Client(
                self._own.owner_map, self._token, self._n_buckets, timeout_s=self._timeout_s, number=push.lane
            )
            for spec in self._specs.values():
                client.define(spec)
            if len(self._lanes) > _MOST_LANES:
                self._lanes.popitem(last=False)[1].close()
            self._all = (self._own, *self._lanes.values())
            client.learn(self._own.owner_map)  # What came while it was made.
        self._lanes.move_to_end(push.lane)
        client.continue_from(push.sequence - 1)
        return client


_of_job: list[ClosureClient] = []
_making = threading.Lock()


def job_client() -> ClosureClient:
    """This process's client of the parameter servers of the job: for the script of a coordinator, and for closures.

    Raises RequestRefused in a job without servers, or outside of a job with a coordinator.
    """
    with _making:
        if not _of_job:
            maps = current_server_maps()
            owner_map = OwnerMap.from_bytes(maps.owner_map())
            client = ClosureClient(owner_map, data_token(token_of_environment()), owner_map.n_buckets)
            maps.follow(lambda newer: client.learn(OwnerMap.from_bytes(newer)))
            client.learn(OwnerMap.from_bytes(maps.owner_map()))  # What came before it followed.
            _of_job.append(client)
        return _of_job[0]
