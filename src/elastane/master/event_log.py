"""Where a job's events go: the log, the `--events` file, and whoever watches."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import structlog

from elastane.model.event import Event

WATCHER_QUEUE = 10_000
RECENT = 200
_DATA = frozenset({"samples_committed"})
"""Events of the data, many a second: they go to the file alone."""


class EventLog:
    """Writes down what happens, each event once, in order."""

    def __init__(self, file: Path | None = None) -> None:
        # Line-buffered: what has been emitted is in the file, also when the master is killed.
        self._file = None if file is None else file.open("a", buffering=1)
        self._log = structlog.get_logger("elastane.master")
        self._watchers: set[asyncio.Queue[str]] = set()
        self._recent: deque[str] = deque(maxlen=RECENT)
        self.on_event: list[Callable[[str, Mapping[str, object]], None]] = []
        """Called with the kind and the fields of each event but those of the data."""

    def emit(self, kind: str, **fields: object) -> None:
        if kind in _DATA and self._file is None:
            return
        line = to_json(Event(datetime.now(UTC), kind, fields))
        if self._file is not None:
            self._file.write(line + "\n")
        if kind in _DATA:
            return
        self._log.info(kind, **fields)
        self._recent.append(line)
        for callback in self.on_event:
            callback(kind, fields)
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()  # A watcher that does not read loses the oldest; the file has them all.
            queue.put_nowait(line)

    @contextmanager
    def watch(self) -> Iterator[asyncio.Queue[str]]:
        """A queue of the last events and of those from now on, as JSON lines."""
        queue: asyncio.Queue[str] = asyncio.Queue(WATCHER_QUEUE)
        for line in self._recent:
            queue.put_nowait(line)
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def to_json(event: Event) -> str:
    """The line that `--events` writes: time, kind, and the fields beside them."""
    return json.dumps({"time": event.time.isoformat(), "kind": event.kind, **event.fields})
