"""PodScaler: a job's master makes and deletes the pods of its nodes itself.

Every pod has its own line of work, so that what is asked of one is done in order; sixteen requests are under way at
once. What fails for a while is tried again, with back-off; what is refused for good is the node's end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from elastane.core.backoff import delays
from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob
from elastane.model.node import ExitReason, Node, NodeExit, NodeStatus, NodeType
from elastane.model.plan import ScalePlan
from elastane.platform.kubernetes.api import Api
from elastane.platform.kubernetes.connection import (
    AlreadyExists,
    ApiRefused,
    ApiUnreachable,
    NotFound,
    QuotaExceeded,
)
from elastane.platform.kubernetes.pods import JobOwner, Manifest, node_pod

IN_FLIGHT = 16
"""How many requests are under way at once."""

BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.25, 15.0
_SAY_AFTER = 4
"""After so many failures in a row a node's pod is said to wait: an API server that restarts is not worth a word."""

Report = Callable[[NodeEvent], None]
OnError = Callable[[BaseException], None]


class _Creation:
    """A pod that is to be made, until it is."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cancelled = asyncio.Event()
        self.tried = False
        """Whether a request went out, so that there may be a pod, whatever was answered."""


class PodScaler:
    """A Scaler. `report` hears what no watch of pods can see: a pod that was refused, or waits to be made.

    `made` gets every pod that there is now by this scaler's doing, and `on_error` an error of this program, which must
    not pass for a pod that takes its time.
    """

    def __init__(
        self,
        api: Api,
        job: ElasticJob,
        owner: JobOwner,
        report: Report,
        made: Callable[[Manifest], None],
        on_error: OnError,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._job = job
        self._owner = owner
        self._report = report
        self._made = made
        self._on_error = on_error
        self._rng = rng or random.Random()  # noqa: S311  # the jitter of retries
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        # One of each role tries while a quota is full; a thousand that do would be a load, and get no more.
        self._quota_lines = {role: asyncio.Lock() for role in NodeType}
        self._creations: dict[NodeName, _Creation] = {}
        self._last: dict[NodeName, asyncio.Task[None]] = {}
        """The last thing that is to be done for a pod, as long as it is not done."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._absent: set[NodeName] = set()
        """Those that were to be deleted, and were not there."""

    async def scale(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        for node in plan.remove_nodes:
            self.remove(node.name, at_once=at_once)
        for node in plan.launch_nodes:
            if node.name not in self._creations:
                creation = self._creations[node.name] = _Creation(node)
                self._then(node.name, self._create(creation))

    def remove(self, name: NodeName, *, at_once: bool) -> None:
        """Let a node's pod go, whatever is under way for it."""
        creation = self._creations.get(name)
        if creation is not None:
            creation.cancelled.set()
        self._then(name, self._delete(name, creation, at_once=at_once))

    def seen(self, name: NodeName) -> None:
        """A pod has come to be. One that was to be deleted before it was there came late, and goes, too."""
        if name in self._absent:
            self.remove(name, at_once=True)

    async def finish(self, patience_s: float) -> None:
        """Make no more pods; what is to be deleted has so long to go out."""
        for creation in self._creations.values():
            creation.cancelled.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _then(self, name: NodeName, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a pod once all that was asked before is done."""
        before = self._last.get(name)

        async def in_turn() -> None:
            if before is not None:
                await asyncio.wait({before})
            await work

        task = self._last[name] = asyncio.create_task(in_turn())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(name, done))

    def _done(self, name: NodeName, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(name) is task:
            del self._last[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def _create(self, creation: _Creation) -> None:
        node = creation.node
        try:
            pod = node_pod(self._job, node, self._owner)
            waits = self._waits()
            failures = 0
            while not creation.cancelled.is_set():
                try:
                    made = await self._try_to_create(creation, pod)
                except ApiUnreachable as error:
                    failures += 1
                    if failures == _SAY_AFTER:
                        self._say(node.name, str(error))
                    await _sleep(max(next(waits), error.retry_after_s), creation.cancelled)
                else:
                    if made is not None:
                        self._made(made)
                        return
        except ApiRefused as error:
            self._report_end(node.name, ExitReason.ERROR, str(error))
        finally:
            del self._creations[node.name]

    async def _try_to_create(self, creation: _Creation, pod: Manifest) -> Manifest | None:
        """One try; if a quota is full, as many as it takes. None if it was cancelled.

        Raises ApiUnreachable, ApiRefused.
        """
        try:
            return await self._send(creation, pod)
        except QuotaExceeded as error:
            self._say(creation.node.name, f"QuotaExceeded: {error}")
        waits = self._waits()
        line = self._quota_lines[creation.node.type]
        if not await _acquired(line, creation.cancelled):
            return None
        try:
            while not creation.cancelled.is_set():
                try:
                    return await self._send(creation, pod)
                except QuotaExceeded:
                    await _sleep(next(waits), creation.cancelled)
        finally:
            line.release()
        return None

    async def _send(self, creation: _Creation, pod: Manifest) -> Manifest | None:
        name = creation.node.name
        async with self._slots:
            if creation.cancelled.is_set():
                return None
            creation.tried = True
            try:
                return await self._api.create_pod(pod)
            except AlreadyExists as error:
                there = await self._api.find_pod(name)
                if there is not None and self._owner.owns(there):
                    return there  # The answer to an earlier try was lost, or a master before this one made it.
                # It is of a job that had this name before, and is on its way out.
                raise ApiUnreachable(f"{error}, and it is not of this job") from None

    async def _delete(self, name: NodeName, creation: _Creation | None, *, at_once: bool) -> None:
        if creation is not None and not creation.tried:
            self._report_end(name, ExitReason.PREEMPTED, "it was removed before its pod was made")
            return
        for wait in self._waits():
            try:
                async with self._slots:
                    await self._api.delete_pod(name, at_once=at_once)
            except NotFound:
                self._absent.add(name)
                self._report_end(name, ExitReason.PREEMPTED, "there was no pod of it any more")
                return
            except ApiUnreachable as error:
                await asyncio.sleep(max(wait, error.retry_after_s))
            except ApiRefused:
                await asyncio.sleep(wait)  # A node that is to go must not stay because of a policy of the moment.
            else:
                return

    def _waits(self) -> Iterator[float]:
        return delays(BACKOFF_FIRST_S, BACKOFF_MOST_S, self._rng)

    def _say(self, name: NodeName, note: str) -> None:
        self._report(NodeEvent(name, NodeStatus.PENDING, note=note))

    def _report_end(self, name: NodeName, reason: ExitReason, text: str) -> None:
        self._report(NodeEvent(name, NodeStatus.FAILED, exit=NodeExit(reason, log_tail=text)))


async def _sleep(seconds: float, cancelled: asyncio.Event) -> None:
    """Sleep, but not past a cancellation."""
    try:
        async with asyncio.timeout(seconds):
            await cancelled.wait()
    except TimeoutError:
        pass


async def _acquired(lock: asyncio.Lock, cancelled: asyncio.Event) -> bool:
    """Wait for a lock, but not past a cancellation; whether it is ours."""
    acquiring = asyncio.ensure_future(lock.acquire())
    waiting = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait({acquiring, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return acquiring.done()
    finally:
        waiting.cancel()
        if not acquiring.done():
            acquiring.cancel()
