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

from elastane.coordinator.running import running_closure
from elastane.core.owners import OwnerMap
from elastane.model.ps import TableSpec
from elastane.ps.client import Client
from elastane.ps.keys import Ids, Rows

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
        self._specs: dict[str, TableSpec] = {}

    def define(self, spec: TableSpec) -> None:
        """Make a table on every server. Raises TableMismatch if there is another one of that name."""
        with self._lock:
            self._specs[spec.name] = spec
            for client in (self._own, *self._lanes.values()):
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

    def learn(self, owner_map: OwnerMap) -> None:
        """Take newer entries and addresses over."""
        with self._lock:
            for client in (self._own, *self._lanes.values()):
                client.learn(owner_map)

    def close(self) -> None:
        with self._lock:
            for client in (self._own, *self._lanes.values()):
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
        self._lanes.move_to_end(push.lane)
        client.continue_from(push.sequence - 1)
        return client
