"""ServerMetrics: what a parameter server knows of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.metrics_core import Metric as Family

from elastane.model.ids import NodeName
from elastane.prometheus import of_ps as p
from elastane.prometheus.scrape import Scrape
from elastane.ps.attending import ServerAttendant
from elastane.ps.server_events import HandedOver, LinkLost, Replicated, ReplicationFailed, ServerEvent, Took

_MOVES: dict[type[ServerEvent], str] = {
    Took: "taken",
    HandedOver: "handed_over",
    Replicated: "replicated",
    ReplicationFailed: "failed",
}


class ServerMetrics:
    """The metrics of one server. They may be collected in any thread: what is read has locks of its own."""

    def __init__(self, node: NodeName, attendant: ServerAttendant) -> None:
        self._job, _, number = node.rpartition("-ps-")
        self._node = f"ps-{number}" if self._job else node
        self._attendant = attendant

    def collect(self) -> Sequence[Family]:
        """All metrics, as they are now."""
        scrape = Scrape(p.PS, job=self._job, node=self._node)
        attendant, server = self._attendant, self._attendant.server
        scrape.put_flag(p.ATTENDS, attendant.attends)
        scrape.put(p.ROWS, attendant.rows)
        scrape.put(p.LINKS_LOST, attendant.happened[LinkLost])
        for kind, outcome in _MOVES.items():
            scrape.put(p.MOVES, attendant.happened[kind], outcome)
        if server is None:
            return scrape.families()
        for state, count in server.bucket_states().items():
            scrape.put(p.BUCKETS, count, state.name.lower())
        scrape.put(p.COPYING, server.copying)
        scrape.put(p.STEP, server.steps)
        for name, table in sorted(server.store.memory().items()):
            scrape.put(p.TABLE_ROWS, table.rows, name)
            scrape.put(p.TABLE_BYTES, table.bytes, name)
            scrape.put(p.TABLE_COUNTED, table.counted, name)
        return scrape.families()
