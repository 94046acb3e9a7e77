"""What is known of the parameter servers' work: their loads, and the view of them for people."""

from __future__ import annotations

from elastane.core.nodes import NodeGroup
from elastane.core.ps_cluster import PSCluster
from elastane.rpc.protos import control_pb2
from elastane.rpc.protos import node_pb2 as pb

_FADES = 0.7
"""How much of a load counts after the next word on it."""


class ServerLoads:
    """What the servers said last of their loads."""

    def __init__(self, n_buckets: int) -> None:
        self.step = 0
        """The highest that any client has pushed."""
        self._buckets = [0.0] * n_buckets
        self._last: dict[int, pb.ServerLoad] = {}
        self._heard_at: dict[int, float] = {}
        self._rates: dict[int, float] = {}

    def heard(self, server: int, load: pb.ServerLoad, now: float) -> None:
        """Take a server's word. A bucket that another one has is not counted here."""
        self._last[server] = load
        self.step = max(self.step, load.step)
        if not load.bucket:
            return
        span_s = max(0.001, now - self._heard_at.get(server, now - 1.0))
        self._heard_at[server] = now
        rate = sum(load.bucket) / span_s
        self._rates[server] = _FADES * self._rates.get(server, rate) + (1 - _FADES) * rate
        for bucket, rows in enumerate(load.bucket):
            if rows or self._buckets[bucket]:
                self._buckets[bucket] = _FADES * self._buckets[bucket] + (1 - _FADES) * rows / span_s

    def forget(self, server: int) -> None:
        for known in (self._last, self._heard_at, self._rates):
            known.pop(server, None)

    def by_bucket(self) -> list[float]:
        """Rows a second, by bucket."""
        return list(self._buckets)

    def rows_per_s(self, server: int | None = None) -> float:
        """Rows pulled and pushed a second, of one server or of all."""
        return sum(self._rates.values()) if server is None else self._rates.get(server, 0.0)

    def memory_bytes(self, server: int) -> int:
        return self._last[server].memory_bytes if server in self._last else 0

    def tables(self) -> dict[str, tuple[int, int]]:
        """Rows and bytes of each table, on all servers."""
        found: dict[str, tuple[int, int]] = {}
        for load in self._last.values():
            for table in load.table:
                rows, size = found.get(table.name, (0, 0))
                found[table.name] = (rows + table.rows, size + table.bytes)
        return found


def servers_view(rules: PSCluster, group: NodeGroup, loads: ServerLoads) -> control_pb2.ServersView:
    """The servers as a person sees them."""
    view = control_pb2.ServersView(
        wanted=group.target,
        version=rules.version,
        settled=rules.settled,
        buckets=len(rules.entries),
        moving=rules.moving,
        checkpoint=rules.checkpoint,
    )
    names = {node.id: node.name for node in group.nodes}
    for server in rules.servers:
        view.server.add(
            node=names[server],
            buckets=sum(entry.owner == server for entry in rules.entries),
            backups=sum(entry.backup == server for entry in rules.entries),
            memory_bytes=loads.memory_bytes(server),
            rows_per_s=loads.rows_per_s(server),
            leaving=server in rules.pre_dropped_ps,
        )
    for name, (rows, size) in sorted(loads.tables().items()):
        view.table.add(name=name, rows=rows, bytes=size)
    return view
