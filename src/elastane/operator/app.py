"""The operator's process: kopf watches, the queue says whose turn it is, the rules decide, the hands do.

kopf is used for watching alone: it puts no finalizer and no annotation on any object.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import kopf
import structlog
from kopf._cogs.structs.references import Insights  # of a parameter that is public

from elastane.model.errors import PlatformError
from elastane.operator.api import JOB_RESOURCES, JOBS, PODS, SCALE_PLANS, Api, Kind
from elastane.operator.cache import WatchCache
from elastane.operator.carry_out import Hands, NameTaken
from elastane.operator.leader import Leader
from elastane.operator.metrics import OperatorMetrics
from elastane.operator.observed import JobKey
from elastane.operator.reconcile import reconcile
from elastane.operator.work_queue import WorkQueue
from elastane.platform.kubernetes.connection import ApiError
from elastane.platform.kubernetes.pods import LABEL_JOB

WORKERS = 8
ROUNDS = 5
"""A look is repeated so often while there is something to do; after that the others have their turn."""
CHECK_S = 120.0
"""How often what is known is compared with what there is: a watch that began anew does not tell what has gone."""
RELISTED_S = 5.0
"""How soon after a watch began anew that is done."""
WATCHED = (JOBS, SCALE_PLANS, JOB_RESOURCES, PODS)

_log = structlog.get_logger("elastane.operator")


class Operator:
    """The one operator that leads. It sees all that it is to see before it does anything."""

    def __init__(self, api: Api, leader: Leader, namespaces: Sequence[str], metrics: OperatorMetrics) -> None:
        self._api = api
        self._metrics = metrics
        self._leader = leader
        self._namespaces = list(namespaces)
        self._cache = WatchCache(time.time)
        self._hands = Hands(api, self._cache)
        self._queue: WorkQueue[JobKey] = WorkQueue(self._look, self._failed, WORKERS)
        metrics.watch(self._cache, self._queue)
        self._relisted: set[Kind] = set()
        self._sees_all = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Raises LeadershipLost, PlatformError."""
        await self._wait_for_kinds()
        await _until_one_ends(
            self._queue.run(), self._leader.hold(), self._check_now_and_then(), _wait(stop), self._watch_all()
        )

    async def _watch_all(self) -> None:
        """Watch until SIGTERM or Ctrl-C, which are kopf's from here on."""
        # When it ends, kopf waits for all tasks that are younger than itself: those of the others are not.
        await asyncio.sleep(0.1)
        while True:
            found = Insights()
            watching = asyncio.create_task(
                kopf.operator(
                    registry=self._registry(),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    insights=found,
                )
            )
            looking = asyncio.create_task(found.ready_resources.wait())
            try:
                await asyncio.wait({watching, looking}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done() or _finds_all(found):
                    await watching
                    return
            finally:
                for task in (watching, looking):
                    task.cancel()
                await asyncio.wait({watching, looking})
            # An API server that has just started does not know all its kinds, and kopf looks for them only once.
            _log.warning("waits_for_kinds")
            await asyncio.sleep(1)

    # What is seen.

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**arguments: Any) -> kopf.ConnectionInfo | None:
            return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

        for kind in WATCHED:
            self._watch(registry, kind)
        return registry

    def _watch(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        group, _, version = kind.api_version.rpartition("/")

        # kopf calls no handler of events before every object of the first lists has been through its index.
        @kopf.index(group, version, kind.plural, registry=registry, id=f"first-{kind.plural}")
        async def first(body: kopf.Body, **_: Any) -> None:
            if not self._sees_all:
                self._cache.take(kind, dict(body))

        @kopf.on.event(group, version, kind.plural, registry=registry, id=kind.plural)
        async def event(event: kopf.RawEvent, **_: Any) -> None:
            self._sees_all = True
            self._take(kind, event)

    def _take(self, kind: Kind, event: kopf.RawEvent) -> None:
        body: Any = event["object"]
        if event["type"] is None:
            self._relisted.add(kind)
        key = self._cache.take(kind, body, deleted=event["type"] == "DELETED")
        if key is not None:
            self._queue.add(key)

    async def _wait_for_kinds(self) -> None:
        """Return when the cluster knows all kinds that are watched."""
        where = self._namespaces[0] if self._namespaces else None
        for kind in WATCHED:
            while not await self._api.can_list(kind, where):
                _log.warning("waits_for_kind", kind=kind.plural)
                await asyncio.sleep(2)

    async def _check_now_and_then(self) -> None:
        """Forget what has gone while a watch was away."""
        checked_at = dict.fromkeys(WATCHED, time.monotonic())
        while True:
            await asyncio.sleep(RELISTED_S)
            for kind in WATCHED:
                if kind not in self._relisted and time.monotonic() < checked_at[kind] + CHECK_S:
                    continue
                try:
                    await self._check(kind)
                except ApiError as error:
                    _log.warning("check_failed", kind=kind.plural, error=str(error))
                else:
                    checked_at[kind] = time.monotonic()

    async def _check(self, kind: Kind) -> None:
        self._relisted.discard(kind)
        places: Sequence[str | None] = self._namespaces or [None]
        for namespace in places:
            selector = LABEL_JOB if kind is PODS else ""
            uids, version = await self._api.list_identities(kind, namespace, selector)
            for key in self._cache.drop_missing(kind, namespace, uids, version):
                _log.info("noticed_late", job=str(key), kind=kind.plural)
                self._queue.add(key)

    # What is done.

    async def _look(self, key: JobKey) -> float | None:
        """Look at one job and do what is to be done; after how long to look again."""
        with self._metrics.look():
            return await self._reconcile(key)

    async def _reconcile(self, key: JobKey) -> float | None:
        for _ in range(ROUNDS):
            await self._leader.wait_until_held()
            seen = self._cache.observe(key)
            if seen is None:
                self._queue.forget(key)
                return None
            now = time.time()
            decision = reconcile(seen, now)
            if not decision.actions:
                return None if decision.look_again_at is None else max(0.0, decision.look_again_at - now)
            for action in decision.actions:
                await self._hands.apply(key, action)
                self._metrics.acted(action)
        return 0.0

    def _failed(self, key: JobKey, error: Exception) -> float:
        """Tell of a look that failed; after how long it may be repeated."""
        self._metrics.failed(_outcome(error))
        if isinstance(error, ApiError):
            if not error.is_conflict:
                _log.warning("api_error", job=str(key), error=str(error), code=error.code)
            return error.retry_after_s
        if isinstance(error, NameTaken):
            _log.info("name_taken", job=str(key), error=str(error))
        else:
            _log.error("look_failed", job=str(key), error=repr(error), exc_info=error)
        return 0.0


def _outcome(error: Exception) -> str:
    if isinstance(error, ApiError):
        return "conflict" if error.is_conflict else "api_error"
    return "name_taken" if isinstance(error, NameTaken) else "error"


async def run_operator(
    api: Api,
    leader: Leader,
    namespaces: Sequence[str],
    stop: asyncio.Event,
    on_lead: Callable[[], None],
    metrics: OperatorMetrics,
) -> None:
    """Wait until this operator leads, and then work until `stop` is set. Raises LeadershipLost, PlatformError."""
    if not await _before(stop, leader.acquire()):
        return
    on_lead()
    try:
        await Operator(api, leader, namespaces, metrics).run(stop)
    finally:
        await leader.release()
        _log.info("ended", requests=dict(api.requests))


def _finds_all(found: Insights) -> bool:
    """Whether kopf watches every kind that it is to watch."""
    return {(kind.group, kind.plural) for kind in found.watched_resources} >= {
        (kind.api_version.rpartition("/")[0], kind.plural) for kind in WATCHED
    }


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    # Our own events tell the story; what kopf would post are log lines.
    settings.posting.enabled = False
    # The kinds are known before it starts, so that it needs no right to see all kinds and namespaces of the cluster.
    settings.scanning.disabled = True
    settings.watching.label_selectors["", "v1", "pods"] = LABEL_JOB
    return settings


def quiet_kopf() -> None:
    """Leave kopf's log to what is wrong; structlog tells the rest."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)


async def _before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether some work is done before `stop` is set; it is cancelled if not."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    done, left = await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    if working not in done:
        return False
    working.result()
    return True


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


async def _until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, and end the others. Raises what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        if (error := task.exception()) is not None:
            if isinstance(error, PlatformError):
                raise error
            raise PlatformError(f"the operator cannot go on: {error!r}") from error
