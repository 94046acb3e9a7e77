"""How far each client is: the staleness bound, and the moment at which a step of the synchronous mode is whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

_REMEMBERED = 64
"""Steps whose weights are kept: a bucket may come from a server that is some steps behind."""


LAST_VERSION = 1 << 62


class Clocks:
    """The last step that each client has pushed whole, on one server.

    Clients that have joined count: the floor is the step that all of them have pushed. With none of them nobody is
    waited for, and the floor is the highest step that came. What a client says of itself has a version, so that it may
    come late and by other servers; the master ends it all by LAST_VERSION.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pushed: dict[int, int] = {}
        self._weights: dict[int, dict[int, float]] = {}
        self._members: dict[int, tuple[int, int]] = {}
        self._active: dict[int, int] = {}
        self._applied = -1
        self._closed = False

    def tick(self, client: int, step: int, weight: float) -> None:
        """Note that a client has pushed all of a step, which has this weight among the others'. Twice is as once."""
        with self._changed:
            if step > self._applied - _REMEMBERED:
                self._weights.setdefault(step, {})[client] = weight
            self._pushed[client] = max(step, self._pushed.get(client, -1))

    def propose(self, client: int, version: int) -> int:
        """Count a client from the next step on that nobody has pushed; the answer is that step."""
        with self._changed:
            step = max(self._pushed.values(), default=-1) + 1
            self._heed({client: (version, step)})
            return step

    def heed(self, members: Mapping[int, tuple[int, int]]) -> None:
        """Take over who counts, each from a step on (-1: not any more), where this is a newer version."""
        with self._changed:
            self._heed(members)

    def members(self) -> dict[int, tuple[int, int]]:
        """Who counts, and who has left."""
        with self._changed:
            return dict(self._members)

    def _heed(self, members: Mapping[int, tuple[int, int]]) -> None:
        for client, entry in members.items():
            if entry > self._members.get(client, (-1, -1)):
                self._members[client] = entry
        self._active = {client: step for client, (_, step) in self._members.items() if step >= 0}

    def floor(self) -> int:
        """The last step that everybody who counts has pushed."""
        with self._changed:
            return self._floor()

    def lead(self, client: int) -> int:
        """By how many steps the foremost of the others is ahead of this client."""
        with self._changed:
            own = self._pushed.get(client, -1)
            others = [
                step
                for other, step in self._pushed.items()
                if other != client and (not self._active or other in self._active)
            ]
            return max(0, max(others, default=own) - own)

    def lacks(self, step: int, clients: Iterable[int]) -> bool:
        """Whether one of these clients has not pushed all of a step yet, and has not left."""
        with self._changed:
            return any(
                self._pushed.get(client, -1) < step and self._members.get(client, (0, 0))[1] >= 0 for client in clients
            )

    def shares(self, step: int) -> dict[int, float]:
        """The part of each client that pushed this step in it, by weight; the parts add up to 1."""
        with self._changed:
            weights = self._weights.get(step, {})
            total = sum(weights.values())
            if total <= 0:
                return {client: 1 / len(weights) for client in sorted(weights)}
            return {client: weights[client] / total for client in sorted(weights)}

    def applied(self, floor: int) -> None:
        """Say that all that was held up to this step has been applied: pulls that wait for it go on."""
        with self._changed:
            if floor > self._applied:
                self._applied = floor
                for step in [step for step in self._weights if step <= floor - _REMEMBERED]:
                    del self._weights[step]
            self._changed.notify_all()

    def wait(self, step: int, timeout_s: float) -> bool:
        """Wait until everybody who counts has pushed this step, and it is applied. False: not in this time."""
        if step < 0:
            return True
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._closed and not self._reached(step):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return not self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _reached(self, step: int) -> bool:
        return not self._active or (self._applied >= step and self._floor() >= step)

    def _floor(self) -> int:
        if not self._active:
            return max(self._pushed.values(), default=-1)
        return min(max(self._pushed.get(client, -1), begin - 1) for client, begin in self._active.items())
