"""What pods are made of: a node's and a master's, from a job's templates."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from elastane.master.pod import MOST_MESSAGE_BYTES, termination_message, with_copies
from elastane.model.cluster_documents import load_scale_plan
from elastane.model.errors import InvalidInput, PlatformError
from elastane.model.ids import JobName
from elastane.model.job_spec import ElasticJob, load_job
from elastane.model.node import Node, NodeResource, NodeType
from elastane.model.plan import ScalePlan
from elastane.model.quantity import Memory
from elastane.platform.kubernetes.connection import (
    AlreadyExists,
    ApiRefused,
    ApiUnreachable,
    HistoryGone,
    NotFound,
    QuotaExceeded,
    status_error,
)
from elastane.platform.kubernetes.elastic_job_scaler import MOST_PODS, _parts, scale_plan_manifest
from elastane.platform.kubernetes.pods import JobOwner, Manifest, interpreter, master_pod, node_pod, nodes_selector

OWNER = JobOwner("ctr", "team", "a-uid", "10.0.0.7:7070")
IMAGE = "registry/train:1"


def template(command: list[str] | None = None, **more: Any) -> dict[str, Any]:
    container = {"image": IMAGE, **({} if command is None else {"command": command})}
    return {"spec": {"containers": [{**container, **more}]}}


def make(worker: dict[str, Any] | None = None, **spec: Any) -> ElasticJob:
    worker = worker or template(["/opt/python3.11", "train.py"], args=["--lr=1"])
    return load_job({"metadata": {"name": "ctr"}, "spec": {"worker": {"template": worker}, **spec}})


def make_ps(**server: Any) -> ElasticJob:
    return make(distributionStrategy="parameter_server", parameterServer=server)


def node(role: NodeType = NodeType.WORKER, number: int = 3, **more: Any) -> Node:
    return Node(JobName("ctr"), role, number, 1, **more)


def container(pod: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def variables(pod: Manifest, index: int = 0) -> dict[str, Any]:
    env = pod["spec"]["containers"][index]["env"]
    assert len({variable["name"] for variable in env}) == len(env)
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in env}


def test_a_nodes_pod_says_whose_it_is() -> None:
    metadata = node_pod(make(), node(restarts=2, relaunches=3), OWNER)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("ctr-worker-3", "team")
    assert metadata["labels"] == {
        "elastic.iml.github.io/job": "ctr",
        "elastic.iml.github.io/role": "worker",
        "elastic.iml.github.io/index": "3",
    }
    annotations = {"slot": "1", "restarts": "2", "relaunches": "3"}
    assert metadata["annotations"] == {f"elastic.iml.github.io/{key}": value for key, value in annotations.items()}
    assert metadata["ownerReferences"] == [OWNER.reference]
    assert OWNER.reference["controller"]
    assert OWNER.owns({"metadata": metadata})
    assert not JobOwner("ctr", "team", "another", "").owns({"metadata": metadata})
    assert nodes_selector("ctr") == "elastic.iml.github.io/job=ctr,elastic.iml.github.io/role!=master"


def test_every_container_of_a_node_is_told_where_the_master_is() -> None:
    given = template(["python", "t.py"], env=[{"name": "A", "value": "$(ELASTANE_NODE)"}])
    given["spec"]["containers"].append({"name": "beside", "image": "proxy"})
    pod = node_pod(make(given), node(), OWNER)
    expected = {
        "ELASTANE_MASTER": "10.0.0.7:7070",
        "ELASTANE_TOKEN": {"secretKeyRef": {"name": "ctr-master", "key": "token"}},
        "ELASTANE_CERTIFICATE": {"secretKeyRef": {"name": "ctr-master", "key": "tls.crt"}},
        "ELASTANE_NODE": "ctr-worker-3",
        "ELASTANE_ROLE": "worker",
        "PYTHONUNBUFFERED": "1",
    }
    assert variables(pod) == {**expected, "A": "$(ELASTANE_NODE)"}
    assert list(variables(pod))[-1] == "A", "a variable refers only to those before it"
    assert variables(pod, 1) == expected
    assert all(one["terminationMessagePolicy"] == "FallbackToLogsOnError" for one in pod["spec"]["containers"])


def test_a_template_cannot_pass_for_another_node_but_may_buffer() -> None:
    env = [{"name": "ELASTANE_NODE", "value": "ctr-worker-0"}, {"name": "PYTHONUNBUFFERED", "value": ""}]
    found = variables(node_pod(make(template(["t"], env=env)), node(), OWNER))
    assert (found["ELASTANE_NODE"], found["PYTHONUNBUFFERED"]) == ("ctr-worker-3", "")


def test_what_a_template_says_stays_and_is_not_changed_by_making_pods() -> None:
    given = template(["t"], resources={"limits": {"cpu": "1", "x/y": "2"}}, terminationMessagePolicy="File")
    given["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    given["spec"] |= {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "low", "automountServiceAccountToken": True}
    before = copy.deepcopy(given)
    job = make(given, priorityClassName="high", schedulerName="volcano")
    pod = node_pod(job, node(resource=NodeResource(cpu=2, memory=Memory.mib(256))), OWNER)
    assert node_pod(job, node(), OWNER)["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1", "x/y": "2"}}
    assert given == before
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "b"
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert (pod["spec"]["priorityClassName"], pod["spec"]["schedulerName"]) == ("low", "volcano")
    assert pod["spec"]["automountServiceAccountToken"] is True
    assert container(pod)["terminationMessagePolicy"] == "File"
    assert (container(pod)["name"], container(pod)["image"], container(pod)["command"]) == ("main", IMAGE, ["t"])


def test_a_nodes_resource_is_its_requests_and_its_limits() -> None:
    resource = NodeResource(cpu=0.5, memory=Memory(10**6), disk=Memory.mib(1024), gpu_num=2)
    given = template(["t"], resources={"limits": {"memory": "1Gi", "x/y": "1"}, "requests": {"nvidia.com/gpu": "1"}})
    pod = node_pod(make(given), node(resource=resource), OWNER)
    amounts = {"cpu": "500m", "memory": "1000000", "ephemeral-storage": "1Gi"}
    assert container(pod)["resources"] == {
        "limits": {**amounts, "x/y": "1", "nvidia.com/gpu": "2"},
        "requests": amounts,
    }


@pytest.mark.parametrize(("templates", "expected"), [(None, 31), (10, 31), (60, 60)])
def test_a_node_has_the_jobs_grace_period_or_the_longer_one_of_its_template(
    templates: int | None, expected: int
) -> None:
    given = template(["t"])
    if templates is not None:
        given["spec"]["terminationGracePeriodSeconds"] = templates
    pod = node_pod(make(given, terminationGracePeriodSeconds=30.5), node(), OWNER)
    assert pod["spec"]["terminationGracePeriodSeconds"] == expected
    assert pod["spec"]["restartPolicy"] == "Never"


def test_nodes_get_no_token_of_the_api_unless_their_template_names_an_account() -> None:
    given = template(["t"])
    assert node_pod(make(given), node(), OWNER)["spec"]["automountServiceAccountToken"] is False
    given["spec"]["serviceAccountName"] = "reader"
    assert "automountServiceAccountToken" not in node_pod(make(given), node(), OWNER)["spec"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "t.py"], "python"),
        (["/venv/bin/python3.11"], "/venv/bin/python3.11"),
        (["bash", "-c", "python t.py"], "python3"),
        ([], "python3"),
    ],
)
def test_the_interpreter_is_that_of_the_template(command: list[str], expected: str) -> None:
    assert interpreter(command) == expected


def test_a_parameter_server_runs_elastanes_own_from_the_workers_template() -> None:
    found = container(node_pod(make_ps(), node(NodeType.PS), OWNER))
    assert found["command"] == ["/opt/python3.11", "-P", "-m", "elastane.ps"]
    assert "args" not in found
    assert found["image"] == IMAGE


def test_a_parameter_server_runs_what_its_own_template_says() -> None:
    job = make_ps(template=template(["python", "serve.py"], args=["--x"]))
    pod = node_pod(job, node(NodeType.PS), OWNER)
    assert (container(pod)["command"], container(pod)["args"]) == (["python", "serve.py"], ["--x"])
    assert variables(pod)["ELASTANE_ROLE"] == "ps"
    without = make_ps(template=template())
    assert container(node_pod(without, node(NodeType.PS), OWNER))["command"] == ["python3", "-P", "-m", "elastane.ps"]


SCRAPED = {"prometheus.io/scrape": "true", "prometheus.io/port": "7071", "prometheus.io/path": "/metrics"}


def test_masters_and_parameter_servers_serve_metrics_and_other_nodes_do_not() -> None:
    for pod in (master_pod(make_ps(), OWNER), node_pod(make_ps(), node(NodeType.PS), OWNER)):
        assert container(pod)["ports"] == [{"name": "metrics", "containerPort": 7071}]
        assert variables(pod)["ELASTANE_METRICS"] == "0.0.0.0:7071"
        assert SCRAPED.items() <= pod["metadata"]["annotations"].items()
    worker = node_pod(make_ps(), node(), OWNER)
    assert "ports" not in container(worker)
    assert "ELASTANE_METRICS" not in variables(worker)
    assert not SCRAPED.keys() & worker["metadata"]["annotations"].keys()


def test_a_template_may_have_a_port_for_metrics_and_want_nobody_to_look() -> None:
    ports = [{"name": "web", "containerPort": 80}, {"name": "metrics", "containerPort": 9000}]
    own = template(["python"], ports=ports, env=[{"name": "ELASTANE_METRICS", "value": "1.2.3.4:5"}])
    own["metadata"] = {"annotations": {"prometheus.io/scrape": "false", "prometheus.io/port": "80"}}
    for pod in (
        node_pod(make_ps(template=own), node(NodeType.PS), OWNER),
        master_pod(make(master={"template": own}), OWNER),
    ):
        assert container(pod)["ports"] == ports
        assert variables(pod)["ELASTANE_METRICS"] == "0.0.0.0:9000"
        wanted = {**SCRAPED, "prometheus.io/scrape": "false", "prometheus.io/port": "9000"}
        assert wanted.items() <= pod["metadata"]["annotations"].items()
    assert own["metadata"]["annotations"]["prometheus.io/port"] == "80"


def test_a_master_from_the_workers_template_says_its_own_port() -> None:
    worker = template(["python"], ports=[{"name": "metrics", "containerPort": 9000}])
    worker["metadata"] = {"annotations": {"prometheus.io/port": "9000"}}
    pod = master_pod(make(worker), OWNER)
    assert container(pod)["ports"] == [{"name": "metrics", "containerPort": 7071}]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "7071"


def test_an_evaluator_runs_what_the_workers_run_or_what_its_own_template_says() -> None:
    pod = node_pod(make(evaluator={}), node(NodeType.EVALUATOR, 0), OWNER)
    assert pod["metadata"]["name"] == "ctr-evaluator-0"
    assert container(pod)["command"] == ["/opt/python3.11", "train.py"]
    own = make(evaluator={"template": template(["python", "evaluate.py"])})
    assert container(node_pod(own, node(NodeType.EVALUATOR, 0), OWNER))["command"] == ["python", "evaluate.py"]


def test_the_masters_pod_comes_back_with_its_journal_until_the_job_has_ended() -> None:
    pod = master_pod(make(priorityClassName="high"), OWNER)
    spec = pod["spec"]
    assert pod["metadata"]["name"] == "ctr-master"
    assert pod["metadata"]["labels"]["elastic.iml.github.io/role"] == "master"
    assert (spec["restartPolicy"], spec["serviceAccountName"], spec["priorityClassName"]) == (
        "OnFailure",
        "ctr-master",
        "high",
    )
    assert container(pod)["command"] == ["/opt/python3.11", "-P", "-m", "elastane.master.pod"]
    assert variables(pod) == {
        "ELASTANE_MASTER": "10.0.0.7:7070",
        "ELASTANE_JOB_UID": "a-uid",
        "ELASTANE_NAMESPACE": "team",
        "ELASTANE_STATE_DIR": "/var/lib/elastane",
        "ELASTANE_METRICS": "0.0.0.0:7071",
        "PYTHONUNBUFFERED": "1",
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container(pod)["volumeMounts"]}
    assert volumes[mounts["/etc/elastane"]["name"]]["secret"] == {"secretName": "ctr-master"}
    assert mounts["/etc/elastane"]["readOnly"]
    assert volumes[mounts["/var/lib/elastane"]["name"]]["emptyDir"] == {}
    assert container(pod)["readinessProbe"]["tcpSocket"] == {"port": 7070}


def test_a_master_from_the_workers_template_takes_no_gpu_and_waits_for_nothing() -> None:
    given = template(["python", "t.py"], args=["x"], resources={"limits": {"nvidia.com/gpu": "8"}}, livenessProbe={})
    given["spec"]["containers"].append({"name": "beside", "image": "proxy"})
    given["spec"] |= {"initContainers": [{"name": "fetch"}], "volumes": [{"name": "v"}], "nodeSelector": {"a": "b"}}
    pod = master_pod(make(given), OWNER)
    assert [one["name"] for one in pod["spec"]["containers"]] == ["main"]
    assert not {"resources", "args", "livenessProbe"} & set(container(pod))
    assert "initContainers" not in pod["spec"]
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    assert pod["spec"]["volumes"][0] == {"name": "v"}


def test_a_master_has_what_its_own_template_and_resource_say() -> None:
    own = {"template": template(["python9"], resources={"limits": {"cpu": "1"}}), "resource": {"memory": "1Gi"}}
    own["template"]["spec"]["containers"].append({"name": "beside", "image": "proxy"})
    pod = master_pod(make(master=own), OWNER)
    assert container(pod)["command"][0] == "python9"
    assert container(pod)["resources"] == {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    assert len(pod["spec"]["containers"]) == 2


def test_a_master_of_guests_needs_a_template_of_its_own() -> None:
    job = load_job({"metadata": {"name": "ctr"}, "spec": {"worker": {"guests": True}}})
    with pytest.raises(InvalidInput, match="master"):
        master_pod(job, OWNER)


def test_a_plan_becomes_a_document_that_the_operator_reads_back_to_the_same_plan() -> None:
    resource = NodeResource(cpu=0.5, memory=Memory.mib(256), disk=Memory.mib(1), gpu_num=1)
    plan = ScalePlan((node(restarts=2, resource=resource), node(NodeType.PS, 0)), (node(number=1),), ("10.0.0.1:5",))
    manifest = scale_plan_manifest(plan, OWNER, at_once=True)
    assert manifest["metadata"]["generateName"] == "ctr-"
    assert manifest["metadata"]["labels"] == {"elasticjob-name": "ctr", "scale-type": "auto"}
    assert manifest["metadata"]["ownerReferences"] == [OWNER.reference]
    manifest["metadata"]["name"] = "ctr-x"  # as the API server would
    document = load_scale_plan(manifest)
    assert document.launch_nodes == plan.launch_nodes
    assert document.remove_nodes == ("ctr-worker-1",)
    assert document.spec.remove_at_once
    assert document.spec.ps_hosts == ("10.0.0.1:5",)


def test_a_huge_plan_is_written_in_parts_that_are_the_plan() -> None:
    nodes = tuple(node(number=number) for number in range(2 * MOST_PODS + 1))
    plan = ScalePlan(nodes, nodes[:3], ("a",))
    parts = list(_parts(plan))
    assert max(len(part.launch_nodes) for part in parts) == MOST_PODS
    whole = ScalePlan()
    for part in parts:
        whole = whole.joined(part)
    assert whole == plan
    assert list(_parts(ScalePlan(ps_addrs=("a",)))) == [ScalePlan(ps_addrs=("a",))]


def test_a_job_keeps_copies_of_its_journal_unless_it_says_otherwise() -> None:
    assert with_copies(make()).spec.journal_copies == 2
    assert with_copies(make(journalCopies=0)).spec.journal_copies == 0
    assert load_job(with_copies(make()).document()).spec.journal_copies == 2


def test_a_termination_message_fits_and_has_the_end_of_the_error() -> None:
    status = {"job": "ctr", "state": "failed", "steps": 7, "node": [{"name": "x" * 100}] * 100, "reason": "y" * 9000}
    record = {"end": "failed", "reason": "r" * 9000, "error": "ä" * 9000 + "ValueError", "status": status}
    encoded = termination_message(record)
    assert len(encoded) <= MOST_MESSAGE_BYTES
    message = json.loads(encoded)
    assert message["end"] == "failed"
    assert message["error"].endswith("ValueError")
    assert message["status"]["steps"] == 7


@pytest.mark.parametrize(
    ("code", "reason", "message", "expected"),
    [
        (403, "Forbidden", 'pods "a" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5', QuotaExceeded),
        (403, "Forbidden", 'pods is forbidden: User "a" cannot create resource "pods"', ApiUnreachable),
        (403, "Forbidden", 'pods "a" is forbidden: maximum cpu usage per Container is 1, but limit is 2', ApiRefused),
        (422, "Invalid", 'Pod "a" is invalid: spec.containers: Required value', ApiRefused),
        (400, "BadRequest", "Pod in version v1 cannot be handled as a Pod", ApiRefused),
        (409, "AlreadyExists", 'pods "a" already exists', AlreadyExists),
        (409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q"', ApiUnreachable),
        (404, "NotFound", 'pods "a" not found', NotFound),
        (410, "Expired", "too old resource version: 1 (9)", HistoryGone),
        (410, "Gone", "", HistoryGone),
        (401, "Unauthorized", "Unauthorized", ApiUnreachable),
        (429, "TooManyRequests", "", ApiUnreachable),
        (500, "InternalError", "failed calling webhook", ApiUnreachable),
        (503, "", "", ApiUnreachable),
    ],
)
def test_what_the_api_server_answers_is_told_by_what_follows(
    code: int, reason: str, message: str, expected: type[PlatformError]
) -> None:
    error = status_error(code, {"reason": reason, "message": message})
    assert type(error) is expected
    assert "\n" not in str(error)
    assert str(error)


def test_a_master_keeps_its_state_where_its_template_has_a_volume_for_it() -> None:
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/var/lib/elastane"}]}
    worker = template(["python", "train.py"], **shared)
    worker["spec"]["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    pod = master_pod(make(worker), OWNER)
    mounts = [mount["name"] for mount in container(pod)["volumeMounts"] if mount["mountPath"] == "/var/lib/elastane"]
    assert mounts == ["shared"]
    assert not any("emptyDir" in volume for volume in pod["spec"]["volumes"])
