"""What the operator decides about one job, from what it sees."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from elastane.model.node import ExitReason, NodeExit, NodeType
from elastane.operator.actions import (
    AskMaster,
    AskMasterToStop,
    CarryOutPlan,
    CreateMasterPod,
    CreateSecret,
    CreateService,
    DeleteJob,
    DeletePods,
    EmitEvent,
    PatchPlan,
    PatchStatus,
)
from elastane.operator.observed import JobKey, MasterEnd, Observed, PodFacts, Refusal
from elastane.operator.plans import apply_request
from elastane.operator.reconcile import STOP_PATIENCE_S, STUCK_S, Decision, reconcile
from elastane.operator.status import restarts_seen
from elastane.operator.times import moment, stamp
from tests.builders import job_document

A = TypeVar("A")

NOW = moment("2030-01-01T00:00:00Z")
UID = "job-uid"
MASTER = PodFacts("ctr-master", "m-1", NodeType.MASTER, phase="Running", ready=True, has_started=True, created_at=NOW)
WORKER = PodFacts("ctr-worker-0", "w-0", NodeType.WORKER, phase="Running", ready=True, created_at=NOW)


def job(generation: int = 1, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    document = job_document()
    document["metadata"] |= {"namespace": "ns", "uid": UID, "generation": generation, "resourceVersion": "1"}
    document |= {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "status": status or {}}
    document["spec"] |= spec
    return document


def look(*pods: PodFacts, body: dict[str, Any] | None = None, now: float = NOW, **more: Any) -> Decision:
    return reconcile(Observed(JobKey("ns", "ctr"), body if body is not None else job(), pods, **more), now)


def only(decision: Decision, kind: type[A]) -> A:
    found = [action for action in decision.actions if isinstance(action, kind)]
    assert len(found) == 1, decision.actions
    return found[0]


def has(decision: Decision, kind: type[Any]) -> bool:
    return sum(isinstance(action, kind) for action in decision.actions) == 1


def none(decision: Decision, kind: type[Any]) -> bool:
    return not any(isinstance(action, kind) for action in decision.actions)


def settled(*pods: PodFacts, body: dict[str, Any] | None = None, now: float = NOW, **more: Any) -> dict[str, Any]:
    """The job with the status that it has after it was seen like this."""
    seen = body if body is not None else job()
    for action in look(*pods, body=seen, now=now, **more).actions:
        if isinstance(action, PatchStatus):
            seen = {**seen, "status": dict(action.status)}
    return seen


def conditions(body: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {found["type"]: (found["status"], found["reason"]) for found in body["status"].get("conditions", ())}


def events(decision: Decision) -> list[str]:
    return [action.reason for action in decision.actions if isinstance(action, EmitEvent)]


def ended(end: str, error: str = "") -> PodFacts:
    said = json.dumps({"end": end, "reason": "", "error": error})
    return replace(MASTER, phase="Succeeded", ready=False, exit=NodeExit(ExitReason.DONE, 0, said))


def plan(name: str = "p", *, scale_type: str = "auto", status: dict[str, Any] | None = None, **spec: Any) -> Any:
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2030-01-01T00:00:00Z",
            "resourceVersion": "7",
            "labels": {"elasticjob-name": "ctr", "scale-type": scale_type},
        },
        "spec": {"ownerJob": "ctr", **spec},
        "status": status or {},
    }


def job_resource(generation: int = 1, status: dict[str, Any] | None = None, **spec: Any) -> Any:
    made = plan("r", status=status, **spec)
    made |= {"apiVersion": "elastic.easydl.org/v1alpha1", "kind": "JobResource"}
    made["metadata"]["generation"] = generation
    made["spec"] = {"selector": {"name": "ctr"}, **spec}
    return made


def pod_to_create(number: int) -> dict[str, Any]:
    return {"name": f"ctr-worker-{number}", "type": "worker", "id": number, "slot": number}


def test_a_new_job_gets_its_master_and_nothing_else() -> None:
    decision = look()
    assert [type(action).__name__ for action in decision.actions] == [
        "CreateServiceAccount",
        "CreateRoleBinding",
        "CreateSecret",
        "CreateService",
        "CreateMasterPod",
    ]
    assert only(decision, CreateMasterPod).job.name == "ctr"
    assert has(decision, CreateSecret)
    assert has(decision, CreateService)


def test_a_masters_pod_that_is_there_is_not_made_again() -> None:
    decision = look(replace(MASTER, phase="Pending", ready=False))
    assert none(decision, CreateMasterPod)
    assert events(decision) == ["MasterCreated"]
    assert only(decision, PatchStatus).status["phase"] == "Pending"


def test_what_was_said_is_not_said_again() -> None:
    body = settled(MASTER, WORKER)
    assert conditions(body) == {
        "Created": ("True", "MasterCreated"),
        "Running": ("True", "NodesRunning"),
        "Scaling": ("False", "Settled"),
    }
    assert look(MASTER, WORKER, body=body, now=NOW + 100).actions == []


def test_times_of_conditions_stay_while_they_are_so() -> None:
    body = settled(MASTER, WORKER)
    later = settled(MASTER, WORKER, replace(WORKER, name="ctr-worker-1", index=1, slot=1), body=body, now=NOW + 100)
    assert later["status"]["replicaStatuses"]["worker"]["active"] == 2
    assert {found["lastTransitionTime"] for found in later["status"]["conditions"]} == {stamp(NOW)}


def test_a_spec_that_cannot_be_used_is_named_and_can_be_mended() -> None:
    bad = job(worker={**job_document()["spec"]["worker"], "minReplicas": 5, "maxReplicas": 2})
    decision = look(body=bad)
    assert none(decision, CreateMasterPod)
    body = settled(body=bad)
    assert conditions(body)["Failed"] == ("True", "InvalidSpec")
    assert "spec.worker.minReplicas" in body["status"]["reason"]
    assert events(decision) == ["InvalidSpec"]
    assert look(body=body, now=NOW + 5).actions == []
    mended = job(generation=2, status=body["status"])
    assert has(look(body=mended), CreateMasterPod)


def test_a_running_job_goes_on_when_its_spec_is_spoilt() -> None:
    body = settled(MASTER, WORKER)
    spoilt = {**job(generation=2, scaler="nobody"), "status": body["status"]}
    after = settled(MASTER, WORKER, body=spoilt)
    assert conditions(after)["Failed"] == ("False", "InvalidSpec")
    assert conditions(after)["Running"][0] == "True"
    assert conditions(settled(body=after))["Failed"] == ("True", "InvalidSpec"), "no master can be made of it"


def test_a_pod_that_the_api_server_calls_invalid_fails_the_job_until_its_spec_changes() -> None:
    refusal = Refusal("spec.containers[0].image: Required value", for_good=True, generation=1)
    body = settled(refusal=refusal)
    assert conditions(body)["Failed"] == ("True", "InvalidSpec")
    assert look(body=body, refusal=refusal).actions == []
    assert look(body=body).actions == [], "a restarted operator does not try it again"
    assert has(look(body={**body, "metadata": {**body["metadata"], "generation": 2}}), CreateMasterPod)


def test_a_full_quota_is_told_and_tried_again() -> None:
    refusal = Refusal("exceeded quota", for_good=False, generation=1)
    decision = look(refusal=refusal)
    assert has(decision, CreateMasterPod)
    assert events(decision) == ["MasterRefused"]
    assert conditions(settled(refusal=refusal))["Created"] == ("False", "MasterRefused")


@pytest.mark.parametrize(
    ("end", "condition", "reason", "event"),
    [
        ("succeeded", "Complete", "Succeeded", "Completed"),
        ("failed", "Failed", "JobFailed", "Failed"),
        ("stopped", "Failed", "Stopped", "Failed"),
        ("?", "Failed", "UnknownEnd", "Failed"),
    ],
)
def test_the_masters_last_words_are_the_jobs_end(end: str, condition: str, reason: str, event: str) -> None:
    body = settled(MASTER, WORKER)
    decision = look(ended(end), WORKER, body=body, now=NOW + 9)
    assert event in events(decision)
    assert only(decision, DeletePods).pods == (("ctr-worker-0", "w-0"),)
    after = settled(ended(end), WORKER, body=body, now=NOW + 9)
    assert conditions(after)[condition] == ("True", reason)
    assert after["status"]["completionTime"] == stamp(NOW + 9)
    assert conditions(after)["Running"] == ("False", "Ended")


def test_a_finished_job_stays_finished_without_its_pods() -> None:
    body = settled(ended("succeeded"), body=settled(MASTER))
    assert none(look(body=body, now=NOW + 100), CreateMasterPod)
    assert conditions(settled(body=body))["Complete"][0] == "True"


def test_last_words_that_are_no_json_are_no_end() -> None:
    for text in ("", "Traceback", "[1]", "null", '"x"'):
        assert MasterEnd.of(replace(MASTER, exit=NodeExit(ExitReason.DONE, 0, text))).end == ""


def test_a_lost_master_is_counted_once_and_made_anew() -> None:
    body = settled(MASTER, WORKER)
    decision = look(WORKER, body=body)
    assert isinstance(decision.actions[0], PatchStatus), "counted before it is made"
    assert has(decision, CreateMasterPod)
    assert "MasterLost" in events(decision)
    body = settled(WORKER, body=body)
    assert body["status"]["masterRestarts"] == 1
    again = look(WORKER, body=body)
    assert has(again, CreateMasterPod), "an operator that died in between goes on"
    assert none(again, PatchStatus)
    body = settled(replace(MASTER, uid="m-2"), WORKER, body=body)
    assert body["status"]["masterRestarts"] == 1
    assert body["status"]["masterPod"] == {"uid": "m-2", "before": 1}


def test_a_failed_master_is_deleted_before_the_next_is_made() -> None:
    body = settled(MASTER)
    failed = replace(MASTER, phase="Failed", exit=NodeExit(ExitReason.PREEMPTED, None, "Evicted"))
    decision = look(failed, body=body)
    assert none(decision, CreateMasterPod)
    assert only(decision, DeletePods).pods == (("ctr-master", "m-1"),)
    body = settled(failed, body=body)
    assert body["status"]["masterRestarts"] == 1
    going = replace(failed, gone_by=NOW + 30)
    assert look(going, body=body).actions == []
    assert has(look(body=body), CreateMasterPod)


def test_a_master_that_cannot_be_deleted_is_forced_out() -> None:
    body = settled(MASTER)
    going = replace(MASTER, gone_by=NOW + 30)
    body = settled(going, body=body)
    waiting = look(going, body=body)
    assert waiting.look_again_at == NOW + 30 + STUCK_S
    assert only(look(going, body=body, now=NOW + 30 + STUCK_S), DeletePods).at_once


def test_a_master_that_crashes_in_its_pod_counts_against_the_limit() -> None:
    body = settled(MASTER, body=job(backoffLimit=1))
    crashed = replace(MASTER, ready=False, container_fails=True, exit=NodeExit(ExitReason.ERROR, 3, "boom"))
    body = settled(crashed, body=body)
    assert "Failed" not in conditions(body)
    again = replace(crashed, container_restarts=1)
    body = settled(again, body=body)
    assert conditions(body)["Failed"] == ("True", "BackoffLimitExceeded")
    assert "boom" in body["status"]["reason"]
    assert body["status"]["masterRestarts"] == 1
    assert only(look(again, body=body), DeletePods).pods == (("ctr-master", "m-1"),)


def test_a_job_that_takes_too_long_fails_with_all_its_pods() -> None:
    body = settled(MASTER, WORKER, body=job(activeDeadlineSeconds=60))
    assert look(MASTER, WORKER, body=body).look_again_at == NOW + 60
    after = settled(MASTER, WORKER, body=body, now=NOW + 60)
    assert conditions(after)["Failed"] == ("True", "DeadlineExceeded")
    assert len(only(look(MASTER, WORKER, body=after, now=NOW + 60), DeletePods).pods) == 2


def test_an_ended_job_is_deleted_when_its_time_is_over() -> None:
    body = settled(MASTER, body=job(ttlSecondsAfterFinished=30))
    body = settled(ended("succeeded"), body=body)
    assert look(ended("succeeded"), body=body).look_again_at == NOW + 30
    assert has(look(ended("succeeded"), body=body, now=NOW + 30), DeleteJob)


def test_a_suspended_job_is_stopped_then_cleared_and_can_be_resumed() -> None:
    running = settled(MASTER, WORKER)
    body = {**running, "spec": {**running["spec"], "suspend": True}}
    assert has(look(MASTER, WORKER, body=body), AskMasterToStop)
    body = settled(MASTER, WORKER, body=body)
    assert conditions(body)["Suspended"] == ("Unknown", "Stopping")
    assert none(look(MASTER, WORKER, body=body, stop_asked_at=NOW), AskMasterToStop)
    assert len(only(look(ended("stopped"), WORKER, body=body), DeletePods).pods) == 2
    body = settled(body=body, now=NOW + 9)
    assert conditions(body)["Suspended"] == ("True", "Suspended")
    assert body["status"]["phase"] == "Suspended"
    assert "startTime" not in body["status"]
    assert look(body=body, now=NOW + 99).actions == []
    body = {**body, "spec": {**body["spec"], "suspend": False}}
    assert has(look(body=body), CreateMasterPod)
    body = settled(replace(MASTER, uid="m-2"), body=body)
    assert conditions(body)["Suspended"] == ("False", "Resumed")
    assert "masterRestarts" not in body["status"]


def test_a_job_resumed_while_it_stops_has_not_failed() -> None:
    running = settled(MASTER)
    body = settled(MASTER, body={**running, "spec": {**running["spec"], "suspend": True}})
    body = {**body, "spec": {**body["spec"], "suspend": False}}
    assert has(look(ended("stopped"), body=body), DeletePods)
    body = settled(body=settled(ended("stopped"), body=body))
    assert "Failed" not in conditions(body)
    assert has(look(body=body), CreateMasterPod)


def test_a_job_that_ends_while_it_is_to_be_suspended_has_ended() -> None:
    running = settled(MASTER)
    body = settled(MASTER, body={**running, "spec": {**running["spec"], "suspend": True}})
    assert conditions(settled(ended("succeeded"), body=body))["Complete"][0] == "True"


def test_a_master_that_does_not_stop_is_not_waited_for_forever() -> None:
    running = settled(MASTER)
    body = settled(MASTER, body={**running, "spec": {**running["spec"], "suspend": True}})
    assert has(look(MASTER, body=body, now=NOW + 30 + STOP_PATIENCE_S), DeletePods)


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    body = job()
    body["metadata"]["deletionTimestamp"] = stamp(NOW)
    assert look(body=body) == Decision()


def test_a_plan_of_the_master_is_carried_out_once() -> None:
    body = settled(MASTER, WORKER)
    auto = plan(createPods=[pod_to_create(0), pod_to_create(1)], removePods=["ctr-worker-7"])
    found = only(look(MASTER, WORKER, body=body, plans=(auto,)), CarryOutPlan)
    assert [node.name for node in found.create] == ["ctr-worker-1"], "the other one is there"
    done = {**auto, "status": {"phase": "Succeeded"}}
    assert none(look(MASTER, WORKER, body=body, plans=(done,)), CarryOutPlan)


def test_a_pod_that_another_plan_removes_is_not_created_whatever_their_order() -> None:
    body = settled(MASTER)
    first, second = plan("a", createPods=[pod_to_create(1)]), plan("b", removePods=["ctr-worker-1"])
    second["metadata"]["resourceVersion"] = "3"
    found = [act for act in look(MASTER, body=body, plans=(first, second)).actions if isinstance(act, CarryOutPlan)]
    assert [act.create for act in found] == [(), ()]


def test_a_plan_for_a_job_of_the_past_is_refused() -> None:
    old = plan(createPods=[pod_to_create(1)])
    old["metadata"]["ownerReferences"] = [{"kind": "ElasticJob", "uid": "another"}]
    decision = look(MASTER, body=settled(MASTER), plans=(old,))
    assert only(decision, PatchPlan).status["phase"] == "Failed"
    assert none(decision, CarryOutPlan)


def test_scaling_is_told_while_a_plan_is_open_or_pods_wait() -> None:
    body = settled(MASTER, WORKER)
    waiting = replace(WORKER, name="ctr-worker-1", index=1, slot=1, phase="Pending", note="Unschedulable: no room")
    open_plan = plan(createPods=[pod_to_create(1)])
    assert conditions(settled(MASTER, WORKER, body=body, plans=(open_plan,)))["Scaling"] == ("True", "PlanOpen")
    assert conditions(settled(MASTER, WORKER, waiting, body=body))["Scaling"] == ("True", "PodsPending")


def test_a_users_plan_goes_to_the_master_when_it_is_ready() -> None:
    body = settled(MASTER)
    manual = plan(scale_type="manual", replicaResourceSpecs={"worker": {"replicas": 3, "resource": {"memory": "1Gi"}}})
    starting = replace(MASTER, ready=False)
    assert only(look(starting, body=body, plans=(manual,)), PatchPlan).status["phase"] == "Pending"
    asked = only(look(MASTER, body=body, plans=(manual,)), AskMaster)
    assert not asked.asked_before
    request = apply_request(asked.document)
    assert [(group.role, group.count, group.memory_bytes) for group in request.group] == [("worker", 3, 2**30)]
    later = look(MASTER, body=body, plans=(manual,), not_before={"uid-p": NOW + 4})
    assert none(later, AskMaster)
    assert later.look_again_at == NOW + 4
    interrupted = {**manual, "status": {"phase": "Scaling", "observedGeneration": 1}}
    assert only(look(MASTER, body=body, plans=(interrupted,)), AskMaster).asked_before


def test_a_job_resource_is_applied_once_for_each_generation() -> None:
    body = settled(MASTER)
    resource = job_resource(worker={"replicas": 2}, resource_updation=[{"name": "ctr-ps-0", "resource": {"cpu": 2}}])
    asked = only(look(MASTER, body=body, resources=(resource,)), AskMaster)
    assert [(change.node, change.cpu) for change in apply_request(asked.document).node] == [("ctr-ps-0", 2)]
    done = {**resource, "status": {"phase": "Succeeded", "observedGeneration": 1, "jobUid": UID}}
    assert none(look(MASTER, body=body, resources=(done,)), AskMaster)
    changed = {**done, "metadata": {**done["metadata"], "generation": 2}}
    assert has(look(MASTER, body=body, resources=(changed,)), AskMaster)
    of_the_past = {**done, "status": {**done["status"], "jobUid": "another"}}
    assert has(look(MASTER, body=body, resources=(of_the_past,)), AskMaster)


def test_plans_wait_for_a_job_that_is_not_there_and_are_refused_by_one_that_has_ended() -> None:
    resource = job_resource(worker={"replicas": 2})
    waiting = reconcile(Observed(JobKey("ns", "ctr"), None, resources=(resource,)), NOW)
    assert only(waiting, PatchPlan).status["phase"] == "Pending"
    body = settled(ended("succeeded"), body=settled(MASTER))
    refused = look(ended("succeeded"), body=body, resources=(resource,))
    assert only(refused, PatchPlan).status["phase"] == "Failed"
    assert "has ended" in only(refused, PatchPlan).status["message"]


def test_a_plan_that_cannot_be_used_says_which_field() -> None:
    manual = plan(scale_type="manual", createPods=[pod_to_create(1)])
    status = only(look(MASTER, body=settled(MASTER), plans=(manual,)), PatchPlan).status
    assert status["phase"] == "Failed"
    assert "spec.createPods" in status["message"]


def test_restarts_that_count_and_those_that_do_not_are_told_apart() -> None:
    second = replace(WORKER, name="ctr-worker-1", index=1, relaunches=1, restarts=1)
    third = replace(WORKER, name="ctr-worker-2", index=2, relaunches=2, restarts=1)
    assert restarts_seen([WORKER, second, third]) == {"counted": 1, "ignored": 1}
    other = replace(WORKER, name="ctr-worker-3", index=3, slot=1, relaunches=3)
    assert restarts_seen([third, other]) == {"counted": 1, "ignored": 4}
    assert restarts_seen([third, replace(WORKER, index=4)]) == {"counted": 1, "ignored": 1}, "the slot was given anew"


def test_restarts_never_go_back() -> None:
    second = replace(WORKER, name="ctr-worker-1", index=1, relaunches=2, restarts=2)
    body = settled(MASTER, second)
    assert body["status"]["restarts"] == {"counted": 2, "ignored": 0}
    assert settled(MASTER, WORKER, body=body)["status"]["restarts"]["counted"] == 2
