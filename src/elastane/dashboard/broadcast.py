"""Broadcast: what one job, or the list of jobs, has to say to all browsers that look at it.

A browser that comes gets the whole; after that all get the same changes. One that cannot keep up gets the whole again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

MOST_WAITING = 64
"""How many changes wait for one browser."""
QUIET_S = 10.0
"""After so long without a change, a word shows that the connection lives."""

View = dict[str, Any]


class Broadcast:
    """`whole` gives all that there is to show now."""

    def __init__(self, whole: Callable[[], View]) -> None:
        self._whole = whole
        self._queues: set[asyncio.Queue[bytes | None]] = set()

    @property
    def watched(self) -> bool:
        return bool(self._queues)

    def publish(self, change: View) -> None:
        """Tell all who look of a change."""
        if not change or not self._queues:
            return
        message = _message("change", change)
        for queue in self._queues:
            if queue.qsize() < MOST_WAITING:
                queue.put_nowait(message)
                continue
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(_message("whole", self._whole()))

    def close(self) -> None:
        """Let all who look go."""
        for queue in self._queues:
            queue.put_nowait(None)

    async def messages(self) -> AsyncIterator[bytes]:
        """The stream of one browser."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.add(queue)
        queue.put_nowait(_message("whole", self._whole()))
        try:
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), QUIET_S)
                except TimeoutError:
                    message = b": here\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._queues.discard(queue)


def _message(kind: str, content: View) -> bytes:
    # JSON has no line breaks of its own, so one `data:` line holds it all.
    return f"event: {kind}\ndata: {json.dumps(content, separators=(',', ':'), allow_nan=False)}\n\n".encode()


def changed(before: View, after: View) -> View:
    """What must be told to who has seen `before`: texts, rows, and the order of rows that came, went or moved."""
    change: View = {}
    texts = {key: text for key, text in after["text"].items() if before["text"].get(key) != text}
    if texts:
        change["text"] = texts
    tables: dict[str, View] = {}
    for name, rows in after["tables"].items():
        known = before["tables"].get(name, {})
        new = {key: row for key, row in rows.items() if known.get(key) != row}
        if new:
            tables[name] = {"set": new}
        if list(known) != list(rows):
            tables.setdefault(name, {})["order"] = list(rows)
    if tables:
        change["tables"] = tables
    return change


def whole(view: View) -> View:
    """A view as who has seen nothing must be told it."""
    tables = {name: {"set": rows, "order": list(rows)} for name, rows in view["tables"].items()}
    return {"text": view["text"], "tables": tables}
