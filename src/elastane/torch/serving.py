"""The way from a job's embeddings and trainer to its parameter servers."""

from __future__ import annotations

from elastane.core.owners import OwnerMap
from elastane.model.errors import InvalidInput
from elastane.ps.client import Client
from elastane.worker.servers import Servers


def connect(servers: Servers, *, scale_lr_by_staleness: bool) -> Client:
    """A client that hears of every move. Waits for the first servers. Raises InvalidInput in a job without any."""
    if servers.settings is None:
        raise InvalidInput("embedding: this job has no parameter servers; start it with --ps")
    client = Client(
        OwnerMap.from_bytes(servers.owner_map()),
        servers.token,
        servers.settings.n_buckets,
        staleness=servers.settings.staleness,
        slow_down_when_behind=scale_lr_by_staleness,
    )
    servers.uses(client.number)
    servers.follow(lambda told: client.learn(OwnerMap.from_bytes(told)))
    client.learn(OwnerMap.from_bytes(servers.owner_map()))  # What came before it was followed.
    return client
