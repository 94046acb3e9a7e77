"""A queue of keys to look at: each at most once at a time, again if something came meanwhile, later if it failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Generic, TypeVar

from elastane.core.backoff import delays

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_S = 0.5
MOST_RETRY_S = 20.0
SPACING_S = 0.2
"""Two looks at one key begin at least so long apart: what happens in between is seen at once by the second."""


class WorkQueue(Generic[K]):
    """Keys that are due now or later. `look` returns after how many seconds to look again, or None.

    If `look` raises, `failed` is told, and says for how long to wait at least; each key has a back-off of its own.
    """

    def __init__(
        self,
        look: Callable[[K], Awaitable[float | None]],
        failed: Callable[[K, Exception], float],
        workers: int,
    ) -> None:
        self._look = look
        self._failed = failed
        self._workers = workers
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._busy: set[K] = set()
        self._last_look: dict[K, float] = {}
        self._backoffs: dict[K, Iterator[float]] = {}
        self._jitter = random.Random()  # noqa: S311  # it spreads retries, and guards nothing

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Look at a key after `delay_s`, or earlier if it is due earlier."""
        if key in self._queued:
            return
        loop = asyncio.get_running_loop()
        at = max(loop.time() + delay_s, self._last_look.get(key, 0.0) + SPACING_S)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(at, self._is_due, key)

    @property
    def length(self) -> int:
        """How many keys are due, and wait for somebody to look at them."""
        return len(self._queued)

    def forget(self, key: K) -> None:
        """Drop what is remembered of a key that is over."""
        self._last_look.pop(key, None)
        self._backoffs.pop(key, None)

    async def run(self) -> None:
        """Look at keys as they come due, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    def _is_due(self, key: K) -> None:
        del self._timers[key]
        if key in self._busy:
            self.add(key, SPACING_S)
        else:
            self._queued.add(key)
            self._ready.put_nowait(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._busy.add(key)
            self._last_look[key] = asyncio.get_running_loop().time()
            try:
                again_s = await self._look(key)
                self._backoffs.pop(key, None)
            except Exception as error:  # noqa: BLE001  # one job's trouble must not end the work for all others
                backoff = self._backoffs.setdefault(key, delays(FIRST_RETRY_S, MOST_RETRY_S, self._jitter))
                again_s = max(next(backoff), self._failed(key, error))
            finally:
                self._busy.discard(key)
            if again_s is not None:
                self.add(key, again_s)
