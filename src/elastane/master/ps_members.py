"""PSMembers: which clients the others wait for, in a job with a staleness bound.

A client that comes is counted from a step that no server has passed: first every server is told to apply nothing more,
and says how far it is; then all are told the step after the highest, and so is the client. So the servers agree on
every step about whose gradients belong to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from elastane.master.rendezvous_server import Tell
from elastane.model.ids import NodeName
from elastane.rpc.protos import node_pb2 as pb

MOST_CLIENTS = 64
"""How many clients one worker may have."""


@dataclass
class _Coming:
    worker: NodeName
    client: int
    waiting: set[int]
    highest: int = 0


class PSMembers:
    """The clients that count. Without a bound nobody does, and every client is told so at once."""

    def __init__(self, staleness: int | None, tell: Tell, names: Callable[[], dict[int, NodeName]]) -> None:
        self._bounded = staleness is not None
        self._tell = tell
        self._names = names
        self._servers: set[int] = set()
        self._clients: dict[int, tuple[NodeName, int]] = {}
        self._queue: deque[tuple[NodeName, int]] = deque()
        self._coming: _Coming | None = None

    def count(self, worker: NodeName, message: pb.CountClient) -> None:
        """A client is to be waited for, or no longer."""
        client = message.client
        if not self._bounded:
            if not message.leaves:
                self._answer(worker, client, 0)
        elif message.leaves:
            self._forget({client})
        elif message.HasField("from_step"):
            self._clients[client] = (worker, message.from_step)
            self._tell_all()
            self._answer(worker, client, message.from_step)
        elif client in self._clients:
            self._answer(worker, client, self._clients[client][1])
        elif len(self._queue) < MOST_CLIENTS * 1000:
            self._queue.append((worker, client))
            self._next()

    def worker_gone(self, worker: NodeName) -> None:
        """Nobody waits for the clients of a worker that is gone."""
        self._queue = deque(entry for entry in self._queue if entry[0] != worker)
        self._forget({client for client, (its, _) in self._clients.items() if its == worker})
        if self._coming is not None and self._coming.worker == worker:
            self._coming = None
            self._tell_all()
            self._next()

    def server_here(self, server: int) -> None:
        self._servers.add(server)
        if self._bounded:
            self._tell_all()
        self._next()

    def server_gone(self, server: int) -> None:
        self._servers.discard(server)
        if self._coming is not None:
            self._coming.waiting.discard(server)
            self._decide()

    def answered(self, server: int, step: int) -> None:
        """A server applies nothing more, and is so far."""
        if self._coming is not None and server in self._coming.waiting:
            self._coming.waiting.discard(server)
            self._coming.highest = max(self._coming.highest, step)
            self._decide()

    def _next(self) -> None:
        if self._coming is None and self._queue and self._servers:
            worker, client = self._queue.popleft()
            self._coming = _Coming(worker, client, set(self._servers))
            self._tell_all(asked=True)

    def _decide(self) -> None:
        coming = self._coming
        if coming is None or coming.waiting:
            return
        self._coming = None
        self._clients[coming.client] = (coming.worker, coming.highest)
        self._tell_all()
        self._answer(coming.worker, coming.client, coming.highest)
        self._next()

    def _forget(self, clients: set[int]) -> None:
        for client in clients:
            self._clients.pop(client, None)
        if clients:
            self._tell_all()

    def _tell_all(self, *, asked: bool = False) -> None:
        message = pb.ServerMembers(asked=asked)
        for client, (_, from_step) in self._clients.items():
            message.member.add(client=client, from_step=from_step)
        if self._coming is not None:
            message.member.add(client=self._coming.client, from_step=0)
        names = self._names()
        for server in self._servers:
            self._tell(names[server], pb.MasterMessage(server_members=message))

    def _answer(self, worker: NodeName, client: int, from_step: int) -> None:
        counted = pb.ClientCounted(client=client, from_step=from_step)
        self._tell(worker, pb.MasterMessage(client_counted=counted))
