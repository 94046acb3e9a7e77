"""What the watches said last: every job with its pods and plans, so that no look at a job needs to list anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from elastane.model.cluster_documents import JOB_LABEL
from elastane.model.node import NodeType
from elastane.operator.actions import Action
from elastane.operator.api import JOB_RESOURCES, JOBS, PODS, SCALE_PLANS, Kind
from elastane.operator.observed import JobKey, Json, Observed, PodFacts, Refusal
from elastane.platform.kubernetes.pods import LABEL_JOB

MOST_DELETED = 1_000
"""Of so many objects it is remembered that they were deleted: far more than there are answers on their way."""


@dataclass
class _Pod:
    facts: PodFacts
    version: int
    owner_uid: str


@dataclass
class JobMemory:
    """What this operator remembers about one job, beside what the cluster says. It goes when the operator goes."""

    master_address: str = ""
    """Where the job's Service is, once it was seen."""
    ensured: list[Action] = field(default_factory=list)
    """What was seen to stand beside a master that is about to be made."""
    credentials: tuple[str, str] | None = None
    """The token and the certificate."""
    gone: dict[str, PodFacts] = field(default_factory=dict)
    stop_asked_at: float | None = None
    not_before: dict[str, float] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    """By the uid of a plan: how often its master was asked and did not answer."""
    refusal: Refusal | None = None


@dataclass
class _JobView:
    job: Json | None = None
    pods: dict[str, _Pod] = field(default_factory=dict)
    plans: dict[str, Json] = field(default_factory=dict)
    resources: dict[str, Json] = field(default_factory=dict)
    memory: JobMemory = field(default_factory=JobMemory)

    @property
    def is_empty(self) -> bool:
        return self.job is None and not (self.pods or self.plans or self.resources)

    @property
    def uid(self) -> str:
        return "" if self.job is None else str(self.job["metadata"]["uid"])


class WatchCache:
    """The newest version of every object that a watch or an answer brought; older ones are read over."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._views: dict[JobKey, _JobView] = {}
        self._deleted: deque[str] = deque(maxlen=MOST_DELETED)
        """By their uids: an answer about one of them may come later than the watch's word that it is gone."""

    def take(self, kind: Kind, body: Json, *, deleted: bool = False) -> JobKey | None:
        """Take an object's newest version; the job that it concerns, or None if it concerns none."""
        key, uid = _job_of(kind, body), body["metadata"]["uid"]
        if key is None or (uid in self._deleted and not deleted):
            return None
        if deleted:
            self._deleted.append(uid)
        view = self._views.setdefault(key, _JobView())
        if kind is JOBS:
            self._take_job(view, body, deleted)
        elif kind is PODS:
            self._take_pod(view, body, deleted)
        else:
            known = view.plans if kind is SCALE_PLANS else view.resources
            _take_plan(known, body, deleted)
        if view.is_empty:
            del self._views[key]
        return key

    def observe(self, key: JobKey) -> Observed | None:
        """One job as it is now; None if nothing is known of it."""
        view = self._views.get(key)
        if view is None:
            return None
        memory = view.memory
        pods = tuple(pod.facts for pod in view.pods.values() if view.job is not None and pod.owner_uid == view.uid)
        return Observed(
            key=key,
            job=view.job,
            pods=pods,
            gone=tuple(memory.gone.values()),
            plans=tuple(view.plans.values()),
            resources=tuple(view.resources.values()),
            stop_asked_at=memory.stop_asked_at,
            not_before=dict(memory.not_before),
            refusal=memory.refusal,
        )

    def memory(self, key: JobKey) -> JobMemory:
        """What this operator remembers about a job; a job that is over has a memory that nobody keeps."""
        view = self._views.get(key)
        return JobMemory() if view is None else view.memory

    def keys(self) -> list[JobKey]:
        return list(self._views)

    def drop_missing(self, kind: Kind, namespace: str | None, uids: set[str], version: int) -> set[JobKey]:
        """Forget what is not among the `uids` that a namespace had at a version; the jobs that this concerns.

        A watch that had to begin anew brings what is there, and not what has gone meanwhile.
        """
        touched = set()
        for key, body in list(self._known(kind)):
            metadata = body["metadata"]
            if namespace is not None and key.namespace != namespace:
                continue
            if metadata["uid"] not in uids and int(metadata["resourceVersion"]) <= version:
                self.take(kind, {**body, "metadata": {**metadata, "resourceVersion": str(version)}}, deleted=True)
                touched.add(key)
        return touched

    def _known(self, kind: Kind) -> Iterator[tuple[JobKey, Json]]:
        for key, view in self._views.items():
            if kind is JOBS and view.job is not None:
                yield key, view.job
            elif kind is PODS:
                for name, pod in view.pods.items():
                    version = str(pod.version)
                    labels = {LABEL_JOB: key.name}
                    metadata = {"namespace": key.namespace, "name": name, "labels": labels}
                    yield key, {"metadata": {**metadata, "uid": pod.facts.uid, "resourceVersion": version}}
            elif kind is SCALE_PLANS:
                yield from ((key, plan) for plan in view.plans.values())
            elif kind is JOB_RESOURCES:
                yield from ((key, plan) for plan in view.resources.values())

    def _take_job(self, view: _JobView, body: Json, deleted: bool) -> None:
        if view.job is not None and _version(body) < _version(view.job):
            return
        if deleted:
            if view.uid == body["metadata"]["uid"]:
                view.job = None
                view.memory = JobMemory()
            return
        if view.uid != body["metadata"]["uid"]:
            view.memory = JobMemory()
        view.job = _slim(body)

    def _take_pod(self, view: _JobView, body: Json, deleted: bool) -> None:
        name, version = body["metadata"]["name"], _version(body)
        known = view.pods.get(name)
        if known is not None and version < known.version:
            return
        if not deleted:
            facts = PodFacts.of(body)
            owners = body["metadata"].get("ownerReferences") or ()
            owner = next((str(found["uid"]) for found in owners if found.get("kind") == "ElasticJob"), "")
            if facts is not None:
                view.pods[name] = _Pod(facts, version, owner)
            return
        if known is None or known.facts.uid != body["metadata"]["uid"]:
            return
        del view.pods[name]
        if known.owner_uid == view.uid and known.facts.role is not NodeType.MASTER:
            last = (PodFacts.of(body) if "spec" in body else None) or known.facts
            view.memory.gone[name] = replace(last, gone_by=last.gone_by or self._now())


def _take_plan(known: dict[str, Json], body: Json, deleted: bool) -> None:
    name = body["metadata"]["name"]
    before = known.get(name)
    if before is not None and _version(body) < _version(before):
        return
    if not deleted:
        known[name] = _slim(body)
    elif before is not None and before["metadata"]["uid"] == body["metadata"]["uid"]:
        del known[name]


def _job_of(kind: Kind, body: Json) -> JobKey | None:
    """The job that an object names. What names none, or something that is no name, concerns none."""
    metadata: dict[str, Any] = body["metadata"]
    labels, spec = metadata.get("labels") or {}, body.get("spec") or {}
    if kind is JOBS:
        name = metadata["name"]
    elif kind is PODS:
        name = labels.get(LABEL_JOB)
    elif kind is SCALE_PLANS:
        name = spec.get("ownerJob") or labels.get(JOB_LABEL)
    else:
        name = (spec.get("selector") or {}).get("name")
    return JobKey(metadata["namespace"], name) if isinstance(name, str) and name else None


def _version(body: Json) -> int:
    return int(body["metadata"]["resourceVersion"])


def _slim(body: Json) -> Json:
    """An object without what nobody here reads."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": metadata}
