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
        """One more than the highest that any client has pushed."""
        self._n_buckets = n_buckets
        self._last: dict[int, pb.ServerLoad] = {}
        self._heard_at: dict[int, float] = {}
        self._rates: dict[int, list[float]] = {}

    def heard(self, server: int, load: pb.ServerLoad, now: float) -> None:
        """Take a server's word."""
        self._last[server] = load
        self.step = max(self.step, load.step)
        if not load.bucket:
            return
        span_s = max(0.001, now - self._heard_at.get(server, now - 1.0))
        self._heard_at[server] = now
        rates = [rows / span_s for rows in load.bucket]
        before = self._rates.get(server, rates)
        self._rates[server] = [_FADES * old + (1 - _FADES) * new for old, new in zip(before, rates, strict=True)]

    def forget(self, server: int) -> None:
        self._last.pop(server, None)
        self._heard_at.pop(server, None)
        self._rates.pop(server, None)

    def by_bucket(self) -> list[float]:
        """Rows a second, by bucket."""
        return [sum(rates) for rates in zip(*self._rates.values(), strict=True)] or [0.0] * self._n_buckets

    def rows_per_s(self, server: int | None = None) -> float:
        """Rows pulled and pushed a second, of one server or of all."""
        chosen = self._rates.values() if server is None else [self._rates.get(server, [])]
        return sum(sum(rates) for rates in chosen)

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
