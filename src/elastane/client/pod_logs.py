"""Follows what all pods of a job print, also those that come later."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

from elastane.client.cluster import ClusterJobs, PodView
from elastane.model.errors import ElastaneError
from elastane.model.node import NodeType

LOOK_EVERY_S = 1.0

NOT_THERE = (400, 404)
"""What the cluster answers for the log of a pod that has not started, and of one that is gone."""

Line = tuple[str, str]
"""A node's short name, and what it printed."""


def printed(jobs: ClusterJobs, name: str, tail: int | None) -> Iterator[Line]:
    """What the nodes of a job have printed so far, node by node."""
    for pod in _nodes(jobs, name):
        with jobs.unless(*NOT_THERE):
            for line in jobs.log(pod, follow=False, tail=tail):
                yield _short(name, pod), line.removesuffix("\n")


def followed(jobs: ClusterJobs, name: str, tail: int | None, ended: Callable[[], bool]) -> Iterator[Line]:
    """What they print, as it comes, until the job has ended. Each pod has a thread that waits for its next line."""
    lines: queue.SimpleQueue[Line | ElastaneError] = queue.SimpleQueue()
    readers: dict[str, threading.Thread] = {}
    while True:
        over = ended()  # Asked first: what is printed until then is read.
        for pod in _nodes(jobs, name):
            if pod.name not in readers and pod.status != "pending":
                readers[pod.name] = threading.Thread(
                    target=_read, args=(jobs, pod, _short(name, pod), tail, lines), daemon=True
                )
                readers[pod.name].start()
        if over:
            for reader in readers.values():
                reader.join()  # The pods have ended, or are about to.
        look_again = time.monotonic() + LOOK_EVERY_S
        while (left_s := look_again - time.monotonic()) > 0:
            try:
                line = lines.get(timeout=0 if over else left_s)
            except queue.Empty:
                break
            if isinstance(line, ElastaneError):
                raise line
            yield line
        if over and lines.empty():
            return


def _read(
    jobs: ClusterJobs, pod: PodView, node: str, tail: int | None, lines: queue.SimpleQueue[Line | ElastaneError]
) -> None:
    try:
        with jobs.errors(), jobs.unless(*NOT_THERE):
            for line in jobs.log(pod, follow=True, tail=tail):
                lines.put((node, line.removesuffix("\n")))
    except ElastaneError as error:
        lines.put(error)


def _nodes(jobs: ClusterJobs, name: str) -> list[PodView]:
    return [pod for pod in jobs.pods(name) if pod.role != NodeType.MASTER]


def _short(name: str, pod: PodView) -> str:
    return pod.name.removeprefix(f"{name}-")
