"""The operator against a real API server and real pods: jobs begin, end, pause, fail and are cleared away."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from elastane.operator.install import NAMESPACE
from elastane.platform.kubernetes.pods import LABEL_JOB
from tests.kubernetes.cluster.errors import KubectlFailed
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.operator_process import OperatorProcess
from tests.kubernetes.running_job import STEP_S, RunningJob, template
from tests.kubernetes.waiting import NotYet, eventually

pytestmark = pytest.mark.timeout(300)

SLEEPS = ("-c", "import time; time.sleep(3600)")
ENDS = ("-c", "print('done')")
API, EASYDL = "elastic.iml.github.io/v1alpha1", "elastic.easydl.org/v1alpha1"

Start = Callable[..., RunningJob]


@pytest.fixture
def start(cluster: Cluster, operator: OperatorProcess, namespace: str) -> Start:
    """Applies a job without training in it."""

    def apply(name: str, command: tuple[str, ...] = SLEEPS, **spec: Any) -> RunningJob:
        worker = {"replicas": 2, "template": template(*command), **spec.pop("worker", {})}
        plain = {"distributionStrategy": "none", "terminationGracePeriodSeconds": 1}
        return RunningJob.apply(cluster, namespace, name, {**plain, "worker": worker, **spec})

    return apply


def told(job: RunningJob) -> list[str]:
    """The reasons of the events of a job."""
    selector = f"--field-selector=involvedObject.name={job.name},involvedObject.kind=ElasticJob"
    found = json.loads(job.kubectl("get", "events", selector, "--output=json"))["items"]
    return [event["reason"] for event in found]


def until_condition(job: RunningJob, kind: str) -> dict[str, Any]:
    """Wait until something is so of a job; the answer is its status."""

    def is_so() -> dict[str, Any]:
        status: dict[str, Any] = job.seen().get("status", {})
        if not any(found["type"] == kind and found["status"] == "True" for found in status.get("conditions", ())):
            raise NotYet(str(status))
        return status

    return eventually(is_so, STEP_S, f"{kind} of {job.name}")


def until_running(job: RunningJob, workers: int) -> None:
    eventually(lambda: len(job.running("worker")) == workers, STEP_S, f"{workers} workers of {job.name}")
    until_condition(job, "Running")


def is_gone(job: RunningJob, kind: str, name: str) -> bool:
    try:
        job.kubectl("get", kind, name)
    except KubectlFailed as error:
        return "NotFound" in str(error)
    return False


def test_a_job_runs_to_its_end_and_all_that_it_made_goes_with_it(start: Start) -> None:
    job = start("whole", ENDS)
    assert job.until_ended() == {"Created": "MasterCreated", "Complete": "Succeeded"}
    status = job.seen()["status"]
    assert status["phase"] == "Complete"
    assert status["replicaStatuses"]["master"]["succeeded"] == 1
    assert status["startTime"] <= status["completionTime"]
    assert {"MasterCreated", "Completed"} <= set(told(job))
    uid = job.seen()["metadata"]["uid"]
    kinds = ("secret", "service", "serviceaccount", "rolebinding", "pod")
    for kind in kinds:
        made = json.loads(job.kubectl("get", kind, "whole-master", "--output=json"))
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [uid]
    job.kubectl("delete", "elasticjob", "whole")
    eventually(lambda: all(is_gone(job, kind, "whole-master") for kind in kinds), STEP_S, "the end of all of it")


def test_a_spec_that_no_schema_refuses_is_told_by_its_field_and_can_be_mended(start: Start) -> None:
    job = start("mended", ENDS, worker={"minReplicas": 3, "maxReplicas": 2, "replicas": 3})
    status = until_condition(job, "Failed")
    assert "spec.worker.minReplicas" in status["reason"]
    assert job.pods("master") == []
    job.kubectl("patch", "elasticjob", "mended", "--type=merge", '--patch={"spec": {"worker": {"maxReplicas": 3}}}')
    until_condition(job, "Complete")


def test_a_pod_that_the_api_server_refuses_is_told_by_its_field(start: Start) -> None:
    bad = template(*SLEEPS, ports=[{"containerPort": 99999}])
    job = start("refused", master={"template": bad})
    status = until_condition(job, "Failed")
    assert "containerPort" in status["reason"]
    assert "InvalidSpec" in told(job)


def test_a_master_that_does_not_start_fails_its_job_after_the_limit(start: Start) -> None:
    # The interpreter is taken from the command; this one has no elastane, and ends at once.
    broken = template(*SLEEPS)
    broken["spec"]["containers"][0]["command"] = ["/usr/bin/python3-nothing"]
    job = start("broken", master={"template": broken}, backoffLimit=1)
    status = until_condition(job, "Failed")
    assert job.conditions()["Failed"] == "BackoffLimitExceeded", status
    assert status["masterRestarts"] <= 1
    eventually(lambda: not job.pods("master"), STEP_S, "the end of the master")


def test_a_job_is_suspended_and_resumed(start: Start) -> None:
    job = start("paused")
    until_running(job, 2)
    first = job.pods("master")[0]["metadata"]["uid"]
    job.kubectl("patch", "elasticjob", "paused", "--type=merge", '--patch={"spec": {"suspend": true}}')
    status = until_condition(job, "Suspended")
    assert status["phase"] == "Suspended"
    selector = f"--selector={LABEL_JOB}=paused"
    assert json.loads(job.kubectl("get", "pods", selector, "--output=json"))["items"] == []
    job.kubectl("patch", "elasticjob", "paused", "--type=merge", '--patch={"spec": {"suspend": false}}')
    until_running(job, 2)
    assert job.pods("master")[0]["metadata"]["uid"] != first
    assert "masterRestarts" not in job.seen()["status"]
    assert {"Suspending", "Suspended", "Resumed"} <= set(told(job))


def test_a_job_past_its_deadline_fails_and_is_deleted_when_its_time_is_over(start: Start) -> None:
    job = start("late", activeDeadlineSeconds=8, ttlSecondsAfterFinished=4)
    until_running(job, 2)
    assert until_condition(job, "Failed")["reason"].startswith("DeadlineExceeded")
    eventually(lambda: is_gone(job, "elasticjob", "late"), STEP_S, "the end of the ElasticJob")


def test_plans_wait_for_their_job_and_say_why_they_are_refused(start: Start, cluster: Cluster, namespace: str) -> None:
    early = RunningJob(cluster, namespace, "early")
    waiting = early.create(
        EASYDL, "JobResource", {"selector": {"name": "early"}, "worker": {"replicas": 3}}, name="size"
    )

    def message(plan: str, phase: str) -> str:
        status = json.loads(early.kubectl("get", plan, "--output=json")).get("status", {})
        if status.get("phase") != phase:
            raise NotYet(str(status))
        return str(status["message"])

    assert "early" in eventually(lambda: message(waiting, "Pending"), STEP_S, "the JobResource")
    job = start("early", worker={"replicas": 1, "maxReplicas": 3}, scaler="elastic-job")
    early.until_plan_done(waiting)
    until_running(job, 3)
    too_many = {"ownerJob": "early", "replicaResourceSpecs": {"worker": {"replicas": 9}}}
    refused = job.create(API, "ScalePlan", too_many, name="many", labels={"scale-type": "manual"})
    assert "above max 3" in eventually(lambda: message(refused, "Failed"), STEP_S, "the ScalePlan")
    assert {"PlanDone", "PlanRefused", "Scaled"} <= set(told(job))


def test_an_operator_that_is_killed_creates_nothing_twice(start: Start, operator: OperatorProcess) -> None:
    job = start("twice", worker={"replicas": 3}, scaler="elastic-job", backoffLimit=0)
    for _ in range(2):
        operator.kill()
        operator.start()
    until_running(job, 3)
    seen = {**job.identities("master"), **job.identities("worker")}
    operator.kill()
    operator.start()
    until_condition(job, "Running")
    assert {**job.identities("master"), **job.identities("worker")} == seen
    assert sorted(job.identities("worker")) == ["twice-worker-0", "twice-worker-1", "twice-worker-2"]
    reasons = told(job)
    assert reasons.count("MasterCreated") == 1
    assert "MasterLost" not in reasons


def test_a_second_operator_waits_and_takes_over(
    start: Start, cluster: Cluster, operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lease = ["--lease-namespace", NAMESPACE, "--lease-seconds", "4"]
    second = OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("second"), lease)
    second.start(wait=False)
    try:
        job = start("handed", ENDS)
        assert "Complete" in job.until_ended()
        assert "leads" not in second.log
        assert operator.stop() == 0
        second.wait_until_it_leads(20)
        assert "Complete" in start("after", ENDS).until_ended()
    finally:
        second.stop()


def test_a_lost_master_is_counted_and_made_anew(start: Start) -> None:
    job = start("lost")
    until_running(job, 2)
    first = job.pods("master")[0]["metadata"]["uid"]
    job.kubectl("delete", "pod", "lost-master", "--grace-period=1", "--wait=false")

    def made_anew() -> bool:
        found = [pod["metadata"]["uid"] for pod in job.pods("master")]
        return bool(found) and found != [first]

    eventually(made_anew, STEP_S, "another master")
    eventually(lambda: job.seen()["status"].get("masterRestarts") == 1, STEP_S, "the count of masters")
    assert "MasterLost" in told(job)
