"""The messages of parameter servers to nouns and back, with every value checked on the way in."""

from __future__ import annotations

from collections.abc import Iterable

from elastane.core.owners import MAX_EPOCH, Entry, OwnerMap, ServerId
from elastane.core.ps_orders import Change, Order, OrderKind
from elastane.model.errors import MalformedMessage
from elastane.rpc.protos import node_pb2 as pb
from elastane.rpc.wire import MOST_TEXT

MOST_SERVER = 65_534

_KINDS = {
    OrderKind.OWN: pb.BucketOrder.OWN,
    OrderKind.RESTORE: pb.BucketOrder.RESTORE,
    OrderKind.PROMOTE: pb.BucketOrder.PROMOTE,
    OrderKind.HAND_OVER: pb.BucketOrder.HAND_OVER,
    OrderKind.REPLICATE: pb.BucketOrder.REPLICATE,
}
_KINDS_BACK = {number: kind for kind, number in _KINDS.items()}


def checked_map(data: bytes, n_buckets: int) -> OwnerMap:
    """Raises MalformedMessage unless it is a map of so many buckets."""
    owner_map = OwnerMap.from_bytes(data)
    if owner_map.n_buckets != n_buckets:
        raise MalformedMessage(f"an owner map of {owner_map.n_buckets} buckets; this job has {n_buckets}")
    return owner_map


def changes_of(owner_map: OwnerMap) -> list[Change]:
    """The entries of a map in which somebody has something."""
    return [(bucket, *entry) for bucket, entry in enumerate(owner_map.entries) if entry.epoch]


def entries_to_wire(entries: Iterable[tuple[int, Entry]]) -> pb.BucketsChanged:
    return pb.BucketsChanged(
        entry=[
            pb.BucketEntry(bucket=bucket, epoch=entry.epoch, owner=entry.owner, backup=entry.backup)
            for bucket, entry in entries
        ]
    )


def changes_from_wire(message: pb.BucketsChanged, n_buckets: int) -> list[Change]:
    """Raises MalformedMessage for a bucket, an epoch or a server that cannot be."""
    changes: list[Change] = []
    for entry in message.entry:
        servers = (
            entry.owner if entry.HasField("owner") else None,
            entry.backup if entry.HasField("backup") else None,
        )
        in_bounds = all(server is None or server <= MOST_SERVER for server in servers)
        if entry.bucket >= n_buckets or entry.epoch > MAX_EPOCH or not in_bounds:
            raise MalformedMessage(f"an entry of bucket {entry.bucket}, epoch {entry.epoch} and servers {servers}")
        changes.append((entry.bucket, entry.epoch, *servers))
    return changes


def orders_to_wire(orders: Iterable[Order], checkpoint: str) -> pb.MasterMessage:
    told = pb.ServerOrders(checkpoint=checkpoint)
    for order in orders:
        told.order.add(kind=_KINDS[order.kind], bucket=order.bucket, value=order.value)
    return pb.MasterMessage(server_orders=told)


def orders_from_wire(message: pb.ServerOrders, server: ServerId, n_buckets: int) -> list[Order]:
    """Raises MalformedMessage."""
    orders = []
    for order in message.order:
        kind = _KINDS_BACK.get(order.kind)
        if kind is None or order.bucket >= n_buckets or order.value > MAX_EPOCH:
            raise MalformedMessage(f"an order of kind {order.kind} for bucket {order.bucket}")
        orders.append(Order(kind, server, order.bucket, order.value))
    return orders


def checked_buckets(message: pb.OrdersFailed, n_buckets: int) -> list[int]:
    """Raises MalformedMessage for buckets that do not exist, or an endless reason."""
    if any(bucket >= n_buckets for bucket in message.bucket) or len(message.reason) > MOST_TEXT:
        raise MalformedMessage(f"failed orders for {len(message.bucket)} buckets of {n_buckets}")
    return list(message.bucket)


def checked_load(message: pb.ServerLoad, n_buckets: int) -> pb.ServerLoad:
    """Raises MalformedMessage unless there is a load for each bucket, or for none."""
    if len(message.bucket) not in (0, n_buckets) or any(not 0 <= load < 1e18 for load in message.bucket):
        raise MalformedMessage(f"loads of {len(message.bucket)} buckets of {n_buckets}")
    return message
