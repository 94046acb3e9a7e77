"""GroupCommit: one thread writes for everybody, as many at a time as came while it wrote the last."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elastane.brain.store import Rows, Store, Write
from elastane.model.errors import DatabaseUnavailable

MOST_WAITING = 20_000
"""Writes that may wait; whoever comes after them is told to come again."""
MOST_IN_ONE = 2000
_GATHER_S = 0.01
"""A transaction waits so long for more to write: hundreds of callers a second cost a few dozen transactions."""


class GroupCommit:
    """Turns writes that come one by one into few transactions. An answer means that it is committed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: asyncio.Queue[tuple[Write | Rows, asyncio.Future[Any]]] = asyncio.Queue(MOST_WAITING)
        self._thread = ThreadPoolExecutor(1, "brain-writer")
        self._running = asyncio.create_task(self._run())

    async def write(self, what: Write | Rows) -> Any:
        """Raises DatabaseUnavailable if it was not committed, also because too much waits; RequestRefused."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((what, answer))
        except asyncio.QueueFull:
            raise DatabaseUnavailable(f"{MOST_WAITING} writes wait already; come again") from None
        return await answer

    @property
    def waiting(self) -> int:
        """Writes that are not yet begun."""
        return self._waiting.qsize()

    async def close(self) -> None:
        """Write what waits, and end."""
        await self._waiting.join()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._waiting.get()]
            await asyncio.sleep(_GATHER_S)
            while len(batch) < MOST_IN_ONE and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            # Nobody waits any more for the answer of a call that was broken off; but it may be committed all the same.
            batch_writes = [what for what, _ in batch]
            try:
                answers = await loop.run_in_executor(self._thread, self._store.commit, batch_writes)
            except DatabaseUnavailable as error:
                answers = [error] * len(batch)
            for (_, waiting), answer in zip(batch, answers, strict=True):
                if not waiting.done():
                    if isinstance(answer, Exception):
                        waiting.set_exception(answer)
                    else:
                        waiting.set_result(answer)
                self._waiting.task_done()
