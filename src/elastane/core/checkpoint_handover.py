"""The rules of a hand-over by checkpoint: how guests who cannot move live go to another set of parameter servers.

A stock TensorFlow job fixes its servers when it starts. To change them, its workers stop together, one of them saves a
checkpoint, and all begin anew with the new servers from it. Every set of servers has a version. `version` is the global
one: the set that all are to use. Each worker has the one that it trains with (`local`), and the one that it has
restored its state for. Barriers are numbered: a worker that is there says the number, and may go on once all have
reached it, or a later one. Nothing of an older version is dropped before every worker has restored the global one.

    version v is set
    all           finish their step, and reach barrier 2v       nobody trains now
    the first     saves, and says so
    all           reach barrier 2v + 1                          the checkpoint is there
    all           restore with the new servers, and say so      nobody trains yet, so nothing is only there
    all           train with v, and the old servers may be dropped

A worker that dies on the way is not waited for, and if it was to save, the next one is; one that comes waits for the
checkpoint. A version that is set on the way takes the place of the one before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from elastane.model.errors import RequestRefused
from elastane.model.ids import NodeName


@dataclass
class _Worker:
    local: int = 0
    """The version that it trains with, or has trained with until it stopped; 0: it has not begun."""
    restored: int = 0
    """The version that it has restored; it trains with it once all have."""
    barrier: int = 0


@dataclass(frozen=True)
class HandoverState:
    """What a worker must know: the global version with its servers, the barriers, and who saves."""

    version: int
    servers: tuple[str, ...]
    local: int
    """The version that the worker trains with; 0 before it has begun."""
    passed: int
    """The highest barrier that all have reached."""
    saves: bool
    """Whether this worker is the one that saves for this version, once barrier 2 * version is passed."""
    saved: bool


class CheckpointHandover:
    """The versions of the guests' servers, and how far each guest is."""

    def __init__(self) -> None:
        self.version = 0
        self.saved_version = 0
        """The newest version that there is a checkpoint for; one that is set before anybody trains needs none."""
        self._servers: dict[int, tuple[str, ...]] = {}
        self._workers: dict[NodeName, _Worker] = {}
        self._passed = 0

    @property
    def workers(self) -> tuple[NodeName, ...]:
        return tuple(self._workers)

    @property
    def servers(self) -> tuple[str, ...]:
        """Those of the global version."""
        return self._servers.get(self.version, ())

    @property
    def through(self) -> bool:
        """Whether every worker trains with the global version."""
        return bool(self._workers) and all(known.local == self.version for known in self._workers.values())

    def set_servers(self, servers: list[str]) -> None:
        """From now on all are to use these. Raises RequestRefused for none, or for the same as before."""
        if not servers:
            raise RequestRefused("a set of no parameter servers")
        if self._servers.get(self.version) == tuple(servers):
            raise RequestRefused(f"version {self.version} has these parameter servers already")
        self.version += 1
        self._servers[self.version] = tuple(servers)
        if not any(known.local for known in self._workers.values()):
            self.saved_version = self.version
        self._forget_old()

    def join(self, worker: NodeName) -> None:
        """A worker comes. It begins by restoring the global version, once that has a checkpoint."""
        self._workers[worker] = _Worker()

    def left(self, worker: NodeName) -> None:
        """A worker is gone: nobody waits for it."""
        if self._workers.pop(worker, None) is not None:
            self._pass_barriers()
            self._let_train()

    def reached(self, worker: NodeName, barrier: int) -> None:
        """A worker is at a barrier. Raises RequestRefused for one that is not of the present hand-over."""
        known = self._known(worker)
        if barrier > 2 * self.version + 1:
            raise RequestRefused(f"barrier {barrier} belongs to no version; the last one is {2 * self.version + 1}")
        if barrier % 2 and barrier // 2 == self.version and self.saved_version < self.version:
            raise RequestRefused(f"barrier {barrier} comes after the checkpoint of version {self.version}")
        known.barrier = max(known.barrier, barrier)
        self._pass_barriers()

    def saved(self, worker: NodeName, version: int) -> None:
        """The worker that saves has done so. Raises RequestRefused if it is not its turn."""
        self._known(worker)
        if version != self.version:
            return  # Meanwhile another set is wanted: its hand-over saves anew.
        if worker != self._saver or self._passed < 2 * version:
            raise RequestRefused(f'"{worker}" is not the one to save for version {version} now')
        self.saved_version = version

    def restored(self, worker: NodeName, version: int) -> None:
        """A worker could train with this version. Raises RequestRefused if meanwhile another one is wanted."""
        known = self._known(worker)
        if version != self.version or version != self.saved_version:
            raise RequestRefused(
                f"version {version} cannot be trained with; {self.version} is wanted, and {self.saved_version} is saved"
            )
        known.restored = version
        # One that comes late has not been at the barriers of this version, and nobody needs to wait for it there.
        known.barrier = max(known.barrier, 2 * version + 1)
        self._pass_barriers()
        self._let_train()

    def state_of(self, worker: NodeName) -> HandoverState:
        """What a worker must know. Raises RequestRefused for one that has not joined."""
        known = self._known(worker)
        return HandoverState(
            self.version,
            self.servers,
            known.local,
            self._passed,
            saves=worker == self._saver and self._passed >= 2 * self.version and self.saved_version < self.version,
            saved=self.saved_version == self.version,
        )

    def needed(self) -> frozenset[str]:
        """The servers that must not be dropped: those of the global version, and of every one that a worker uses."""
        return frozenset(server for servers in self._servers.values() for server in servers)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {
            "version": self.version,
            "saved": self.saved_version,
            "passed": self._passed,
            "servers": [[version, list(servers)] for version, servers in self._servers.items()],
            "workers": [[worker, asdict(known)] for worker, known in self._workers.items()],
        }

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # it knows no times
        """Take the state of a snapshot."""
        self.version = state["version"]
        self.saved_version = state["saved"]
        self._passed = state["passed"]
        self._servers = {version: tuple(servers) for version, servers in state["servers"]}
        self._workers = {NodeName(worker): _Worker(**known) for worker, known in state["workers"]}

    @property
    def _saver(self) -> NodeName | None:
        """Of those who trained last, the one that came first."""
        return max(self._workers, key=lambda worker: self._workers[worker].local, default=None)

    def _known(self, worker: NodeName) -> _Worker:
        if worker not in self._workers:
            raise RequestRefused(f'"{worker}" has not joined the hand-over')
        return self._workers[worker]

    def _pass_barriers(self) -> None:
        # Who has not begun has nothing to stop.
        barriers = [known.barrier for known in self._workers.values() if known.local]
        self._passed = max(self._passed, min(barriers, default=0))

    def _let_train(self) -> None:
        """Who has restored the global version trains with it, once nobody is left who trained with an older one."""
        if all(known.restored == self.version for known in self._workers.values() if known.local):
            for known in self._workers.values():
                if known.restored == self.version:
                    known.local = self.version
        self._forget_old()

    def _forget_old(self) -> None:
        """A version that nobody uses any more, and that is not the one to come, is forgotten."""
        used = {version for known in self._workers.values() for version in (known.local, known.restored)}
        used |= {self.version}
        self._servers = {
            version: servers
            for version, servers in self._servers.items()
            if version in used and (version == self.version or not self.through)
        }
