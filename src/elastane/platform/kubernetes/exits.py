"""What a pod's state says of its node: whether it waits and for what, whether it runs, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastane.core.exits import exit_reason
from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.node import ExitReason, NodeExit, NodeStatus

Json = Mapping[str, Any]

_LOST = frozenset({"NodeLost"})
_LOST_DISRUPTIONS = frozenset({"DeletionByPodGC"})
"""Disruptions after which nobody can tell any more what became of the containers: their machine is gone."""

_PREEMPTED = frozenset(
    {
        "Evicted",
        "Preempting",
        "Shutdown",
        "NodeShutdown",
        "Terminated",
        # The machine had no place for the pod after all: nothing of the node's own has failed.
        "NodeAffinity",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfephemeral-storage",
        "OutOfnvidia.com/gpu",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)

_WAITS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that a person may have to do something about."""


def node_event(pod: Json) -> NodeEvent:
    """A pod's node as it is now. The `note` of one that waits says for what, where that is known."""
    name = NodeName(pod["metadata"]["name"])
    status: Json = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    node_exit = _exit(pod, status, phase)
    if node_exit is not None:
        return _ended(name, node_exit)
    if phase == "Running" and "running" in _state(pod, status):
        return NodeEvent(name, NodeStatus.RUNNING)
    return NodeEvent(name, NodeStatus.PENDING, note=_note(status))


def vanished_event(name: NodeName, pod: Json | None = None) -> NodeEvent:
    """The end of a node whose pod is gone; `pod` is the last that was seen of it."""
    if pod is not None:
        last = node_event(pod)
        if last.exit is not None:
            return last
    text = "somebody deleted its pod"
    return _ended(name, NodeExit(ExitReason.PREEMPTED, log_tail=text))


def _ended(name: NodeName, node_exit: NodeExit) -> NodeEvent:
    status = NodeStatus.SUCCEEDED if node_exit.reason is ExitReason.DONE else NodeStatus.FAILED
    return NodeEvent(name, status, exit=node_exit)


def _exit(pod: Json, status: Json, phase: str) -> NodeExit | None:
    """How the node ended; None if it has not."""
    terminated: Json | None = _state(pod, status).get("terminated")
    reason, words = status.get("reason", ""), status.get("message", "")
    disruption = _disruption(status)
    if reason in _LOST or phase == "Unknown" or (disruption in _LOST_DISRUPTIONS and terminated is None):
        return NodeExit(ExitReason.LOST, log_tail=words or "its machine does not answer")
    if terminated is None and phase not in ("Failed", "Succeeded"):
        return None
    ended = _container_exit(terminated) if terminated is not None else _exit_without_its_container(status, phase)
    if ended.reason is ExitReason.DONE:
        return ended
    if _is_own_fault(reason, words):
        return NodeExit(ExitReason.ERROR, ended.code, words)
    if reason in _PREEMPTED or (disruption and ended.reason is not ExitReason.OOM):
        return NodeExit(ExitReason.PREEMPTED, ended.code, ended.log_tail or words or reason or disruption)
    if "deletionTimestamp" in pod["metadata"] and ended.reason is not ExitReason.OOM:
        # It was told to leave, and whatever it did then was not its own idea.
        return NodeExit(ExitReason.PREEMPTED, ended.code, ended.log_tail or "somebody deleted its pod")
    return ended


def _container_exit(terminated: Json) -> NodeExit:
    code, words, reason = terminated.get("exitCode", 0), terminated.get("message", ""), terminated.get("reason", "")
    if code != 0 and not words and reason not in ("", "Error"):
        words = reason
    return NodeExit(exit_reason(code, out_of_memory=reason == "OOMKilled", log_tail=words), code, words)


def _exit_without_its_container(status: Json, phase: str) -> NodeExit:
    """The end of a pod whose own container never ran: Kubernetes refused it, or what comes before it failed."""
    if phase == "Succeeded":
        return NodeExit(ExitReason.DONE, 0)
    for before in status.get("initContainerStatuses", ()):
        terminated = before.get("state", {}).get("terminated")
        if terminated is not None and terminated.get("exitCode", 0) != 0:
            ended = _container_exit(terminated)
            return NodeExit(ended.reason, ended.code, f'init container "{before["name"]}": {ended.log_tail}'.strip())
    words = ": ".join(word for word in (status.get("reason", ""), status.get("message", "")) if word)
    return NodeExit(ExitReason.ERROR, log_tail=words or "its pod failed, and Kubernetes does not say why")


def _is_own_fault(reason: str, words: str) -> bool:
    """Whether a pod was evicted because it used more than its own limit: the next one would, too."""
    return reason == "Evicted" and "exceed" in words and "limit" in words


def _disruption(status: Json) -> str:
    for condition in status.get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return str(condition.get("reason", "disrupted"))
    return ""


def _note(status: Json) -> str:
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _words(condition)
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _WAITS:
            return _words(waiting)
    return ""


def _words(why: Json) -> str:
    reason, message = why.get("reason", "Waiting"), why.get("message", "")
    return f"{reason}: {message}" if message else str(reason)


def _state(pod: Json, status: Json) -> Json:
    """The state of the container that is the node; those beside it may go on after it."""
    name = pod["spec"]["containers"][0]["name"]
    for container in status.get("containerStatuses", ()):
        if container["name"] == name:
            state: Json = container.get("state", {})
            return state
    return {}
