"""torchrun on a job's master: `torchrun --rdzv-backend=elastane --rdzv-endpoint=HOST:PORT ... train.py`.

Each torchrun agent is a node, and a rendezvous is a world of agents. The master knows at once when an agent dies or
comes; the others hear of it as "nodes waiting", stop their workers, and meet again. Rank 0's agent hosts a new store
for each world, which the other agents find through the master; so no port is agreed on beforehand, and nothing that an
earlier world left behind is seen.
"""

from __future__ import annotations

import atexit
import os
import socket
from datetime import timedelta
from time import monotonic

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # exported, but not by name

# From `api`, not from the package above it: that one is half imported when it loads this module as an entry point.
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from elastane.model.errors import ElastaneError
from elastane.model.world import Place
from elastane.worker.door import Door
from elastane.worker.gathering import GatheringMember, RendezvousClosed
from elastane.worker.link import Link

BACKEND = "elastane"
JOIN_TIMEOUT_S = 600
"""How long a rendezvous may take, unless `--rdzv-conf join_timeout=` says otherwise."""

CONNECT_TIMEOUT = timedelta(seconds=10)
STORE_TIMEOUT = timedelta(seconds=300)
_STORE = "store"


def handler_creator() -> RendezvousHandlerCreator:
    """The entry point: what makes a handler of torchrun's arguments."""
    return create_handler


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Raises InvalidInput without an address or a token."""
    door = Door.from_env(
        address=parameters.endpoint or None,
        token_file=parameters.get("token_file"),
        kind="torchrun",
    )
    return MasterRendezvous(parameters, door)


class MasterRendezvous(RendezvousHandler):
    """A RendezvousHandler over the stream to a master."""

    def __init__(self, parameters: RendezvousParameters, door: Door) -> None:
        self._parameters = parameters
        self._door = door
        self._join_timeout_s = parameters.get_as_int("join_timeout", JOIN_TIMEOUT_S) or JOIN_TIMEOUT_S
        self._link: Link | None = None
        self._member: GatheringMember | None = None
        self._hosted: TCPStore | None = None
        self._store: TCPStore | None = None
        self._closed = False

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The workers use the world's store as well: it outlives each of them."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        deadline = monotonic() + self._join_timeout_s
        try:
            link, member = self._join()
            while True:
                place = member.gather(lambda place: self._host(link, place), deadline - monotonic())
                if (info := self._meet(member, place)) is not None:
                    return info
        except RendezvousClosed as error:
            raise RendezvousClosedError(str(error)) from error
        except TimeoutError as error:
            raise RendezvousTimeoutError(f"no world in {self._join_timeout_s} s: {error}") from error
        except ElastaneError as error:
            raise RendezvousConnectionError(str(error)) from error

    def is_closed(self) -> bool:
        return self._closed or (self._member is not None and self._member.over)

    def set_closed(self) -> None:
        """The job is done: nobody forms a world any more."""
        self._leave(over=True)

    def num_nodes_waiting(self) -> int:
        """1 if the members are to meet again, because some came or left; how many is known once they do."""
        return int(self._member is not None and self._member.changing and not self._member.over)

    def get_run_id(self) -> str:
        return str(self._parameters.run_id)

    def shutdown(self) -> bool:
        """torchrun calls this when its workers are done or have failed for good, and not when it dies by a signal."""
        self._leave(over=True)
        return True

    def _join(self) -> tuple[Link, GatheringMember]:
        if self._closed:
            raise RendezvousClosed("this node has left the rendezvous")
        if self._link is None or self._member is None:
            # The workers are started by fork and exec: they leave gRPC alone, so gRPC need not prepare for them.
            os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
            from elastane.worker.attendant import Attendant

            attendant = Attendant(self._door)
            attendant.start()
            limits = self._parameters
            self._link = attendant
            self._member = GatheringMember(attendant, min_size=limits.min_nodes, max_size=limits.max_nodes)
            # An agent that a signal ends says goodbye too, as one that was told to leave.
            atexit.register(self._leave, over=False)
        return self._link, self._member

    def _host(self, link: Link, place: Place) -> dict[str, bytes]:
        """Before the world is certain, rank 0's agent hosts its store, and says where."""
        self._hosted = None
        if place.rank != 0:
            return {}
        self._hosted = _host_store(self._parameters.local_addr or link.host)
        return {_STORE: f"{self._hosted.host}:{self._hosted.port}".encode()}

    def _meet(self, member: GatheringMember, place: Place) -> RendezvousInfo | None:
        """The rendezvous in this world; None if the world has passed, or rank 0's agent has died since."""
        try:
            host, _, port = member.find(place, _STORE).decode().rpartition(":")
            self._store = self._hosted or _reach_store(host, int(port))
        except (DistError, OSError):
            return None
        return RendezvousInfo(self._store, place.rank, place.size, RendezvousStoreInfo(host, int(port)))

    def _leave(self, *, over: bool) -> None:
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.close(preempted=not over, over=over)


def _host_store(host: str) -> TCPStore:
    """A store on a free port of this interface alone, unlike TCPStore's own choice of all interfaces."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        port = listener.getsockname()[1]
        return TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=STORE_TIMEOUT,
            master_listen_fd=listener.detach(),  # The store's from here on.
        )


def _reach_store(host: str, port: int) -> TCPStore:
    """Raises OSError or DistError if nobody answers there."""
    # TCPStore would try a port that nobody listens on for long, and noisily.
    socket.create_connection((host, port), CONNECT_TIMEOUT.total_seconds()).close()
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT)
    store.set_timeout(STORE_TIMEOUT)
    return store
