"""MasterClient: a job's master, as a plain script of any framework uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from elastane.model.dataset import DatasetSpec
from elastane.model.errors import InvalidInput
from elastane.model.ids import DatasetName, NodeName
from elastane.model.world import Place
from elastane.worker.door import Door
from elastane.worker.gathering import GatheringMember
from elastane.worker.handover import ServerSet
from elastane.worker.shard_client import ShardClient, Slice

WORLD_TIMEOUT_S = 600.0
HANDOVER_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class LeasedShard:
    """A range of samples that this client alone works on: iterate over it for the samples' numbers."""

    dataset: str
    epoch: int
    samples: Sequence[int]
    _slice: Slice

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class JoinedWorld:
    """This client's place among the others: `peers` are the addresses that the members gave, by rank."""

    version: int
    rank: int
    size: int
    peers: tuple[str, ...]


class MasterClient:
    """A stream to the master. Use it as a context manager, so that its end is known as good or bad.

    A call raises an ElastaneError, with the reason, if the job does not have the component that it needs, or has ended.
    """

    def __init__(self, address: str, token: str, node: str, certificate: str | None = None) -> None:
        """Raises RequestRefused if the master does not want this node, MasterUnreachable if it does not answer."""
        # A script may fork (a data loader does): its children leave gRPC alone, so gRPC need not prepare for them.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from elastane.worker.attendant import Attendant

        self.node = node
        """The name that this client came under."""
        self._link = Attendant(Door(address, token, NodeName(node), certificate))
        self._link.start()
        self._member: GatheringMember | None = None
        self._in_hand: dict[DatasetName, tuple[ShardClient, LeasedShard]] = {}
        self._clients: dict[DatasetName, ShardClient] = {}
        self._closed = False

    @classmethod
    def from_env(cls) -> MasterClient:
        """The master that ELASTANE_MASTER names, with the token of ELASTANE_TOKEN or ELASTANE_TOKEN_FILE."""
        door = Door.from_env()
        return cls(door.address, door.token, door.node, door.certificate)

    def shards(
        self,
        name: str,
        *,
        shard_size: int,
        size: int | None = None,
        indices: Sequence[int] | None = None,
        epochs: int = 1,
        shuffle: bool = False,
        seed: int = 0,
    ) -> Iterator[LeasedShard]:
        """Shards of a data set that no other worker gets, until every sample of every epoch is done.

        Report each with `done` or `failed` before the next is asked for. All workers must describe a data set alike;
        without `size` and `indices` it is an endless stream.

        Raises DatasetMismatch, and InvalidInput for a shard that was not reported.
        """
        dataset = DatasetName(name)
        if dataset in self._clients:
            raise InvalidInput(f'data set "{name}": an earlier loop over it has not ended')
        spec = DatasetSpec(
            dataset,
            shard_size=shard_size,
            size=size,
            indices=None if indices is None else tuple(int(index) for index in indices),
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
        )
        return self._leased(spec)

    def done(self, shard: LeasedShard) -> bool:
        """Report that all samples of a shard are done; False if it was no longer this client's, and does not count."""
        return self._report(shard).commit([shard._slice])

    def failed(self, shard: LeasedShard, error: str) -> None:
        """Give a shard back. A shard that keeps failing ends the job, with its errors named."""
        self._report(shard).put_back_only([shard._slice], error)

    def join_world(self, address: str = "", timeout_s: float = WORLD_TIMEOUT_S) -> JoinedWorld:
        """Wait until all members of the next world have called this; the answer is the place in it.

        Call it again when `world_changed` says so, or when the present world is of no more use. `address` is what the
        other members find in `peers`. Raises TimeoutError.
        """
        if self._member is None:
            self._member = GatheringMember(self._link)
        while True:
            place = self._member.gather(lambda place: {f"peer/{place.rank}": address.encode()}, timeout_s)
            try:
                peers = [self._member.find(place, f"peer/{rank}").decode() for rank in range(place.size)]
            except TimeoutError:
                continue  # That world has passed; the next one is on its way.
            return _joined(place, peers)

    @property
    def world_changed(self) -> bool:
        """Whether somebody came or left, and the others wait for this client to call `join_world` again."""
        return self._member is not None and self._member.changing

    def set_servers(self, addresses: Sequence[str]) -> int:
        """Have all workers go to these parameter servers, which are their own; the answer is the version of the set.

        Servers that were in use must live until `servers_needed` no longer has them.
        """
        return self._link.servers.handover.set_servers(addresses)

    def server_set(self, timeout_s: float = HANDOVER_TIMEOUT_S) -> ServerSet:
        """The parameter servers to begin with, once somebody has set some; then call `servers_restored`."""
        return self._link.servers.handover.begin(timeout_s)

    def servers_restored(self, servers: ServerSet) -> bool:
        """Train with this set from now on; false if meanwhile another is wanted: then ask for `server_set` again."""
        return self._link.servers.handover.restored(servers.version)

    @property
    def servers_changed(self) -> bool:
        """Whether all are to go to another set: finish the step, and call `hand_over`."""
        return self._link.servers.handover.changed

    @property
    def servers_needed(self) -> frozenset[str]:
        """The servers that somebody uses, or will."""
        return self._link.servers.handover.needed

    def hand_over(
        self, save: Callable[[int], None], restore: Callable[[ServerSet], None], timeout_s: float = HANDOVER_TIMEOUT_S
    ) -> ServerSet:
        """Go to the new set of parameter servers together with all others, by a checkpoint.

        No worker trains while one of them runs `save(version)`; then each runs `restore(servers)`. If a worker dies on
        the way the others go on, and if the set changes once more they begin anew. Raises TimeoutError.
        """
        return self._link.servers.handover.run(save, restore, timeout_s)

    def close(self, error: str | None = None) -> None:
        """Leave. A shard that was not reported goes to others; with `error`, its try has failed."""
        if self._closed:
            return
        self._closed = True
        for client, shard in self._in_hand.values():
            client.put_back_only([shard._slice], error)
        for client in self._clients.values():
            client.drain()
            client.put_back_ahead([])
        self._link.close(preempted=error is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished = error is None or (isinstance(error, SystemExit) and not error.code)
        self.close(None if finished else f"{type(error).__name__}: {error}")

    def _leased(self, spec: DatasetSpec) -> Iterator[LeasedShard]:
        client = self._clients[spec.name] = ShardClient(spec, self._link)
        try:
            while (piece := client.take_shard()) is not None:
                shard = LeasedShard(spec.name, piece.epoch, piece.samples, piece)
                self._in_hand[spec.name] = (client, shard)
                yield shard
                if spec.name in self._in_hand:
                    raise InvalidInput(
                        f'data set "{spec.name}": a shard was not reported; call done(shard) or failed(shard, error) '
                        "before the next is asked for"
                    )
        finally:
            # The shard in hand may still be reported.
            del self._clients[spec.name]
            client.drain()
            client.put_back_ahead([])

    def _report(self, shard: LeasedShard) -> ShardClient:
        client, in_hand = self._in_hand.get(DatasetName(shard.dataset), (None, None))
        if client is None or in_hand is not shard:
            raise InvalidInput(f'data set "{shard.dataset}": this shard was reported before, or is not of this client')
        del self._in_hand[DatasetName(shard.dataset)]
        return client


def _joined(place: Place, peers: list[str]) -> JoinedWorld:
    return JoinedWorld(place.version, place.rank, place.size, tuple(peers))
