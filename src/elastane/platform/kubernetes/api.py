"""The Kubernetes API as a master uses it: the pods and the ScalePlans of one namespace."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from elastane.model.job_spec import API_VERSION
from elastane.platform.kubernetes.connection import Connection, HistoryGone
from elastane.platform.kubernetes.pods import Manifest

WATCH_S = 300
"""After so long the API server ends a watch, which then goes on from where it was."""
WATCH_SILENCE_S = 100.0
"""A watch that brings nothing for so long is made anew: bookmarks come every minute, so the connection may be dead."""


class Api:
    """The calls of one namespace. Each raises ApiUnreachable or ApiRefused, beside what its own line says."""

    def __init__(self, namespace: str) -> None:
        self._pods = f"api/v1/namespaces/{namespace}/pods"
        self._scale_plans = f"apis/{API_VERSION}/namespaces/{namespace}/scaleplans"
        self._connection = Connection()

    async def close(self) -> None:
        await self._connection.close()

    async def create_pod(self, pod: Manifest) -> Manifest:
        """Make a pod; the result is what became of it. Raises AlreadyExists, QuotaExceeded."""
        return await self._connection.request("POST", self._pods, content=pod)

    async def delete_pod(self, name: str, *, at_once: bool) -> None:
        """Let a pod end within its grace period, or kill it. Raises NotFound."""
        options = {"gracePeriodSeconds": 0} if at_once else {}
        content = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        await self._connection.request("DELETE", f"{self._pods}/{name}", content=content)

    async def find_pod(self, name: str) -> Manifest | None:
        # By a list, which every master may make anyhow.
        found = await self._connection.request("GET", self._pods, params={"fieldSelector": f"metadata.name={name}"})
        return next(iter(found["items"]), None)

    async def list_pods(self, selector: str) -> tuple[list[Manifest], str]:
        """All pods of a label selector, and the resourceVersion at which they were so. Never a part of them."""
        while True:
            pods: list[Manifest] = []
            version = ""
            try:
                async for page in self._connection.pages(self._pods, {"labelSelector": selector}):
                    pods += page["items"]
                    version = page["metadata"]["resourceVersion"]
            except HistoryGone:
                continue
            return pods, version

    async def create_scale_plan(self, plan: Manifest) -> Manifest:
        """Write a ScalePlan for the operator."""
        return await self._connection.request("POST", self._scale_plans, content=plan)

    def watch_pods(self, selector: str, version: str) -> AsyncGenerator[Manifest]:
        """What happens to pods from a resourceVersion on, bookmarks included, until the API server ends the stream.

        Raises HistoryGone.
        """
        params = {
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        return self._connection.watch(self._pods, params, WATCH_SILENCE_S)
