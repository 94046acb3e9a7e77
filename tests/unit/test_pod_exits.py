"""What a pod's state says of its node, by states that real clusters have reported."""

from __future__ import annotations

from typing import Any

import pytest

from elastane.model.ids import NodeName
from elastane.model.node import ExitReason, NodeStatus
from elastane.platform.kubernetes.exits import node_event, vanished_event


def make_pod(
    phase: str, state: dict[str, Any] | None = None, *, deleted: bool = False, **status: Any
) -> dict[str, Any]:
    containers = [{"name": "z-main"}, {"name": "a-beside"}]
    pod: dict[str, Any] = {"metadata": {"name": "ctr-worker-0"}, "spec": {"containers": containers}}
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    pod["status"] = {"phase": phase, **status}
    if state is not None:
        # Kubernetes sorts them by name: the node's is not the first.
        beside = {"name": "a-beside", "state": {"running": {}}}
        pod["status"]["containerStatuses"] = [beside, {"name": "z-main", "state": state}]
    return pod


def terminated(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("pod", "note"),
    [
        (make_pod("Pending"), ""),
        (make_pod("Pending", waiting("ContainerCreating")), ""),
        (make_pod("Running", waiting("PodInitializing")), ""),
        (make_pod("Pending", **condition("PodScheduled", "True", "")), ""),
        (
            make_pod("Pending", **condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available")),
            "Unschedulable: 0/1 nodes are available",
        ),
        (make_pod("Pending", waiting("ImagePullBackOff", "Back-off pulling")), "ImagePullBackOff: Back-off pulling"),
        (make_pod("Pending", waiting("ErrImagePull")), "ErrImagePull"),
        (
            make_pod("Pending", waiting("CreateContainerConfigError", 'secret "x" not found')),
            'CreateContainerConfigError: secret "x" not found',
        ),
        (
            make_pod("Pending", initContainerStatuses=[{"name": "i", "state": waiting("InvalidImageName", "no")}]),
            "InvalidImageName: no",
        ),
    ],
)
def test_a_node_that_waits_says_for_what(pod: dict[str, Any], note: str) -> None:
    event = node_event(pod)
    assert (event.status, event.exit, event.note) == (NodeStatus.PENDING, None, note)


def test_a_pod_without_a_status_waits() -> None:
    assert node_event({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "m"}]}}).status is NodeStatus.PENDING


def test_a_node_runs_when_its_own_container_does() -> None:
    event = node_event(make_pod("Running", {"running": {}}))
    assert (event.node, event.status, event.exit) == ("ctr-worker-0", NodeStatus.RUNNING, None)
    assert node_event(make_pod("Running", {"running": {}}, deleted=True)).status is NodeStatus.RUNNING


@pytest.mark.parametrize(
    ("pod", "reason", "code", "words"),
    [
        (make_pod("Succeeded", terminated(0, "Completed")), ExitReason.DONE, 0, ""),
        (make_pod("Succeeded"), ExitReason.DONE, 0, ""),
        # The node has ended, though what stands beside it goes on.
        (make_pod("Running", terminated(0, "Completed")), ExitReason.DONE, 0, ""),
        (make_pod("Running", terminated(1, message="boom")), ExitReason.ERROR, 1, "boom"),
        (make_pod("Failed", terminated(1, message="ValueError: x")), ExitReason.ERROR, 1, "ValueError: x"),
        (make_pod("Failed", terminated(1, message="x\nMemoryError")), ExitReason.OOM, 1, "x\nMemoryError"),
        (make_pod("Failed", terminated(137, "OOMKilled")), ExitReason.OOM, 137, "OOMKilled"),
        (make_pod("Failed", terminated(137)), ExitReason.KILLED, 137, ""),
        (make_pod("Failed", terminated(143)), ExitReason.PREEMPTED, 143, ""),
        (make_pod("Failed", terminated(128, "StartError", "no such file")), ExitReason.ERROR, 128, "no such file"),
        (make_pod("Failed", reason="Evicted", message="low on memory"), ExitReason.PREEMPTED, None, "low on memory"),
        (make_pod("Failed", terminated(137), reason="Evicted"), ExitReason.PREEMPTED, 137, "Evicted"),
        (make_pod("Failed", reason="Preempting", message="for a critical pod"), ExitReason.PREEMPTED, None, "critical"),
        (make_pod("Failed", reason="NodeShutdown"), ExitReason.PREEMPTED, None, "NodeShutdown"),
        (make_pod("Failed", terminated(143), reason="Terminated"), ExitReason.PREEMPTED, 143, "Terminated"),
        (make_pod("Failed", reason="OutOfcpu", message="no cpu"), ExitReason.PREEMPTED, None, "no cpu"),
        (make_pod("Failed", reason="DeadlineExceeded", message="too long"), ExitReason.ERROR, None, "too long"),
        (make_pod("Failed"), ExitReason.ERROR, None, "does not say why"),
        (
            make_pod("Failed", terminated(137), **condition("DisruptionTarget", "True", "PreemptionByScheduler")),
            ExitReason.PREEMPTED,
            137,
            "PreemptionByScheduler",
        ),
        (make_pod("Running", {"running": {}}, deleted=True, reason="NodeLost"), ExitReason.LOST, None, "machine"),
        (make_pod("Unknown", {"running": {}}), ExitReason.LOST, None, "machine"),
        (make_pod("Failed", **condition("DisruptionTarget", "True", "DeletionByPodGC")), ExitReason.LOST, None, ""),
        # Told to leave, it was killed, or failed, or it was done.
        (make_pod("Running", terminated(137), deleted=True), ExitReason.PREEMPTED, 137, "deleted"),
        (make_pod("Failed", terminated(1, message="peer lost"), deleted=True), ExitReason.PREEMPTED, 1, "peer lost"),
        (make_pod("Running", terminated(0, "Completed"), deleted=True), ExitReason.DONE, 0, ""),
        (make_pod("Failed", terminated(137, "OOMKilled"), deleted=True), ExitReason.OOM, 137, ""),
    ],
)
def test_the_ways_to_end_are_told_apart(pod: dict[str, Any], reason: ExitReason, code: int | None, words: str) -> None:
    event = node_event(pod)
    assert event.exit is not None
    assert (event.exit.reason, event.exit.code) == (reason, code)
    assert words in event.exit.log_tail
    assert event.status is (NodeStatus.SUCCEEDED if reason is ExitReason.DONE else NodeStatus.FAILED)


@pytest.mark.parametrize(
    "message",
    [
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        'Container main exceeded its local ephemeral storage limit "1Gi". ',
        'Usage of EmptyDir volume "x" exceeds the limit "1Gi". ',
    ],
)
def test_who_is_evicted_for_using_more_than_its_limit_has_failed(message: str) -> None:
    event = node_event(make_pod("Failed", terminated(137), reason="Evicted", message=message))
    assert event.exit is not None
    assert (event.exit.reason, event.exit.log_tail) == (ExitReason.ERROR, message)


def test_what_comes_before_a_node_may_fail_it() -> None:
    before = [{"name": "ok", "state": terminated(0)}, {"name": "fetch", "state": terminated(3, message="no data")}]
    event = node_event(make_pod("Failed", waiting("PodInitializing"), initContainerStatuses=before))
    assert event.exit is not None
    assert (event.exit.reason, event.exit.code) == (ExitReason.ERROR, 3)
    assert event.exit.log_tail == 'init container "fetch": no data'


def test_a_pod_that_vanished_was_deleted_unless_its_last_state_says_more() -> None:
    name = NodeName("ctr-worker-0")
    for event in (vanished_event(name), vanished_event(name, make_pod("Running", {"running": {}}, deleted=True))):
        assert event.exit is not None
        assert (event.exit.reason, event.exit.log_tail) == (ExitReason.PREEMPTED, "somebody deleted its pod")
    done = vanished_event(name, make_pod("Succeeded", terminated(0)))
    assert done.exit is not None
    assert done.exit.reason is ExitReason.DONE
