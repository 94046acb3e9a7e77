"""What the operator sees of one job: its ElasticJob, its pods, its plans, and what it remembers having done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from elastane.model.node import ExitReason, NodeExit, NodeType
from elastane.operator.times import moment
from elastane.platform.kubernetes.exits import node_event
from elastane.platform.kubernetes.pods import (
    ANNOTATION_RELAUNCHES,
    ANNOTATION_RESTARTS,
    ANNOTATION_SLOT,
    LABEL_INDEX,
    LABEL_ROLE,
)

Json = Mapping[str, Any]

ENDED_PHASES = frozenset({"Succeeded", "Failed"})


class JobKey(NamedTuple):
    """A job's place in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class PodFacts:
    """What of a pod matters to its job; thousands of whole pods would fill the memory."""

    name: str
    uid: str
    role: NodeType
    index: int = 0
    slot: int = 0
    relaunches: int = 0
    """For a node, those of its slot so far."""
    restarts: int = 0
    """Those of them that were counted."""
    phase: str = "Pending"
    ready: bool = False
    has_started: bool = False
    created_at: float = 0.0
    gone_by: float | None = None
    """If it is being deleted: when its grace period is over."""
    container_restarts: int = 0
    container_fails: bool = False
    """Whether its own container ended badly and was not started again yet."""
    exit: NodeExit | None = None
    """How its own container ended last."""
    note: str = ""
    """If it waits: for what, where that is known."""

    @property
    def deleting(self) -> bool:
        return self.gone_by is not None

    @property
    def ended(self) -> bool:
        return self.phase in ENDED_PHASES

    @property
    def lives(self) -> bool:
        """Whether it has not ended, and nobody told it to."""
        return not self.ended and not self.deleting

    @classmethod
    def of(cls, pod: Json) -> Self | None:
        """The facts of a pod; None if its labels are not those of a job's pod."""
        metadata = pod["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        status = pod.get("status") or {}
        container = _own_container(pod, status)
        deleted = metadata.get("deletionTimestamp")
        seen = node_event(pod)
        try:
            role = NodeType(labels.get(LABEL_ROLE, ""))
            index, slot, relaunches, restarts = (
                int(found.get(key, "0"))
                for found, key in (
                    (labels, LABEL_INDEX),
                    (annotations, ANNOTATION_SLOT),
                    (annotations, ANNOTATION_RELAUNCHES),
                    (annotations, ANNOTATION_RESTARTS),
                )
            )
        except ValueError:
            return None
        last_end = _last_end(container)
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            role=role,
            index=index,
            slot=slot,
            relaunches=relaunches,
            restarts=restarts,
            phase=status.get("phase", "Pending"),
            ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()),
            has_started=status.get("phase") == "Running" or last_end is not None,
            created_at=moment(metadata["creationTimestamp"]),
            gone_by=None if deleted is None else moment(deleted),
            container_restarts=container.get("restartCount", 0),
            container_fails=_fails_now(container),
            exit=seen.exit or last_end,
            note=seen.note,
        )


def _own_container(pod: Json, status: Json) -> Json:
    name = pod["spec"]["containers"][0]["name"]
    found: Json = next((c for c in status.get("containerStatuses") or () if c["name"] == name), {})
    return found


def _fails_now(container: Json) -> bool:
    state = container.get("state") or {}
    return (state.get("terminated") or {}).get("exitCode", 0) != 0 or (state.get("waiting") or {}).get(
        "reason"
    ) == "CrashLoopBackOff"


def _last_end(container: Json) -> NodeExit | None:
    """How a container ended that may be started again."""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        if ended := state.get("terminated"):
            code = ended.get("exitCode", 0)
            words = ended.get("message") or ended.get("reason", "")
            return NodeExit(ExitReason.ERROR if code else ExitReason.DONE, code, words)
    return None


@dataclass(frozen=True)
class MasterEnd:
    """What a master said of its job when it ended."""

    end: str
    reason: str = ""
    error: str = ""

    @property
    def words(self) -> str:
        return self.error or self.reason

    @classmethod
    def of(cls, pod: PodFacts) -> Self:
        """What an ended master's last words say; `end` is empty if they cannot be read."""
        try:
            said = json.loads(pod.exit.log_tail if pod.exit is not None else "")
            return cls(*(str(said.get(key) or "") for key in ("end", "reason", "error")))
        except (ValueError, AttributeError):
            return cls("")


@dataclass(frozen=True)
class Refusal:
    """The API server does not let something be made, in its own words."""

    words: str
    for_good: bool
    """Whether only another spec can change that."""
    generation: int


@dataclass(frozen=True)
class Observed:
    """One job as it is seen now. What is remembered is lost with the operator, and then only costs a repetition."""

    key: JobKey
    job: Json | None = None
    """The ElasticJob; None if there is none of that name."""
    pods: tuple[PodFacts, ...] = ()
    """The pods that this ElasticJob owns."""
    gone: tuple[PodFacts, ...] = ()
    """Node pods that were seen and are there no more, as they were last."""
    plans: tuple[Json, ...] = ()
    """The ScalePlans that name the job, those that are done included."""
    resources: tuple[Json, ...] = ()
    """The JobResources that name the job."""
    stop_asked_at: float | None = None
    """When the master was last asked to stop."""
    not_before: Mapping[str, float] = field(default_factory=dict)
    """By the uid of a plan: when its master is to be asked again."""
    refusal: Refusal | None = None
    """Why the master's pod could not be made."""

    @property
    def master(self) -> PodFacts | None:
        return next((pod for pod in self.pods if pod.role is NodeType.MASTER), None)

    @property
    def nodes(self) -> tuple[PodFacts, ...]:
        return tuple(pod for pod in self.pods if pod.role is not NodeType.MASTER)

    @property
    def status(self) -> Json:
        found: Json = {} if self.job is None else self.job.get("status") or {}
        return found

    @property
    def generation(self) -> int:
        return 0 if self.job is None else int(self.job["metadata"].get("generation", 0))
