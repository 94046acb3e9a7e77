"""Pods of a job without a master: what the tests of the Kubernetes platform make and look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob, load_job
from elastane.model.node import Node, NodeType
from elastane.platform.base import Platform
from elastane.platform.kubernetes.pods import JobOwner, nodes_selector
from tests.kubernetes.cluster.lifecycle import Cluster

WAITING_TEMPLATE: dict[str, Any] = {
    "spec": {"containers": [{"image": "none", "command": ["none"]}], "nodeSelector": {"elastane-test": "nowhere"}}
}
"""Of pods that no machine has a place for."""

NAME = "ctr"


@dataclass(frozen=True)
class PodJob:
    """An ElasticJob of the cluster, and its pods as kubectl sees them."""

    cluster: Cluster
    job: ElasticJob
    owner: JobOwner

    @classmethod
    def make(cls, cluster: Cluster, namespace: str, template: dict[str, Any] = WAITING_TEMPLATE, **spec: Any) -> PodJob:
        """Apply a job: what has an owner that is not there is deleted."""
        spec = {"worker": {"template": template}, "master": {"template": WAITING_TEMPLATE}, **spec}
        job = load_job({"metadata": {"name": NAME}, "spec": spec})
        document = {**job.document(), "apiVersion": job.api_version, "kind": job.kind}
        made = cluster.kubectl(
            "create", f"--namespace={namespace}", "--filename=-", "--output=json", input=json.dumps(document)
        )
        uid = json.loads(made)["metadata"]["uid"]
        return cls(cluster, job, JobOwner(NAME, namespace, uid, "10.0.0.1:7070"))

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.cluster.kubectl(*arguments, f"--namespace={self.owner.namespace}", input=input)

    def names(self) -> set[str]:
        """The pods of the job's nodes."""
        found = self.kubectl("get", "pods", f"--selector={nodes_selector(NAME)}", "--output=name")
        return {line.removeprefix("pod/") for line in found.split()}

    def node(self, number: int) -> Node:
        return Node(self.job.name, NodeType.WORKER, number, number)

    def nodes(self, count: int) -> tuple[Node, ...]:
        return tuple(self.node(number) for number in range(count))


class Listener:
    """Hears what a platform reports, as long as it is open."""

    def __init__(self, platform: Platform) -> None:
        self.heard: list[NodeEvent] = []
        self._platform = platform
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def until(self, check: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait until what was heard is what it should be."""
        async with asyncio.timeout(timeout_s):
            while not check():
                self._more.clear()
                more = asyncio.create_task(self._more.wait())
                await asyncio.wait({more, self._task}, return_when=asyncio.FIRST_COMPLETED)
                if self._task.done():
                    self._task.result()

    @property
    def waiting(self) -> set[NodeName]:
        """Those of whom it was said what they wait for."""
        return {event.node for event in self.heard if event.note}

    @property
    def ended(self) -> dict[NodeName, str]:
        """How nodes ended; twice is an error."""
        events = [event for event in self.heard if event.exit is not None]
        assert len({event.node for event in events}) == len(events), "an end was told twice"
        return {event.node: event.exit.reason for event in events if event.exit is not None}

    async def _listen(self) -> None:
        async for event in self._platform.events():
            self.heard.append(event)
            self._more.set()


def worker_names(numbers: Iterable[int]) -> set[str]:
    return {f"{NAME}-worker-{number}" for number in numbers}
