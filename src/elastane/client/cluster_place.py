"""The jobs of a cluster, in one namespace."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from elastane.client.cluster import ClusterJob, PodView, connect
from elastane.client.documents import for_cluster, namespace_in
from elastane.client.place import Tell
from elastane.client.pod_logs import followed, printed
from elastane.client.views import JobState, JobView, NodeView
from elastane.model.errors import InvalidInput, JobNotFound
from elastane.model.event import Event
from elastane.model.job_spec import ElasticJob
from elastane.model.quantity import Memory

T = TypeVar("T")

EVENTS_EVERY_S = 1.0

_STATES = {
    "Complete": JobState.SUCCEEDED,
    "Failed": JobState.FAILED,
    "Suspended": JobState.SUSPENDED,
    "Running": JobState.RUNNING,
    "Scaling": JobState.RUNNING,
}
"""What a condition that is true means; an earlier one before a later one."""


class ClusterPlace:
    """A namespace of the cluster of KUBECONFIG, by default that of its context."""

    def __init__(self, namespace: str | None) -> None:
        self._jobs = connect(namespace)

    @property
    def namespace(self) -> str:
        return self._jobs.namespace

    def submit(self, job: ElasticJob, document: Mapping[str, Any], events_file: Path | None) -> JobView:
        if events_file is not None:
            raise InvalidInput(f'events_file: "{events_file}" is on this machine, and the job is not')
        written = namespace_in(document)
        if written is not None and written != self.namespace:
            raise InvalidInput(
                f'metadata.namespace: "{written}" is not the namespace of this client, "{self.namespace}"'
            )
        with self._jobs.errors():
            return _view(self._jobs.create(for_cluster(job, document, self.namespace)))

    def all(self) -> list[JobView]:
        with self._jobs.errors():
            return [_view(job) for job in self._jobs.all()]

    def get(self, name: str) -> JobView:
        with self._jobs.errors():
            job = self._jobs.find(name)
            return _view(replace(job, pods=tuple(self._jobs.pods(name))))

    def watch(self, name: str, *, nodes: bool) -> Iterator[JobView]:
        seen = False
        with self._jobs.errors():
            for job in self._jobs.follow(name, pods=nodes):
                if job is None:
                    if not seen:
                        self._jobs.find(name)
                    raise JobNotFound(f'job "{name}" was deleted before its end was seen')
                seen = True
                yield (view := _view(job))
                if view.ended:
                    return

    def output(self, name: str, node: str, *, follow: bool, tail: int | None) -> Iterator[str]:
        with self._jobs.errors():
            pod = self._jobs.find_pod(name, node)
        return self._told_errors(self._jobs.log(pod, follow=follow, tail=tail))

    def lines(self, name: str, *, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
        with self._jobs.errors():
            self._jobs.find(name)
        if follow:
            return self._told_errors(followed(self._jobs, name, tail, lambda: self._has_ended(name)))
        return self._told_errors(printed(self._jobs, name, tail))

    def events(self, name: str, *, follow: bool) -> Iterator[Event]:
        with self._jobs.errors():
            job = self._jobs.find(name)
        return self._events(job, follow=follow)

    def _events(self, job: ClusterJob | None, *, follow: bool) -> Iterator[Event]:
        """What Kubernetes keeps of the job and its pods, which is not for ever, and the job's conditions."""
        told: set[object] = set()
        with self._jobs.errors():
            while job is not None:
                found: list[tuple[object, Event]] = [*self._jobs.events(job).items(), *_conditions(job).items()]
                for key, event in sorted(found, key=lambda item: item[1].time):
                    if key not in told:
                        told.add(key)
                        yield event
                if not follow or _state(job).ended:
                    return
                time.sleep(EVENTS_EVERY_S)
                job = self._jobs.get(job.name)

    def scale(self, name: str, workers: int | None, ps: int | None) -> None:
        wanted = {"worker": workers, "ps": ps}
        with self._jobs.errors():
            self._jobs.scale(name, {role: count for role, count in wanted.items() if count is not None})

    def drain(self, name: str, node: str) -> None:
        with self._jobs.errors():
            self._jobs.drain(name, node)

    def migrate(self, name: str, node: str, memory: Memory | None, cpu: float | None) -> None:
        if memory is None and cpu is None:
            raise InvalidInput("migrate: say memory, or cpu, or both")
        wanted = {"memory": None if memory is None else str(memory), "cpu": cpu}
        with self._jobs.errors():
            self._jobs.migrate(name, node, {key: value for key, value in wanted.items() if value is not None})

    def save(self, name: str) -> None:
        raise InvalidInput(f'save: job "{name}" is in a cluster, where its servers save by its own settings alone')

    def delete(self, names: Sequence[str], *, at_once: bool, tell: Tell) -> None:
        """All are asked to go before any is waited for."""
        with self._jobs.errors():
            for name in names:
                self._jobs.find(name)
            for name in names:
                self._jobs.delete(name, at_once=at_once)
                tell(name, "killing" if at_once else "deleting")
            for name in names:
                self._jobs.wait_until_gone(name, lambda text, name=name: tell(name, text))  # type: ignore[misc]
                tell(name, "deleted")

    def close(self) -> None:
        self._jobs.close()

    def _told_errors(self, items: Iterator[T]) -> Iterator[T]:
        with self._jobs.errors():
            yield from items

    def _has_ended(self, name: str) -> bool:
        job = self._jobs.get(name)
        return job is None or _state(job).ended


def _view(job: ClusterJob) -> JobView:
    return JobView(
        name=job.name,
        state=_state(job),
        reason=job.reason,
        elapsed_s=job.age_s,
        nodes=tuple(_node_view(pod) for pod in job.pods),
        cluster=job,
    )


def _state(job: ClusterJob) -> JobState:
    found = next((state for kind, state in _STATES.items() if job.condition(kind)), JobState.STARTING)
    return JobState.STOPPING if job.deleting and not found.ended else found


def _node_view(pod: PodView) -> NodeView:
    return NodeView(
        name=pod.name,
        role=pod.role,
        id=pod.index,
        status=pod.status,
        reason=pod.reason,
        restarts=pod.restarts,
        leaving=pod.status == "leaving",
    )


def _conditions(job: ClusterJob) -> dict[tuple[str, str, str], Event]:
    """The job's conditions, each as an event of the moment since when it is so."""
    found = {}
    for condition in job.conditions:
        kind, status, since = condition["type"], condition["status"], condition.get("lastTransitionTime") or ""
        fields = {"type": kind, "status": status}
        fields |= {key: condition.get(key) or "" for key in ("reason", "message")}
        moment = datetime.fromisoformat(since) if since else datetime.now(UTC)
        found[kind, status, since] = Event(moment, "Condition", fields)
    return found
