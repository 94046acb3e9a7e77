"""What the rules of the parameter servers decide: orders to servers, publications, and who may go."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from elastane.model.ids import NodeName

Change = tuple[int, int, int | None, int | None]
"""A bucket with what a server says of it: epoch, owner and backup."""


class OrderKind(enum.StrEnum):
    """What a server is to do about one bucket; the value beside it is an epoch, or another server."""

    OWN = "own"
    """Own it, empty, with this epoch."""
    RESTORE = "restore"
    """Load it from the last checkpoint, and own it with this epoch."""
    PROMOTE = "promote"
    """Own it with this epoch: its owner died, and the copy here is whole."""
    HAND_OVER = "hand_over"
    """Make this server its owner."""
    REPLICATE = "replicate"
    """Make this server its backup."""

    @property
    def moves(self) -> bool:
        """Whether the value is a server that gets a copy."""
        return self in (OrderKind.HAND_OVER, OrderKind.REPLICATE)


class Order(NamedTuple):
    """An order to one server about one bucket. It may be given twice: what is so already stays so."""

    kind: OrderKind
    server: int
    bucket: int
    value: int

    def concerns(self, server: int) -> bool:
        return server in ((self.server, self.value) if self.kind.moves else (self.server,))

    def is_done(self, owner: int | None, backup: int | None) -> bool:
        """Whether it is carried out, or has lost its meaning, once the bucket is with these."""
        match self.kind:
            case OrderKind.REPLICATE:
                return backup == self.value or owner != self.server
            case OrderKind.HAND_OVER:
                return owner != self.server
            case _:
                return True


@dataclass(frozen=True)
class Bury:
    """A server is to take nothing more of a dead one, and to say what it has."""

    server: int
    dead: int


@dataclass(frozen=True)
class Ask:
    """A server is to say what it has."""

    server: int


@dataclass(frozen=True)
class Publish:
    """The cluster of this version goes to all: to the servers, and to the workers, who confirm it."""

    version: int


@dataclass(frozen=True)
class Inform:
    """The servers are to hear the present map; nobody has to confirm it."""

    servers: tuple[int, ...]


@dataclass(frozen=True)
class InformWorker:
    """A worker is to hear the last publication."""

    worker: NodeName


@dataclass(frozen=True)
class ForgetClients:
    """A server is not to wait for these clients any more: they are dead."""

    server: int
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Remove:
    """A server holds nothing, and no worker counts on it: it may leave."""

    server: int


@dataclass(frozen=True)
class Still:
    """No bucket is on its way: what the servers hold now is all there is."""


Decision = Order | Bury | Ask | Publish | Inform | InformWorker | ForgetClients | Remove | Still
