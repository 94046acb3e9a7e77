"""Servers: what this process needs to use the job's parameter servers, and the word on who has what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from elastane.model.errors import RequestRefused, ServersUnreachable
from elastane.rpc.protos import node_pb2 as pb
from elastane.worker.handover import Handover

FIRST_MAP_TIMEOUT_S = 600.0

OnMap = Callable[[bytes], None]
"""Takes an owner map's bytes; called on the link's thread, and must not wait."""


@dataclass(frozen=True)
class ServerSettings:
    """What holds for all servers of the job."""

    n_buckets: int
    staleness: int | None
    backups: bool


class Servers:
    """The parameter servers of the job. `say` tells the master something, from any thread."""

    def __init__(self, say: Callable[[pb.NodeMessage], None], token: str) -> None:
        self.token = token
        """What the servers want to hear from a client."""
        self.settings: ServerSettings | None = None
        """None in a job without servers."""
        self.handover = Handover(say)
        """How to go to other servers by a checkpoint, for servers that are not elastane's."""
        self._say = say
        self._changed = threading.Condition()
        self._map: bytes | None = None
        self._followers: list[OnMap] = []
        self._clients: list[int] = []
        self._joined = False
        self._failure: Exception | None = None

    def owner_map(self, timeout_s: float = FIRST_MAP_TIMEOUT_S) -> bytes:
        """The latest map; waits for the first. Raises RequestRefused, ServersUnreachable, or what ended the stream."""
        self._join()
        with self._changed:
            if not self._changed.wait_for(lambda: self._map or self._failure, timeout_s):
                raise ServersUnreachable(f"no parameter servers in {timeout_s:g} s; see whether they run")
            if self._map is None:
                raise self._failure or AssertionError
            return self._map

    def follow(self, callback: OnMap) -> None:
        """Have this called with every newer map; when it has returned, the master hears that the map is learned."""
        with self._changed:
            self._followers.append(callback)

    def uses(self, client: int) -> None:
        """This process has a client of this number: should the process die, nobody waits for it."""
        with self._changed:
            self._clients.append(client)
            self._joined = True
        self._say_join()

    # What the link brings.

    def welcomed(self, welcome: pb.Welcome) -> None:
        """The master has said whether there are servers."""
        if welcome.HasField("servers"):
            told = welcome.servers
            staleness = told.staleness if told.HasField("staleness") else None
            self.settings = ServerSettings(told.buckets, staleness, told.backups)

    def take(self, message: pb.MasterMessage) -> None:
        """The master says who has what, or how a hand-over goes."""
        if message.WhichOneof("body") == "handover_state":
            self.handover.take(message.handover_state)
            return
        told = message.server_map
        with self._changed:
            self._map = told.owner_map
            followers = list(self._followers)
            self._changed.notify_all()
        for follower in followers:
            follower(told.owner_map)
        self._say(pb.NodeMessage(server_map_learned=pb.ServerMapLearned(version=told.version)))

    def rejoin(self) -> None:
        """On a new stream: say again that this process uses the servers."""
        if self._joined:
            self._say_join()
        self.handover.rejoin()

    def refused(self, told: pb.Refused) -> None:
        """The master did not carry out what was said of servers."""
        error = RequestRefused(told.reason)
        if told.handover:
            self.handover.refused(error)
        else:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """No more will be heard of servers."""
        self.handover.refused(error)
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _join(self) -> None:
        if self.settings is None:
            raise RequestRefused("this job has no parameter servers; start it with --ps")
        with self._changed:
            if self._joined:
                return
            self._joined = True
        self._say_join()

    def _say_join(self) -> None:
        self._say(pb.NodeMessage(join_servers=pb.JoinServers(client=self._clients)))
