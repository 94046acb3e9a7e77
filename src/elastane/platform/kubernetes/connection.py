"""The connection to the API server: plain manifests out, plain JSON in, and every refusal told by what follows from it.

The configuration and the credentials are lightkube's: those of the pod this runs in, or else of KUBECONFIG. Objects
are left as plain JSON: of thousands of pods only a few fields are of interest.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx2 as httpx
from lightkube import KubeConfig
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.core.exceptions import ConfigError

from elastane.model.errors import PlatformError
from elastane.platform.kubernetes.pods import Manifest

PAGE = 500
"""How many objects one answer lists at most."""
REQUEST_TIMEOUT_S = 20.0

_GONE = 410


class ApiError(PlatformError):
    """The API server refuses, or does not answer; then the code is 0. Which of the kinds below says what follows."""

    def __init__(self, text: str, code: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else has changed the object since it was read."""
        return self.code == 409 and not isinstance(self, AlreadyExists)

    @property
    def is_for_the_user(self) -> bool:
        """Whether it does not pass by itself: a quota, a right, a policy, or the object."""
        return 400 <= self.code < 500 and self.code not in (401, 408, 409, 429)

    @property
    def is_invalid(self) -> bool:
        """Whether the object itself cannot be used, whenever it is tried."""
        return self.code == 422


class ApiUnreachable(ApiError):
    """The API server does not answer, or says that it cannot now: it may later."""


class ApiRefused(ApiError):
    """The API server understood, and refuses for good; its own words say why."""


class QuotaExceeded(ApiError):
    """The namespace has no room for this until something else goes, or its quota is raised."""


class NotFound(ApiError):
    """There is nothing of that name."""


class AlreadyExists(ApiError):
    """There is something of that name."""


class HistoryGone(ApiError):
    """A list or a watch cannot go on from where it was: the API server has forgotten what came after."""


class Connection:
    """Requests to the API server. Each raises ApiError."""

    def __init__(self) -> None:
        """Raises PlatformError without a configuration."""
        try:
            config = KubeConfig.from_env().get()
            if config is None:
                raise ConfigError("it names no context")
            self._client = AsyncClient(config, ConnectionParams(timeout=httpx.Timeout(REQUEST_TIMEOUT_S)))
        except (ConfigError, OSError) as error:
            raise PlatformError(f"no Kubernetes configuration that can be used: {error}") from None
        self.requests: Counter[str] = Counter()
        """How many were made, by their method."""

    async def close(self) -> None:
        await self._client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: Manifest | None = None,
        media: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        """Send a request; the result is the object, the list or the Status that it is answered with."""
        self.requests[method] += 1
        try:
            response = await self._client.request(
                method,
                path,
                params=params,
                content=None if content is None else json.dumps(content),
                headers={"Content-Type": media, "Accept": accept},
            )
        except (httpx.HTTPError, ConfigError) as error:
            raise ApiUnreachable(_words(error)) from None
        if response.is_error:
            raise _error(response)
        answer: Manifest = response.json()
        return answer

    async def pages(
        self, path: str, params: Mapping[str, str], accept: str = "application/json"
    ) -> AsyncGenerator[Manifest]:
        """A list, page by page; raises HistoryGone if it took so long that its first page was forgotten."""
        asked = {**params, "limit": str(PAGE)}
        while True:
            page = await self.request("GET", path, params=asked, accept=accept)
            yield page
            if not page["metadata"].get("continue"):
                return
            asked["continue"] = page["metadata"]["continue"]

    async def watch(self, path: str, params: Mapping[str, str], silence_s: float) -> AsyncGenerator[Manifest]:
        """The events of a watch, until the API server ends it; one that brings nothing for so long is given up."""
        self.requests["WATCH"] += 1
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, read=silence_s)
        try:
            async with self._client.stream(
                "GET", path, params={**params, "watch": "true"}, timeout=timeout
            ) as response:
                if response.is_error:
                    await response.aread()
                    raise _error(response)
                async for line in response.aiter_lines():
                    event: Manifest = json.loads(line)
                    if event["type"] == "ERROR":
                        raise status_error(event["object"].get("code", 500), event["object"])
                    yield event
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ApiUnreachable(_words(error)) from None
        except json.JSONDecodeError:
            raise ApiUnreachable("the watch was cut in the middle of a line") from None


def _words(error: Exception) -> str:
    return f"the API server does not answer ({str(error) or type(error).__name__})"


def _error(response: httpx.Response) -> ApiError:
    status: Manifest = {}
    with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):
        found = response.json()
        status = found if isinstance(found, dict) else {}
    retry_after = response.headers.get("Retry-After", "")
    return status_error(response.status_code, status, float(retry_after) if retry_after.isdecimal() else 0.0)


def status_error(code: int, status: Mapping[str, Any], retry_after_s: float = 0.0) -> ApiError:
    """The error of an answer, by its code and what it says in its Status."""
    text = " ".join(str(status.get("message") or f"the API server answers {code}").split())
    # A conflict is with another who changes the same quota at the same moment. Rights may be on their way: they are
    # made beside the master. What else is forbidden (a limit range, a policy) stays so.
    passes = code in (401, 408, 409, 429) or code >= 500 or (code == 403 and " cannot " in text)
    kind: type[ApiError] = ApiUnreachable if passes else ApiRefused
    if code == _GONE:
        kind = HistoryGone
    elif code == 404:
        kind = NotFound
    elif status.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    elif code == 403 and "exceeded quota" in text:
        kind = QuotaExceeded
    return kind(text, code, retry_after_s)
