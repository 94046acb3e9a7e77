"""Messages to nouns and back, with every value checked on the way in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from elastane.core.lockstep import Position
from elastane.model.dataset import DatasetSpec, Shard, Task
from elastane.model.errors import MalformedMessage
from elastane.model.ids import DatasetName, TaskId
from elastane.rpc.protos import node_pb2 as pb

PROTOCOL = 1
MOST_LEASES = 1000
MOST_TEXT = 8000
MOST_CHECKSUM = 64
MOST_STORE_KEY = 200
MOST_STORE_VALUE = 65536


def define_dataset_to_wire(spec: DatasetSpec) -> pb.DefineDataset:
    message = pb.DefineDataset(
        name=spec.name,
        shard_size=spec.shard_size,
        epochs=spec.epochs,
        shuffle=spec.shuffle,
        seed=spec.seed,
        lockstep=spec.lockstep,
    )
    if spec.indices is not None:
        message.indices.index.extend(spec.indices)
        message.indices.SetInParent()
    elif spec.size is not None:
        message.size = spec.size
    else:
        message.endless.SetInParent()
    return message


def define_dataset_from_wire(message: pb.DefineDataset) -> DatasetSpec:
    """Raises MalformedMessage without a source, InvalidInput for values that no data set can have."""
    source = message.WhichOneof("source")
    if source is None:
        raise MalformedMessage("a DefineDataset without a source")
    return DatasetSpec(
        name=DatasetName(message.name),
        shard_size=message.shard_size,
        size=message.size if source == "size" else None,
        indices=tuple(message.indices.index) if source == "indices" else None,
        epochs=message.epochs,
        shuffle=message.shuffle,
        seed=message.seed,
        lockstep=message.lockstep,
    )


def leases_to_wire(dataset: DatasetName, state: pb.Leases.State, tasks: Sequence[Task] = ()) -> pb.MasterMessage:
    leases = pb.Leases(dataset=dataset, state=state)
    for task in tasks:
        leases.lease.add(task=task.id, epoch=task.shard.epoch, start=task.shard.start, end=task.shard.end)
    return pb.MasterMessage(leases=leases)


def tasks_from_wire(message: pb.Leases) -> tuple[Task, ...]:
    name = DatasetName(message.dataset)
    for lease in message.lease:
        if lease.start >= lease.end:
            raise MalformedMessage(f"a lease of no samples: {lease.start} to {lease.end}")
    return tuple(Task(TaskId(lease.task), name, Shard(lease.epoch, lease.start, lease.end)) for lease in message.lease)


def position_to_wire(
    dataset: DatasetName, position: Position, step: int, world: int, restored: bool
) -> pb.DataPosition:
    message = pb.DataPosition(dataset=dataset, start=position.start, step=step, world=world, restored=restored)
    for start, end in position.left:
        message.left.add(start=start, end=end)
    return message


def position_from_wire(message: pb.DataPosition) -> Position:
    """Raises MalformedMessage unless the spans left are in order, apart, and before the start."""
    left = tuple((span.start, span.end) for span in message.left)
    edges = [edge for span in left for edge in span]
    if any(start >= end for start, end in pairwise(edges)) or (edges and edges[-1] > message.start):
        raise MalformedMessage(f"a position before {message.start} with {len(left)} spans that do not fit")
    return Position(message.start, left)


def checked_store_set(message: pb.StoreSet) -> pb.StoreSet:
    if not message.key or len(message.key) > MOST_STORE_KEY or len(message.value) > MOST_STORE_VALUE:
        raise MalformedMessage(
            f"a store entry with a key of {len(message.key)} characters and {len(message.value)} bytes; "
            f"1 to {MOST_STORE_KEY} and at most {MOST_STORE_VALUE} are allowed"
        )
    return message


def checked_checksum(message: pb.WorldMoved) -> str:
    if len(message.checksum) > MOST_CHECKSUM:
        raise MalformedMessage(f"a checksum of {len(message.checksum)} characters; at most {MOST_CHECKSUM} are allowed")
    return message.checksum


def checked_hello(message: pb.NodeMessage) -> pb.Hello:
    """Raises MalformedMessage unless this is a Hello of this protocol."""
    if message.WhichOneof("body") != "hello":
        raise MalformedMessage("the first message of a stream must be a Hello")
    if message.hello.protocol != PROTOCOL:
        raise MalformedMessage(
            f"protocol {message.hello.protocol} is not {PROTOCOL}; use the master's elastane version"
        )
    return message.hello


def checked_count(request: pb.LeaseRequest) -> int:
    if not 1 <= request.count <= MOST_LEASES:
        raise MalformedMessage(f"a request for {request.count} leases; 1 to {MOST_LEASES} are allowed")
    return request.count


def checked_error(message: pb.GiveBack) -> str | None:
    if len(message.error) > MOST_TEXT:
        raise MalformedMessage(f"an error text of {len(message.error)} characters; at most {MOST_TEXT} are allowed")
    return message.error or None
