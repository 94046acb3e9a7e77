"""PodMonitor: what becomes of a job's pods, by one list and then a watch that goes on from it.

A watch that ends goes on from the last resourceVersion that it brought, by an event or a bookmark. If the API server
has forgotten what came since, all pods are listed anew and compared with those that were known. An error is tried
again, and is never taken for pods that are gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from elastane.core.backoff import delays
from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.node import NodeStatus
from elastane.platform.kubernetes.api import Api
from elastane.platform.kubernetes.connection import ApiRefused, ApiUnreachable, HistoryGone
from elastane.platform.kubernetes.exits import node_event, vanished_event
from elastane.platform.kubernetes.pods import JobOwner, Manifest, nodes_selector

BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.25, 5.0


@dataclass
class _Told:
    """What was told of a pod, so that it is not told twice."""

    notes: set[str] = field(default_factory=set)
    runs: bool = False
    ended: bool = False


class PodMonitor:
    """A NodeMonitor. `on_new` hears of every pod that it sees for the first time, alive."""

    def __init__(
        self, api: Api, owner: JobOwner, on_new: Callable[[NodeName], None], rng: random.Random | None = None
    ) -> None:
        self._api = api
        self._owner = owner
        self._selector = nodes_selector(owner.name)
        self._on_new = on_new
        self._rng = rng or random.Random()  # noqa: S311  # the jitter of retries
        self._told: dict[NodeName, _Told] = {}
        self._version: str | None = None
        """The resourceVersion up to which everything was told."""

    async def known(self) -> list[NodeEvent]:
        """Every pod of the job that there is; `events` goes on from there."""
        pods = await self._list()
        self._told.clear()
        for pod in pods:
            self._take(pod)
        return [node_event(pod) for pod in pods]

    async def events(self) -> AsyncGenerator[NodeEvent]:
        """Every change. If nobody has asked for what is known, that comes first. Never ends."""
        if self._version is None:
            for event in await self._relist():
                yield event
        waits = self._waits()
        while True:
            try:
                async with aclosing(self._watch()) as changes:
                    async for change in changes:
                        waits = self._waits()
                        if change is not None:
                            yield change
                await asyncio.sleep(next(waits))  # Not at once, should every watch end as soon as it begins.
            except HistoryGone:
                for event in await self._relist():
                    yield event
            except (ApiUnreachable, ApiRefused) as error:
                await self._wait(waits, error)

    def made(self, pod: Manifest) -> None:
        """A pod was made, which the watch has perhaps not seen yet: should a list not have it, it has vanished."""
        self._told.setdefault(NodeName(pod["metadata"]["name"]), _Told())

    async def _watch(self) -> AsyncGenerator[NodeEvent | None]:
        """One watch; None for whatever changes nothing."""
        if self._version is None:
            raise HistoryGone("nothing was listed yet")
        async with aclosing(self._api.watch_pods(self._selector, self._version)) as changes:
            async for change in changes:
                pod = change["object"]
                event = None
                if change["type"] != "BOOKMARK" and self._owner.owns(pod):
                    event = self._gone(pod) if change["type"] == "DELETED" else self._take(pod)
                self._version = pod["metadata"]["resourceVersion"]
                yield event

    async def _relist(self) -> list[NodeEvent]:
        """What has changed since the last time, by a list."""
        before = set(self._told)  # Not those that are made while the list is on its way.
        pods = await self._list()
        missing = before - {NodeName(pod["metadata"]["name"]) for pod in pods}
        vanished = [vanished_event(name) for name in missing if not self._told.pop(name).ended]
        return vanished + [event for pod in pods if (event := self._take(pod)) is not None]

    async def _list(self) -> list[Manifest]:
        waits = self._waits()
        while True:
            try:
                pods, self._version = await self._api.list_pods(self._selector)
            except (ApiUnreachable, ApiRefused) as error:
                await self._wait(waits, error)
            else:
                return [pod for pod in pods if self._owner.owns(pod)]

    def _take(self, pod: Manifest) -> NodeEvent | None:
        """What a pod's state adds to what was told of it."""
        event = node_event(pod)
        told = self._told.get(event.node)
        if told is None:
            told = self._told[event.node] = _Told()
            if event.exit is None and "deletionTimestamp" not in pod["metadata"]:
                self._on_new(event.node)
        if told.ended:
            return None
        if event.exit is not None:
            told.ended = True
            return event
        if event.status is NodeStatus.RUNNING:
            is_new, told.runs = not told.runs, True
            return event if is_new else None
        reason = event.note.partition(":")[0]  # Its numbers change all the time, and go back and forth.
        if told.runs or not reason or reason in told.notes:
            return None
        told.notes.add(reason)
        return event

    def _gone(self, pod: Manifest) -> NodeEvent | None:
        name = NodeName(pod["metadata"]["name"])
        told = self._told.pop(name, None)
        return None if told is not None and told.ended else vanished_event(name, pod)

    async def _wait(self, waits: Iterator[float], error: Exception) -> None:
        structlog.get_logger("elastane.platform").warning("pods_not_seen", error=str(error))
        await asyncio.sleep(next(waits))

    def _waits(self) -> Iterator[float]:
        return delays(BACKOFF_FIRST_S, BACKOFF_MOST_S, self._rng)
