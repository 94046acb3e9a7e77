"""Leader election by a Lease: of several operators one works, and the others wait for it to go."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable

import structlog

from elastane.model.errors import PlatformError
from elastane.operator.api import LEASES, Api
from elastane.operator.times import micro_stamp
from elastane.platform.kubernetes.connection import ApiError, NotFound
from elastane.platform.kubernetes.pods import Manifest

LEASE_NAME = "elastane-operator"

_log = structlog.get_logger("elastane.operator")


class LeadershipLost(PlatformError):
    """Another operator leads, or this one could not say for long that it does."""


class Leader:
    """One operator's hold on the Lease.

    Whoever waits takes it when it was not renewed for `lease_s` by this machine's own clock: clocks may differ. The
    holder renews it often, does nothing once it has not for two thirds of that time, and gives up after four times as
    long: an API server that is away lets nobody else take it either.
    """

    def __init__(
        self, api: Api, namespace: str, lease_s: float = 15.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._api = api
        self._namespace = namespace
        self._lease_s = lease_s
        self._clock = clock
        self._lease: Manifest | None = None
        self._renewed_at = 0.0
        self._holds = asyncio.Event()

    async def acquire(self) -> None:
        """Wait until this operator leads."""
        seen: tuple[str, str] | None = None
        since = 0.0
        while True:
            try:
                lease = await self._find()
                spec = lease.get("spec") or {}
                record = (spec.get("holderIdentity") or "", lease["metadata"].get("resourceVersion", ""))
                if record != seen:
                    seen, since = record, self._clock()
                expired = self._clock() - since >= spec.get("leaseDurationSeconds", self._lease_s)
                if not record[0] or expired:
                    await self._write(lease, takes_over=True)
                    return
            except ApiError as error:
                # Lost to another who waits too, or the API server is away.
                _log.info("lease_not_taken", error=str(error))
            await asyncio.sleep(self._lease_s / 7)

    async def hold(self) -> None:
        """Renew for as long as it can be renewed; raise LeadershipLost when it cannot."""
        while True:
            await asyncio.sleep(self._lease_s / 7)
            try:
                await self._renew()
            except ApiError as error:
                _log.warning("lease_not_renewed", error=str(error))
                away_s = self._clock() - self._renewed_at
                if away_s > self._lease_s * 2 / 3:
                    self._holds.clear()
                if away_s > self._lease_s * 4:
                    raise LeadershipLost(f"the Lease could not be renewed for {away_s:.0f} s: {error}") from None

    @property
    def held(self) -> bool:
        """Whether nobody else can lead now."""
        return self._holds.is_set() and self._clock() - self._renewed_at <= self._lease_s * 2 / 3

    async def wait_until_held(self) -> None:
        """Return as soon as nobody else can lead."""
        if self._clock() - self._renewed_at > self._lease_s * 2 / 3:
            self._holds.clear()
        await self._holds.wait()

    async def release(self) -> None:
        """Let the next one begin at once. What cannot be released runs out."""
        if self._lease is None:
            return
        spec = {**self._lease["spec"], "holderIdentity": ""}
        try:
            await self._api.replace(LEASES, self._namespace, {**self._lease, "spec": spec})
        except ApiError as error:
            _log.info("lease_not_released", error=str(error))

    async def _renew(self) -> None:
        assert self._lease is not None  # noqa: S101  # it was acquired
        try:
            await self._write(self._lease, takes_over=False)
        except ApiError as error:
            if not (error.is_conflict or isinstance(error, NotFound)):
                raise
            found = await self._find()
            holder = (found.get("spec") or {}).get("holderIdentity")
            if holder != self.identity:
                raise LeadershipLost(f'"{holder or "nobody"}" holds the Lease now') from None
            await self._write(found, takes_over=False)

    async def _find(self) -> Manifest:
        """The Lease as it is; one without a version if there is none."""
        try:
            return await self._api.get(LEASES, self._namespace, LEASE_NAME)
        except NotFound:
            return {
                "apiVersion": LEASES.api_version,
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
            }

    async def _write(self, lease: Manifest, *, takes_over: bool) -> None:
        """Write the Lease as this one's; it fails if somebody has changed it since it was read."""
        now = micro_stamp(time.time())
        spec = dict(lease.get("spec") or {})
        if takes_over:
            spec |= {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", -1) + 1}
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._lease_s)),
            "renewTime": now,
        }
        begun = self._clock()
        manifest = {**lease, "spec": spec}
        if "resourceVersion" in lease["metadata"]:
            self._lease = await self._api.replace(LEASES, self._namespace, manifest)
        else:
            self._lease = await self._api.create(LEASES, self._namespace, manifest)
        self._renewed_at = begun
        self._holds.set()
