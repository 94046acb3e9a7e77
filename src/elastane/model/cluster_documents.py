"""The documents that change a running job on Kubernetes: JobResource and ScalePlan.

Both say how many nodes of a role there are to be and what each may use. A JobResource also gives single nodes other
resources; a ScalePlan that the job's own master wrote names each pod to create and to remove.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from elastane.model.documents import (
    CoresField,
    Document,
    Flag,
    JobNameField,
    MemoryField,
    Metadata,
    Resource,
    ResourceSpec,
    field_error,
    load,
)
from elastane.model.ids import JobName, NodeName
from elastane.model.job_spec import API_VERSION
from elastane.model.node import Node, NodeType

JOB_RESOURCE_API_VERSION: Literal["elastic.easydl.org/v1alpha1"] = "elastic.easydl.org/v1alpha1"
JOB_LABEL = "elasticjob-name"
"""The label of a ScalePlan that has the name of its job."""
SCALE_TYPE_LABEL = "scale-type"
"""The label of a ScalePlan that says who wrote it."""

Number = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]


class ScaleType(enum.StrEnum):
    """Who wrote a ScalePlan: the job's master, or anybody else."""

    AUTO = "auto"
    MANUAL = "manual"


class ResourceChange(Document):
    """What a node may use from now on; what is absent stays as it is."""

    cpu: CoresField | None = None
    """Cores: 2, 0.5, "0.5" or "500m"."""
    memory: MemoryField | None = None
    """Memory: a quantity such as 256Mi or 1.5Gi; a plain integer is MiB."""
    disk: MemoryField | None = None
    """Space on the node's own disk, written as memory is."""
    gpu: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    """How many GPUs."""


class GroupChange(Document):
    """What the nodes of a role are to be; what is absent stays as it is."""

    replicas: Annotated[int, Field(strict=True, ge=0, le=10_000)] | None = None
    """How many; the bounds of the role in the job hold."""
    resource: ResourceChange = ResourceChange()
    """What each that is launched from now on may use."""


class JobSelector(Document):
    """The job that is meant."""

    name: JobNameField
    """The name of an ElasticJob in the same namespace."""


class NodeChange(Document):
    """Other resources for one node."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The node's name, such as `JOB-ps-0`."""
    resource: ResourceChange
    """What its replacement may use. It is launched first; the node goes when the replacement runs."""


class JobResourceSpec(Document):
    """What a job is to have. It is carried out when it is created, and again whenever it changes."""

    selector: JobSelector
    """The job that is meant."""
    parameter_server: Annotated[GroupChange | None, Field(alias="parameter_server")] = None
    """The parameter servers."""
    worker: GroupChange | None = None
    """The workers."""
    evaluator: GroupChange | None = None
    """The nodes that evaluate and do not train."""
    resource_updation: Annotated[tuple[NodeChange, ...], Field(alias="resource_updation")] = ()
    """Single nodes that are to have other resources."""


class JobResource(Resource):
    """What the nodes of a job are to be: how many of each role, what each may use, and what single ones may."""

    api_version: Literal["elastic.easydl.org/v1alpha1"] = JOB_RESOURCE_API_VERSION
    kind: Literal["JobResource"] = "JobResource"
    metadata: Metadata
    spec: JobResourceSpec

    @property
    def job(self) -> JobName:
        """The job that is meant."""
        return self.spec.selector.name

    @property
    def groups(self) -> Mapping[NodeType, GroupChange]:
        """What the roles that are named are to be."""
        return _named(self.spec.parameter_server, self.spec.worker, self.spec.evaluator)


class ReplicaSpecs(Document):
    """What the roles are to be; those that are absent stay as they are."""

    ps: GroupChange | None = None
    """The parameter servers."""
    worker: GroupChange | None = None
    """The workers."""
    evaluator: GroupChange | None = None
    """The nodes that evaluate and do not train."""


class CreatedPod(Document):
    """One pod to create, as the job's master planned it."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The node's name: `JOB-TYPE-ID`."""
    type: Literal["ps", "worker", "evaluator"]
    """The node's role: ps, worker or evaluator."""
    id: Number
    """The node's number among those of its role, which no other ever has."""
    slot: Number
    """The place that the node takes; a replacement takes that of the node before it."""
    restarts: Number = 0
    """How many relaunches of the slot were counted before."""
    relaunches: Number = 0
    """How many there were in all."""
    resource: ResourceSpec = ResourceSpec()
    """What the node may use."""


class ScalePlanSpec(Document):
    """What is to be done, once."""

    owner_job: JobNameField
    """The name of the ElasticJob, in the same namespace."""
    replica_resource_specs: ReplicaSpecs = ReplicaSpecs()
    """What the nodes of the roles are to be. The job's master plans how."""
    create_pods: tuple[CreatedPod, ...] = ()
    """The pods to create. Only the job's master writes them."""
    remove_pods: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = ()
    """The names of the pods to remove. In a plan that is not the master's these nodes are drained, and not replaced."""
    remove_at_once: Flag = False
    """Whether removed pods are killed; else they have their grace period to leave."""
    ps_hosts: tuple[str, ...] = ()
    """The addresses of the parameter servers once the plan is carried out."""

    @model_validator(mode="after")
    def _names_fit(self) -> ScalePlanSpec:
        for index, pod in enumerate(self.create_pods):
            if pod.name != (name := f"{self.owner_job}-{pod.type}-{pod.id}"):
                raise field_error(f"createPods[{index}].name", f'"{pod.name}" is not the node\'s name, "{name}"')
        return self


class ScalePlanDocument(Resource):
    """One change of a job's nodes. It is carried out once; its status says what was done."""

    api_version: Literal["elastic.iml.github.io/v1alpha1"] = API_VERSION
    kind: Literal["ScalePlan"] = "ScalePlan"
    metadata: Metadata
    spec: ScalePlanSpec

    @model_validator(mode="after")
    def _labels_fit(self) -> ScalePlanDocument:
        known = [kind.value for kind in ScaleType]
        if (given := self.metadata.labels.get(SCALE_TYPE_LABEL, ScaleType.MANUAL)) not in known:
            allowed = " or ".join(f"'{kind}'" for kind in known)
            raise field_error(f"metadata.labels.{SCALE_TYPE_LABEL}", f'"{given}" is not known; allowed: {allowed}')
        if (job := self.metadata.labels.get(JOB_LABEL, self.job)) != self.job:
            raise field_error(f"metadata.labels.{JOB_LABEL}", f'"{job}" is not spec.ownerJob "{self.job}"')
        if self.scale_type is ScaleType.MANUAL and self.spec.create_pods:
            raise field_error("spec.createPods", "only the job's master makes up pods; say replicaResourceSpecs")
        return self

    @property
    def job(self) -> JobName:
        """The job that is meant."""
        return self.spec.owner_job

    @property
    def scale_type(self) -> ScaleType:
        """Who wrote it; without the label, not the job's master."""
        return ScaleType(self.metadata.labels.get(SCALE_TYPE_LABEL, ScaleType.MANUAL))

    @property
    def groups(self) -> Mapping[NodeType, GroupChange]:
        """What the roles that are named are to be."""
        specs = self.spec.replica_resource_specs
        return _named(specs.ps, specs.worker, specs.evaluator)

    @property
    def launch_nodes(self) -> tuple[Node, ...]:
        """The nodes whose pods are to be created."""
        return tuple(
            Node(
                self.job,
                NodeType(pod.type),
                pod.id,
                pod.slot,
                resource=pod.resource.node_resource(),
                restarts=pod.restarts,
                relaunches=pod.relaunches,
            )
            for pod in self.spec.create_pods
        )

    @property
    def remove_nodes(self) -> tuple[NodeName, ...]:
        """The nodes whose pods are to be removed."""
        return tuple(NodeName(name) for name in self.spec.remove_pods)


def load_job_resource(document: object) -> JobResource:
    """Validate a plain document; raise InvalidJobSpec with one line for each field at fault."""
    return load(JobResource, document)


def load_scale_plan(document: object) -> ScalePlanDocument:
    """Validate a plain document; raise InvalidJobSpec with one line for each field at fault."""
    return load(ScalePlanDocument, document)


def _named(
    ps: GroupChange | None, worker: GroupChange | None, evaluator: GroupChange | None
) -> Mapping[NodeType, GroupChange]:
    given = {NodeType.PS: ps, NodeType.WORKER: worker, NodeType.EVALUATOR: evaluator}
    return {role: change for role, change in given.items() if change is not None}
