"""Closures: what this process says to the master, and hears, as a coordinator's worker or as the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from elastane.rpc.protos import node_pb2 as pb

OnWorkers = Callable[[list[str], list[str]], None]
"""Takes the workers that serve and those that leave; called on the link's thread, and must not wait."""


class Closures:
    """This process's part in a job with a coordinator. `say` tells the master something, from any thread."""

    def __init__(self, say: Callable[[pb.NodeMessage], None]) -> None:
        self.over = threading.Event()
        """Whether the coordinator needs this worker no more, or the master is gone for good."""
        self.is_chief = False
        """Whether this node is the worker of slot 0."""
        self._say = say
        self._service: pb.ServeClosures | None = None
        self._use: pb.Coordinate | None = None
        self._on_workers: OnWorkers | None = None

    def serve(self, address: str) -> None:
        """Say that this node runs closures at an address."""
        self._service = pb.ServeClosures(address=address)
        self._repeat()

    def leave(self) -> None:
        """Say that this node will be gone soon; `over` is set when the coordinator gives it no more."""
        if self._service is None:
            self.over.set()
            return
        self._service = pb.ServeClosures(address=self._service.address, leaving=True)
        self._repeat()

    def coordinate(self, on_workers: OnWorkers) -> None:
        """Be the coordinator, and hear of workers."""
        self._on_workers = on_workers
        self.use(())

    def use(self, addresses: Iterable[str]) -> None:
        """Say which workers this coordinator uses now."""
        self._use = pb.Coordinate(using=addresses)
        self._repeat()

    def finish(self) -> None:
        """Say that this coordinator needs no worker any more."""
        self._use = pb.Coordinate(over=True)
        self._repeat()

    def welcomed(self, welcome: pb.Welcome) -> None:
        self.is_chief = welcome.chief

    def rejoin(self) -> None:
        """On a new stream, or with another master: say again what holds."""
        self._repeat()

    def take(self, message: pb.MasterMessage) -> None:
        """What the master says."""
        if message.WhichOneof("body") == "closures_over":
            self.over.set()
        elif self._on_workers is not None:
            told = message.closure_workers
            self._on_workers(list(told.serving), list(told.leaving))

    def failed(self) -> None:
        """No more will be heard."""
        self.over.set()

    def _repeat(self) -> None:
        if self._service is not None:
            self._say(pb.NodeMessage(serve_closures=self._service))
        if self._use is not None:
            self._say(pb.NodeMessage(coordinate=self._use))
