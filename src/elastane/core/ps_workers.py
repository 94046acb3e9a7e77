"""The rule of confirmation: which workers use the parameter servers, and what each has confirmed."""

from __future__ import annotations

from typing import Any

from elastane.model.ids import NodeName

MOST_DEAD_CLIENTS = 1000
"""How many dead clients a server hears of when it attends."""


class Confirmations:
    """The workers that count on servers. A worker may have clients, whose steps servers wait for."""

    def __init__(self) -> None:
        self.dead_clients: list[int] = []
        self._confirmed: dict[NodeName, int] = {}
        self._clients: dict[NodeName, list[int]] = {}

    @property
    def workers(self) -> tuple[NodeName, ...]:
        return tuple(self._confirmed)

    def here(self, worker: NodeName, clients: list[int]) -> None:
        """A worker counts on servers, whichever they are, until it confirms."""
        self._confirmed[worker] = 0
        self._clients[worker] = clients

    def away(self, worker: NodeName) -> None:
        """A worker's stream broke: if it lives it comes back, and hears of all that it missed."""
        self._confirmed.pop(worker, None)

    def ended(self, worker: NodeName) -> list[int]:
        """A worker is gone for good; the answer are its clients, which are dead."""
        self._confirmed.pop(worker, None)
        dead = self._clients.pop(worker, [])
        self.dead_clients = [*self.dead_clients, *dead][-MOST_DEAD_CLIENTS:]
        return dead

    def confirmed(self, worker: NodeName, version: int) -> None:
        if worker in self._confirmed:
            self._confirmed[worker] = max(version, self._confirmed[worker])

    def have_all(self, version: int) -> bool:
        """Whether every worker has confirmed this version, or a later one."""
        return all(confirmed >= version for confirmed in self._confirmed.values())

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {
            "confirmed": list(self._confirmed.items()),
            "clients": list(self._clients.items()),
            "dead_clients": self.dead_clients,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take the state of a snapshot."""
        self._confirmed = dict(state["confirmed"])
        self._clients = {worker: list(clients) for worker, clients in state["clients"]}
        self.dead_clients = list(state["dead_clients"])
