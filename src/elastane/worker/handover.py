"""Handover: a guest's part in the change of the parameter servers by a checkpoint (`core.checkpoint_handover`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastane.rpc.protos import node_pb2 as pb

SET_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ServerSet:
    """A version of the set of parameter servers."""

    version: int
    servers: tuple[str, ...]


class Handover:
    """Follows the master's word on behalf of one guest. `say` tells the master something, from any thread."""

    def __init__(self, say: Callable[[pb.NodeMessage], None]) -> None:
        self._say = say
        self._changed = threading.Condition()
        self._state: pb.HandoverState | None = None
        self._failure: Exception | None = None
        self._joined = False
        self._restored = 0
        self._barrier = 0

    @property
    def changed(self) -> bool:
        state = self._state
        return state is not None and self._restored not in (0, state.version)

    @property
    def needed(self) -> frozenset[str]:
        return frozenset() if self._state is None else frozenset(self._state.needed)

    def set_servers(self, addresses: Sequence[str]) -> int:
        """Raises RequestRefused, TimeoutError."""
        wanted = tuple(addresses)
        with self._changed:
            self._failure = None
        self._tell(set_servers=pb.ServerSet(address=wanted))
        state = self._wait(lambda state: tuple(state.server) == wanted, SET_TIMEOUT_S)
        return state.version

    def begin(self, timeout_s: float) -> ServerSet:
        """Take part; the answer is the set to begin with. Raises RequestRefused, TimeoutError."""
        self._joined = True
        self._tell(join=True)
        state = self._wait(lambda state: state.version > 0 and state.saved, timeout_s)
        return ServerSet(state.version, tuple(state.server))

    def restored(self, version: int, timeout_s: float = SET_TIMEOUT_S) -> bool:
        """Train with this version from now on; false if meanwhile another one is wanted. Raises TimeoutError."""
        self._tell(restored=version)
        state = self._wait(lambda state: state.version != version or state.local == version, timeout_s)
        if state.local == version:
            self._restored = version
        return state.local == version

    def run(self, save: Callable[[int], None], restore: Callable[[ServerSet], None], timeout_s: float) -> ServerSet:
        """Go through a whole hand-over. Raises RequestRefused, TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            version = self._wait(lambda state: state.version > 0, deadline - time.monotonic()).version
            if self._stop_and_save(version, save, deadline) and self._pass(version, 2 * version + 1, deadline):
                state = self._wait(lambda _: True, deadline - time.monotonic())
                if state.version != version:
                    continue
                servers = ServerSet(version, tuple(state.server))
                restore(servers)
                if self.restored(version, deadline - time.monotonic()):
                    return servers

    def _stop_and_save(self, version: int, save: Callable[[int], None], deadline: float) -> bool:
        """Wait until nobody trains and the checkpoint is written; false if another version is wanted meanwhile."""
        if not self._pass(version, 2 * version, deadline):
            return False
        while True:
            state = self._wait(
                lambda state: state.version != version or state.saves or state.saved, deadline - time.monotonic()
            )
            if state.version != version:
                return False
            if state.saved:
                return True
            save(version)
            self._tell(saved=version)
            self._wait(lambda state: state.version != version or state.saved, deadline - time.monotonic())

    def _pass(self, version: int, barrier: int, deadline: float) -> bool:
        """Wait until all have reached a barrier; false if another version is wanted meanwhile."""
        self._barrier = barrier
        self._tell(reached=barrier)
        state = self._wait(
            lambda state: state.version != version or state.passed >= barrier, deadline - time.monotonic()
        )
        return state.version == version

    def _wait(self, condition: Callable[[pb.HandoverState], bool], timeout_s: float) -> pb.HandoverState:
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or (self._state is not None and condition(self._state)), timeout_s
            )
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._state is None or not condition(self._state):
                raise TimeoutError("the others did not come to the same point of the hand-over in time")
            return self._state

    # What the link brings.

    def take(self, state: pb.HandoverState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def rejoin(self) -> None:
        """On a new stream the master knows nothing of this guest: say all of it again."""
        if self._joined:
            self._tell(join=True)
            if self._restored:
                self._tell(restored=self._restored)
            if self._barrier:
                self._tell(reached=self._barrier)

    def refused(self, error: Exception) -> None:
        """What was said last is not so, or no more will be heard."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _tell(
        self,
        *,
        join: bool | None = None,
        set_servers: pb.ServerSet | None = None,
        reached: int | None = None,
        saved: int | None = None,
        restored: int | None = None,
    ) -> None:
        word = pb.HandoverWord(join=join, set_servers=set_servers, reached=reached, saved=saved, restored=restored)
        self._say(pb.NodeMessage(handover_word=word))
