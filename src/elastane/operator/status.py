"""What is said about a job in its status, and the story that the changes of it tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from elastane.model.node import NodeType
from elastane.operator.actions import EmitEvent
from elastane.operator.observed import Json, PodFacts
from elastane.operator.times import moment, stamp

CREATED, RUNNING, SCALING = "Created", "Running", "Scaling"
SUSPENDED, COMPLETE, FAILED = "Suspended", "Complete", "Failed"
CONDITIONS = (CREATED, RUNNING, SCALING, SUSPENDED, COMPLETE, FAILED)

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

INVALID_SPEC = "InvalidSpec"

MOST_WORDS = 1000
"""A message of a condition or an event is not longer."""


class Draft:
    """A job's next status, begun as a copy of the last."""

    def __init__(self, old: Json, generation: int, now: float) -> None:
        self._generation = generation
        self._now = now
        self.fields: dict[str, Any] = {key: value for key, value in old.items() if key != "conditions"}
        self._conditions = {found["type"]: found for found in old.get("conditions") or ()}

    def set(self, type: str, status: str, reason: str, message: str = "") -> None:
        """Say whether something is so, and why; the time of the change stays if it was so before."""
        before = self._conditions.get(type)
        same = before is not None and before["status"] == status
        self._conditions[type] = {
            "type": type,
            "status": status,
            "reason": reason,
            "message": clipped(message),
            "lastTransitionTime": before["lastTransitionTime"] if before and same else stamp(self._now),
            "observedGeneration": self._generation,
        }

    def condition(self, type: str) -> Json | None:
        return self._conditions.get(type)

    def says(self, type: str, status: str = TRUE) -> bool:
        found = self._conditions.get(type)
        return found is not None and found["status"] == status

    def since(self, type: str) -> float:
        """When a condition became what it is; now, if there is none."""
        found = self._conditions.get(type)
        return self._now if found is None else moment(found["lastTransitionTime"])

    @property
    def started_at(self) -> float | None:
        text = self.fields.get("startTime")
        return None if text is None else moment(text)

    @property
    def ended_at(self) -> float | None:
        text = self.fields.get("completionTime")
        return None if text is None else moment(text)

    @property
    def finished(self) -> bool:
        """Whether the job has ended for good. A spec that could not be used may be mended."""
        failed = self._conditions.get(FAILED)
        if self.says(COMPLETE):
            return True
        if failed is None or failed["status"] != TRUE:
            return False
        return failed["reason"] != INVALID_SPEC or self.ended_at is not None

    def document(self) -> dict[str, Any]:
        known = [self._conditions[kind] for kind in CONDITIONS if kind in self._conditions]
        return {**self.fields, "conditions": known} if known else dict(self.fields)


def clipped(text: str) -> str:
    """One line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_WORDS else f"{line[: MOST_WORDS - 4]} ..."


def role_counts(pods: Iterable[PodFacts], before: Json) -> dict[str, dict[str, int]]:
    """How many pods of each role there are; a role that was there before stays."""
    counts = {role: {"pending": 0, "active": 0, "succeeded": 0, "failed": 0} for role in before}
    for pod in pods:
        of_role = counts.setdefault(pod.role.value, {"pending": 0, "active": 0, "succeeded": 0, "failed": 0})
        of_role[{"Succeeded": "succeeded", "Failed": "failed", "Running": "active"}.get(pod.phase, "pending")] += 1
    return counts


def restarts_seen(pods: Iterable[PodFacts]) -> dict[str, int]:
    """The relaunches that node pods tell of, the ones that are gone included: those that were counted, and the rest.

    A pod says how many its slot has had so far.
    """
    counted: dict[tuple[NodeType, int], int] = defaultdict(int)
    ignored: dict[tuple[NodeType, int], int] = defaultdict(int)
    for pod in pods:
        place = (pod.role, pod.slot)
        counted[place] = max(counted[place], pod.restarts)
        ignored[place] = max(ignored[place], pod.relaunches - pod.restarts)
    return {"counted": sum(counted.values()), "ignored": sum(ignored.values())}


def story(old: Json, new: Json) -> list[EmitEvent]:
    """The events that tell how one status became the other."""
    before, after = ({found["type"]: found for found in status.get("conditions") or ()} for status in (old, new))
    events: list[EmitEvent] = []
    for kind in CONDITIONS:
        if kind in after:
            events += _told(kind, before.get(kind), after[kind])
    events += _told_of_master(old.get("masterPod") or {}, new.get("masterPod") or {})
    for role, counts in (new.get("replicaStatuses") or {}).items():
        was = (old.get("replicaStatuses") or {}).get(role) or {}
        grew = was.get("pending", 0) > 0 or was.get("active", 0) < counts["active"]
        if role != NodeType.MASTER and counts["active"] and not counts["pending"] and grew:
            events.append(EmitEvent("NodesRunning", f"{_amount(counts['active'], NodeType(role))} running"))
    had, has = (status.get("restarts") or {} for status in (old, new))
    for kind, words in (("counted", "failed by itself"), ("ignored", "was lost by no fault of its own")):
        if more := has.get(kind, 0) - had.get(kind, 0):
            nodes = "a node" if more == 1 else f"{more} nodes"
            events.append(EmitEvent("NodeRelaunched", f"{nodes} that {words}: relaunched ({has[kind]} so far)"))
    return events


def _amount(count: int, role: NodeType) -> str:
    return f"{count} {role.value if count == 1 else role.plural}"


def _told(kind: str, before: Json | None, after: Json) -> Sequence[EmitEvent]:
    was = None if before is None else before["status"]
    status, reason, message = after["status"], after["reason"], after["message"]
    if kind == FAILED and reason == INVALID_SPEC and (before is None or before["message"] != message):
        return [EmitEvent(INVALID_SPEC, message, warning=True)]
    if kind == CREATED and status == FALSE and (before is None or before["message"] != message):
        return [EmitEvent(reason, message, warning=True)]
    if was == status:
        return []
    if kind == SUSPENDED:
        word = {TRUE: "Suspended", UNKNOWN: "Suspending"}.get(status, "Resumed" if was is not None else "")
        return [EmitEvent(word, message)] if word else []
    if status != TRUE:
        return []
    told = {
        RUNNING: EmitEvent("Running", message),
        COMPLETE: EmitEvent("Completed", message),
        FAILED: EmitEvent("Failed", f"{reason}: {message}", warning=True),
    }.get(kind)
    return [] if told is None else [told]


def _told_of_master(before: Json, after: Json) -> Sequence[EmitEvent]:
    if after.get("over") and not (before.get("over") and before.get("uid") == after.get("uid")):
        return [EmitEvent("MasterLost", f"the master's pod is lost: {after.get('why', '')}", warning=True)]
    if after.get("uid") != before.get("uid"):
        words = "the master's pod was made anew" if before.get("uid") else "the master's pod was created"
        return [EmitEvent("MasterCreated", words)] if after.get("uid") else []
    if after.get("containerRestarts", 0) > before.get("containerRestarts", 0):
        words = f"the master was restarted in its pod: {after.get('why', '')}"
        return [EmitEvent("MasterRestarted", words, warning=True)]
    return []
