"""The feed: lets the job's own workers be added to the coordinator, and removed from it, as they come and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from elastane.model.errors import ElastaneError, RequestRefused

_log = logging.getLogger("elastane.coordinator")
_TRY_AGAIN_S = 0.5


class Elastic(Protocol):
    """A coordinator of either backend."""

    @property
    def workers(self) -> dict[str, int]:
        """The addresses of the workers that run, and their indices."""

    def add_worker(self, address: str) -> int: ...

    def remove_worker(self, address: str) -> int: ...


class WorkerFeed:
    """Adds each worker that comes to serve, and removes each that is leaving, in a thread of its own.

    A worker that the script itself has removed stays removed. `say_using` tells the master which workers run.
    """

    def __init__(self, first: tuple[str, ...], say_using: Callable[[Iterable[str]], None]) -> None:
        self.first = first
        """The workers to begin with."""
        self._say_using = say_using
        self._news = threading.Condition()
        self._serving: set[str] = set(first)
        self._leaving: set[str] = set()
        self._changed = False
        self._added: set[str] = set(first)

    def told(self, serving: Iterable[str], leaving: Iterable[str]) -> None:
        """Take the master's word; does not wait."""
        with self._news:
            self._serving, self._leaving = set(serving), set(leaving)
            self._changed = True
            self._news.notify()

    def attach(self, coordinator: Elastic) -> None:
        """Let this coordinator follow the job."""
        threading.Thread(target=self._follow, args=(coordinator,), name="coordinator-feed", daemon=True).start()

    def _follow(self, coordinator: Elastic) -> None:
        again = False
        while True:
            with self._news:
                if not self._changed:
                    self._news.wait(_TRY_AGAIN_S if again else None)
                serving, leaving, self._changed = set(self._serving), set(self._leaving), False
            self._added &= serving | leaving
            added = [self._try_add(coordinator, address) for address in sorted(serving - self._added)]
            removed = [self._try_remove(coordinator, address) for address in sorted(leaving & set(coordinator.workers))]
            again = not all(added + removed)
            self._say_using(sorted(coordinator.workers))

    def _try_add(self, coordinator: Elastic, address: str) -> bool:
        try:
            coordinator.add_worker(address)
        except RequestRefused:
            _log.debug("worker %s runs already", address)
        except ElastaneError as error:
            _log.warning("worker %s is not added yet: %s", address, error)
            return False
        self._added.add(address)
        return True

    def _try_remove(self, coordinator: Elastic, address: str) -> bool:
        try:
            coordinator.remove_worker(address)
        except ElastaneError as error:
            _log.warning("worker %s is not removed yet: %s", address, error)
            return False
        return True


_current: list[WorkerFeed] = []


def use_feed(feed: WorkerFeed) -> None:
    """Let every coordinator that is made in this process follow a feed."""
    _current[:] = [feed]


def current_feed() -> WorkerFeed | None:
    """The feed of this process's job; None outside of one."""
    return _current[0] if _current else None
