"""The nouns: quantities, names, transitions, and a job spec that says what is wrong with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from elastane.model.cluster_documents import ScaleType, load_job_resource, load_scale_plan
from elastane.model.errors import IllegalTransition, InvalidInput, InvalidJobSpec
from elastane.model.ids import JobName, job_name
from elastane.model.job_spec import DistributionStrategy, ScalerKind, load_job
from elastane.model.node import LEGAL_TRANSITIONS, Node, NodeResource, NodeStatus, NodeType
from elastane.model.quantity import Memory
from tests.builders import job_document, make_dataset


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("256Mi", 256 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("64Ki", 65536),
        ("512", 512 * 2**20),
        (512, 512 * 2**20),
        ("10k", 10_000),
        ("1.5G", 1_500_000_000),
        ("0.123456Mi", 129452),
    ],
)
def test_memory_is_read_in_units_or_as_mib(text: str | int, amount: int) -> None:
    assert Memory.parse(text) == Memory(amount)
    assert Memory.parse(str(Memory.parse(text))) == Memory(amount)


@pytest.mark.parametrize(
    "text", ["256Q", "", "-1Mi", "Mi", "1e3", "512.0", "٣Gi", "9" * 400 + "Gi", "0", 0, -5, True, None, 1.5]
)
def test_what_is_no_amount_of_memory_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput, match="is not an amount of memory"):
        Memory.parse(text)


@pytest.mark.parametrize("name", ["ctr", "a", "job-7", "0"])
def test_job_names_are_those_of_kubernetes(name: str) -> None:
    assert job_name(name) == name


@pytest.mark.parametrize("name", ["", "CTR", "a_b", "-a", "a-", "a" * 51, "a/b", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a job name"):
        job_name(name)


@pytest.mark.parametrize("before", NodeStatus)
@pytest.mark.parametrize("after", NodeStatus)
def test_a_node_moves_only_along_legal_transitions(before: NodeStatus, after: NodeStatus) -> None:
    node = Node(JobName("job"), NodeType.WORKER, 0, 0, status=before)
    if after in LEGAL_TRANSITIONS[before]:
        assert node.moved_to(after).status is after
    else:
        with pytest.raises(IllegalTransition, match=f"job-worker-0: {after} cannot follow {before}"):
            node.moved_to(after)


def test_final_statuses_lead_nowhere() -> None:
    assert [status for status in NodeStatus if status.final] == ["succeeded", "failed", "deleted"]


def test_a_job_spec_is_read_and_written_back_to_an_equal_one() -> None:
    document = job_document(replicas=3, maxReplicas=4, resource={"cpu": 2, "memory": 4096, "gpu": 1})
    document["spec"]["distributionStrategy"] = "ring-allreduce"
    job = load_job(document)
    assert job.name == "ctr"
    assert job.spec.distribution_strategy is DistributionStrategy.RING_ALLREDUCE
    assert job.spec.worker.resource.node_resource() == NodeResource(cpu=2, memory=Memory.mib(4096), gpu_num=1)
    assert load_job(job.document()) == job


def test_keys_of_the_pod_template_pass_through() -> None:
    document = job_document()
    document["spec"]["worker"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    assert load_job(document).document()["spec"]["worker"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}


def test_what_an_api_server_adds_is_read_over() -> None:
    document = job_document()
    document["metadata"] |= {"namespace": "training", "uid": "7c2f", "generation": 3, "managedFields": [{}]}
    document["status"] = {"phase": "Running", "conditions": []}
    assert load_job(document) == load_job(job_document())


@pytest.mark.parametrize(("given", "cores"), [(2, 2.0), (0.5, 0.5), ("0.5", 0.5), ("500m", 0.5), ("2", 2.0)])
def test_cores_are_read_as_kubernetes_writes_them(given: Any, cores: float) -> None:
    job = load_job(job_document(resource={"cpu": given}))
    assert job.spec.worker.resource.cpu == cores
    assert load_job(job.document()) == job


def test_each_role_has_a_template_of_its_own_if_it_wants() -> None:
    document = job_document()
    template = {"metadata": {"labels": {"team": "ctr"}}, "spec": {"containers": [{"image": "train:2"}]}}
    document["spec"] |= {
        "distributionStrategy": "parameter_server",
        "parameterServer": {"restartCount": 1, "template": template},
        "evaluator": {"restartCount": 2, "template": template},
        "master": {"restartCount": 4, "template": template, "resource": {"memory": 512}},
    }
    job = load_job(document)
    assert job.spec.ps is not None
    assert job.spec.ps.template is not None
    assert job.spec.ps.template.metadata == {"labels": {"team": "ctr"}}
    assert job.spec.ps.template.node.command == ()
    assert job.spec.master_restarts == 4
    assert load_job(job.document()) == job
    assert job.document()["spec"]["evaluator"]["template"] == template


def test_settings_of_kubernetes_are_checked_and_kept() -> None:
    document = job_document()
    settings = {
        "scaler": "elastic-job",
        "suspend": True,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 0,
        "backoffLimit": 2,
        "priorityClassName": "high",
        "schedulerName": "volcano",
    }
    document["spec"] |= settings
    job = load_job(document)
    assert job.spec.scaler is ScalerKind.ELASTIC_JOB
    assert job.spec.master_restarts == 2
    assert job.document()["spec"] | settings == job.document()["spec"]


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("spec.wroker", 1, "spec.wroker: unknown key; allowed: distributionStrategy, worker, heartbeatTimeoutSeconds"),
        ("spec.worker.min_replicas", 1, "spec.worker.min_replicas: unknown key; allowed: minReplicas, maxReplicas"),
        ("spec.worker.resource.memory", "256Q", 'spec.worker.resource.memory: "256Q" is not an amount of memory'),
        (
            "spec.worker.resource.cpu",
            "2 cores",
            'spec.worker.resource.cpu: "2 cores" is not a number of cores; write a',
        ),
        ("spec.worker.resource.cpu", True, "spec.worker.resource.cpu: True is not a number of cores"),
        ("spec.worker.resource.cpu", "0m", 'spec.worker.resource.cpu: "0m" cannot be used; input should be greater'),
        ("spec.ps", {}, "spec.ps: unknown key; allowed: distributionStrategy, worker"),
        ("spec.worker.minReplicas", 20_000, 'spec.worker.minReplicas: "20000" cannot be used'),
        ("spec.distributionStrategy", "mesh", 'spec.distributionStrategy: "mesh" is not known; allowed: \'parameter_'),
        ("metadata.name", "A", 'metadata.name: "A" is not a job name'),
        ("kind", "Job", "kind: \"Job\" is not known; allowed: 'ElasticJob'"),
        ("spec.worker.template.spec.containers", [], "spec.worker.template.spec.containers: at least one is needed"),
        ("spec.worker.template.spec.containers", [{}], "spec.worker.template.spec.containers[0].command: missing"),
        ("spec.taskTimeoutSeconds", float("nan"), "spec.taskTimeoutSeconds: float cannot be used"),
        ("spec.taskTimeoutSeconds", 0, 'spec.taskTimeoutSeconds: "0" cannot be used; input should be greater than 0'),
        ("spec", None, "spec: NoneType cannot be used"),
    ],
)
def test_what_is_wrong_with_a_job_spec_is_one_line(path: str, value: Any, line: str) -> None:
    document: dict[str, Any] = copy.deepcopy(job_document())
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    with pytest.raises(InvalidJobSpec) as caught:
        load_job(document)
    (problem,) = caught.value.problems
    assert problem.startswith(line)
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"minReplicas": 5, "maxReplicas": 4}, "spec.worker.minReplicas: 5 is above maxReplicas 4"),
        ({"replicas": 5, "maxReplicas": 4}, "spec.worker.replicas: 5 is above maxReplicas 4"),
        ({"replicas": 1, "minReplicas": 2}, "spec.worker.replicas: 1 is below minReplicas 2"),
    ],
)
def test_sizes_that_contradict_each_other_are_named(sizes: dict[str, int], line: str) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        load_job(job_document(**sizes))
    assert caught.value.problems == (line,)


def test_backups_need_two_servers() -> None:
    document = job_document()
    document["spec"] |= {"distributionStrategy": "parameter_server", "parameterServer": {"backups": True}}
    with pytest.raises(InvalidJobSpec, match=r"spec.parameterServer.replicas: 1 is below 2, which backups need"):
        load_job(document)
    document["spec"]["parameterServer"]["replicas"] = 2
    servers = load_job(document).spec.ps
    assert servers is not None
    assert servers.least == 2


def _scale_plan(**spec: Any) -> dict[str, Any]:
    labels = {"elasticjob-name": "ctr", "scale-type": "auto"}
    return {"metadata": {"name": "ctr-x7", "labels": labels}, "spec": {"ownerJob": "ctr", **spec}}


def test_a_scale_plan_names_roles_and_nodes() -> None:
    change = {"replicas": 2, "resource": {"cpu": "0.5", "memory": "256Mi"}}
    pod = {"name": "ctr-ps-3", "type": "ps", "id": 3, "slot": 1, "restarts": 2, "resource": {"memory": 512}}
    plan = load_scale_plan(
        _scale_plan(replicaResourceSpecs={"worker": change}, createPods=[pod], removePods=["ctr-ps-1"])
    )
    assert plan.job == "ctr"
    assert plan.scale_type is ScaleType.AUTO
    assert {role: (each.replicas, each.resource.cpu) for role, each in plan.groups.items()} == {"worker": (2, 0.5)}
    resource = NodeResource(memory=Memory.mib(512))
    assert plan.launch_nodes == (Node(JobName("ctr"), NodeType.PS, 3, 1, resource=resource, restarts=2),)
    assert plan.remove_nodes == ("ctr-ps-1",)
    assert load_scale_plan(plan.document()) == plan


@pytest.mark.parametrize(
    ("labels", "spec", "line"),
    [
        ({"scale-type": "some"}, {}, "metadata.labels.scale-type: \"some\" is not known; allowed: 'auto' or 'manual'"),
        ({"elasticjob-name": "x"}, {}, 'metadata.labels.elasticjob-name: "x" is not spec.ownerJob "ctr"'),
        (
            {"scale-type": "manual"},
            {"createPods": [{"name": "ctr-ps-0", "type": "ps", "id": 0, "slot": 0}]},
            "spec.createPods: only the job's master makes up pods; say replicaResourceSpecs",
        ),
        (
            {},
            {"createPods": [{"name": "ctr-ps-0", "type": "ps", "id": 1, "slot": 0}]},
            'spec.createPods[0].name: "ctr-ps-0" is not the node\'s name, "ctr-ps-1"',
        ),
        (
            {},
            {"createPods": [{"name": "ctr-ps-0", "type": "ps", "id": 0, "slot": 0, "rank": 0}]},
            "spec.createPods[0].rank: unknown key; allowed: name, type, id, slot, restarts, relaunches, resource",
        ),
        ({}, {"replicaResourceSpecs": {"wroker": {}}}, "spec.replicaResourceSpecs.wroker: unknown key; allowed: ps,"),
    ],
)
def test_what_is_wrong_with_a_scale_plan_is_one_line(labels: dict[str, str], spec: Any, line: str) -> None:
    document = _scale_plan(**spec)
    document["metadata"]["labels"] |= labels
    with pytest.raises(InvalidJobSpec) as caught:
        load_scale_plan(document)
    (problem,) = caught.value.problems
    assert problem.startswith(line)


def test_a_job_resource_names_roles_and_changes() -> None:
    change = {"replicas": 4, "resource": {"cpu": 4, "memory": 4096, "disk": 8192, "gpu": 1}}
    updation = {"name": "ctr-ps-0", "resource": {"cpu": 8, "memory": 8192}}
    spec = {"selector": {"name": "ctr"}, "parameter_server": change, "resource_updation": [updation]}
    resource = load_job_resource({"metadata": {"name": "r", "uid": "1"}, "spec": spec, "status": {}})
    assert resource.job == "ctr"
    assert list(resource.groups) == [NodeType.PS]
    assert resource.groups[NodeType.PS].resource.disk == Memory.mib(8192)
    (changed,) = resource.spec.resource_updation
    assert (changed.name, changed.resource.memory, changed.resource.gpu) == ("ctr-ps-0", Memory.mib(8192), None)
    assert load_job_resource(resource.document()) == resource
    spec["parameterServer"] = spec.pop("parameter_server")
    with pytest.raises(InvalidJobSpec, match=r"spec.parameterServer: unknown key; allowed: selector"):
        load_job_resource({"metadata": {"name": "r"}, "spec": spec})


def test_a_document_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InvalidJobSpec, match="document: list cannot be used"):
        load_job([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard_size": 0},
        {"epochs": 0},
        {"epochs": 2**40},
        {"size": -1},
        {"seed": 2**70},
        {"indices": (1,)},
        {"size": None, "shuffle": True},
        {"name": ""},
    ],
)
def test_a_data_set_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^data set"):
        make_dataset(**wrong)
