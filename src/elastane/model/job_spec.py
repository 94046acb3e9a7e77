"""The ElasticJob document: the one description of a job, from a command line, a file or the Kubernetes API.

`load_job` turns a plain document into an `ElasticJob`, or raises InvalidJobSpec with one line for each field at fault:
the field's path, the value, and what is allowed.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from elastane.model.components import ComponentSet
from elastane.model.documents import (
    Document,
    Flag,
    JobMetadata,
    Resource,
    ResourceSpec,
    Seconds,
    field_error,
    load,
)
from elastane.model.ids import JobName
from elastane.model.pod_template import Container, PodTemplate

API_VERSION: Literal["elastic.iml.github.io/v1alpha1"] = "elastic.iml.github.io/v1alpha1"

KubernetesName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Restarts = Annotated[int, Field(strict=True, ge=0, le=10_000)]


class DistributionStrategy(enum.StrEnum):
    """How the workers' updates meet: through parameter servers, through all-reduce, or not at all."""

    PARAMETER_SERVER = "parameter_server"
    RING_ALLREDUCE = "ring-allreduce"
    NONE = "none"


class Critical(enum.StrEnum):
    """Which nodes of a role end the job when they fail for good."""

    NONE = "none"
    CHIEF = "chief"
    ALL = "all"


class ScalerKind(enum.StrEnum):
    """Who makes and removes the pods of a job's nodes on Kubernetes: its master, or the operator by ScalePlans."""

    POD = "pod"
    ELASTIC_JOB = "elastic-job"


class RoleSpec(Document):
    """One role of a job: how many nodes, what each may use, how often each is relaunched, and what it runs."""

    min_replicas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    """How few there may be."""
    max_replicas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 10_000
    """How many there may be."""
    replicas: Annotated[
        int, Field(strict=True, ge=1, le=10_000, default_factory=lambda known: known.get("min_replicas", 1))
    ]
    """How many to start with; `minReplicas` unless given."""
    restart_count: Restarts = 3
    """How often each node is relaunched after it failed by itself; losing its machine does not count."""
    critical: Critical = Critical.NONE
    """Which of them end the job when they fail for good: none, chief (the first worker) or all."""
    resource: ResourceSpec = ResourceSpec()
    """What each node may use."""
    guests: Flag = False
    """Whether these nodes are started by others, and come by themselves; then there is no template."""
    template: PodTemplate | None = None
    """What each node runs, and what its pod has. It is needed, except for guests."""

    @model_validator(mode="after")
    def _has_a_command(self) -> RoleSpec:
        if self.template is None and not self.guests:
            raise field_error("template", "missing")
        if self.template is not None and self.guests:
            raise field_error("template", "guests are started by others, so there is nothing to run")
        if self.template is not None and not self.template.node.command:
            raise field_error("template.spec.containers[0].command", "missing")
        return self

    @model_validator(mode="after")
    def _sizes_in_order(self) -> RoleSpec:
        _check_sizes(self.min_replicas, self.replicas, self.max_replicas)
        return self

    @property
    def command(self) -> tuple[str, ...]:
        """What each node runs; nothing for guests."""
        return () if self._container is None else self._container.command + self._container.args

    @property
    def env(self) -> dict[str, str]:
        return {} if self._container is None else {given.name: given.value for given in self._container.env}

    @property
    def _container(self) -> Container | None:
        return None if self.template is None else self.template.node


class EvaluatorSpec(Document):
    """The nodes that evaluate and do not train. They run what the workers run, unless they have a template."""

    replicas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    """How many."""
    restart_count: Restarts = 3
    """How often each node is relaunched after it failed by itself; losing its machine does not count."""
    resource: ResourceSpec = ResourceSpec()
    """What each node may use."""
    template: PodTemplate | None = None
    """What their pods have; the workers' template unless given. A local job runs what the workers run."""


class MasterSpec(Document):
    """The job's master on Kubernetes. It has no effect on a local job."""

    restart_count: Restarts | None = None
    """How often its pod is made anew before the job fails; `backoffLimit` unless given."""
    resource: ResourceSpec = ResourceSpec()
    """What it may use."""
    template: PodTemplate | None = None
    """What its pod has; the workers' template unless given. Its command says only which interpreter runs the master."""


class SavesSpec(Document):
    """Checkpoints of the parameter servers. A job that starts goes on from the newest whole one in the folder."""

    folder: Annotated[str, Field(min_length=1)]
    """Where they are saved; every server must see the same folder there."""
    every_seconds: Seconds | None = 600.0
    """How long until the next."""
    every_steps: Annotated[int, Field(strict=True, ge=1)] | None = None
    """How many steps until the next."""
    keep: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 3
    """How many stay."""


class ServerSpec(Document):
    """The parameter servers: how many, what each may use, and what holds for all of them."""

    min_replicas: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    """How few there may be."""
    max_replicas: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1000
    """How many there may be."""
    replicas: Annotated[
        int, Field(strict=True, ge=1, le=1000, default_factory=lambda known: known.get("min_replicas", 1))
    ]
    """How many to start with; `minReplicas` unless given."""
    restart_count: Restarts = 3
    """How often each node is relaunched after it failed by itself; losing its machine does not count."""
    resource: ResourceSpec = ResourceSpec()
    """What each node may use."""
    backups: Flag = False
    """Whether every bucket has a second copy on another server, which has an update before it is acknowledged."""
    buckets: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1024
    """The unit that a server owns and moves. It stays the same for the job, and for its checkpoints."""
    staleness: Annotated[int, Field(strict=True, ge=0, le=10**6)] | None = None
    """How many steps a worker may be ahead of the slowest; 0 is synchronous. Unless it is said, nobody waits."""
    checkpoint: SavesSpec | None = None
    """Whether, where and how often they are saved."""
    template: PodTemplate | None = None
    """What their pods have; the workers' template unless given. Without a command of its own it runs elastane's server.
    It has no effect on a local job."""

    @property
    def least(self) -> int:
        """How few there may be: a second copy needs a second server."""
        return max(self.min_replicas, 2 if self.backups else 1)

    @model_validator(mode="after")
    def _sizes_in_order(self) -> ServerSpec:
        _check_sizes(self.min_replicas, self.replicas, self.max_replicas)
        if self.replicas < self.least:
            raise field_error("replicas", f"{self.replicas} is below 2, which backups need: a row is on two servers")
        return self


class AutoscaleSpec(Document):
    """The job sizes itself, inside the bounds of its roles."""

    window_seconds: Annotated[float, Field(ge=2, le=3600, allow_inf_nan=False)] = 8.0
    """How long the job's work is observed for one window; three of them come before a change."""
    cpu: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """Cores that all nodes may have together; a node without a limit of its own counts as one."""
    brain: Annotated[str, Field(min_length=1)] | None = None
    """The address of the Brain that knows other jobs; without one the job knows itself alone."""
    brain_token_file: Annotated[str, Field(min_length=1)] | None = None
    """The file with the Brain's token."""


class ElasticJobSpec(Document):
    """What a job runs, on which nodes, and within which limits."""

    distribution_strategy: DistributionStrategy = DistributionStrategy.RING_ALLREDUCE
    """How the workers' updates meet: parameter_server, ring-allreduce, or none."""
    worker: RoleSpec
    """The nodes that train."""
    heartbeat_timeout_seconds: Seconds = 10.0
    """A worker that says nothing for so long is lost."""
    task_timeout_seconds: Seconds = 600.0
    """The least time without progress after which a worker's shards go to others; it grows with the longest task."""
    max_task_retries: Annotated[int, Field(strict=True, ge=1, le=1000)] = 3
    """A shard that fails on so many tries ends the job."""
    termination_grace_period_seconds: Seconds = 30.0
    """A node that is asked to leave is killed after so long."""
    journal_copies: Annotated[int, Field(strict=True, ge=0, le=100)] = 0
    """How many nodes keep the master's journal too, for a master whose disk goes with it."""
    check_replicas: Flag = False
    """Whether workers compare checksums of their training state whenever the world has changed."""
    evaluator: EvaluatorSpec | None = None
    """Without evaluators, a job that evaluates does it on its workers."""
    ps: Annotated[ServerSpec | None, Field(alias="parameterServer")] = None
    """The parameter servers of a job of that strategy."""
    autoscale: AutoscaleSpec | None = None
    """Whether the job sizes itself; without it people do."""
    master: MasterSpec = MasterSpec()
    """The master's pod. It has no effect on a local job."""
    scaler: ScalerKind = ScalerKind.POD
    """Who makes the nodes' pods on Kubernetes: pod, the master itself; elastic-job, the operator, by ScalePlans."""
    suspend: Flag = False
    """Whether the job has no pods for now. It has no effect on a local job."""
    active_deadline_seconds: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    """The job fails if it has not ended so long after it started. It has no effect on a local job."""
    ttl_seconds_after_finished: Annotated[int, Field(strict=True, ge=0, le=10**9)] | None = None
    """The ElasticJob is deleted so long after it ended. It has no effect on a local job."""
    backoff_limit: Restarts = 6
    """How often a master's pod is made anew before the job fails. It has no effect on a local job."""
    priority_class_name: KubernetesName | None = None
    """The priority class of all pods, unless their template says one. It has no effect on a local job."""
    scheduler_name: KubernetesName | None = None
    """The scheduler of all pods, unless their template says one. It has no effect on a local job."""
    pod_manager: Flag = True
    """Whether the master follows nodes, and launches those that are not left to others."""
    task_manager: Flag = True
    """Whether the master leases shards of the data."""
    training_service: Flag | None = None
    """Unless it is said, a job that launches nodes and has tasks has one; it is idle until a script evaluates."""
    task_fault_tolerance: Flag = True
    """Whether a lost worker's shards go to others as soon as it is known to be lost."""

    @property
    def components(self) -> ComponentSet:
        """What the job's master is to start. The rendezvous server comes with the all-reduce strategy."""
        return ComponentSet(
            pod_manager=self.pod_manager,
            task_manager=self.task_manager,
            rendezvous=self.distribution_strategy is DistributionStrategy.RING_ALLREDUCE,
            training_service=(
                self.launches_nodes and self.task_manager if self.training_service is None else self.training_service
            ),
            task_fault_tolerance=self.task_fault_tolerance,
        )

    @property
    def master_restarts(self) -> int:
        """How often a master's pod is made anew before the job fails."""
        return self.backoff_limit if self.master.restart_count is None else self.master.restart_count

    @property
    def launches_nodes(self) -> bool:
        """Whether the job's master launches its nodes; else others do."""
        return self.pod_manager and not self.worker.guests

    @model_validator(mode="after")
    def _components_go_together(self) -> ElasticJobSpec:
        if wrong := self.components.contradiction():
            raise field_error(wrong.field, wrong.reason)
        if self.autoscale is not None and not (self.launches_nodes and self.task_manager):
            raise field_error("autoscale", "a job sizes itself only if it launches its nodes and has tasks")
        if self.evaluator is not None and not self.components.training_service:
            raise field_error("evaluator", "without the training service there is nothing to evaluate")
        if not self.pod_manager and not self.worker.guests:
            raise field_error("worker", "without the pod manager nobody launches workers; say guests: true")
        return self

    @model_validator(mode="after")
    def _servers_fit_the_strategy(self) -> ElasticJobSpec:
        by_servers = self.distribution_strategy is DistributionStrategy.PARAMETER_SERVER
        if self.ps is not None and not by_servers:
            strategy = self.distribution_strategy
            raise field_error(
                "parameterServer", f'parameter servers are not used with "{strategy}"; choose parameter_server'
            )
        if self.ps is not None and not self.launches_nodes:
            raise field_error(
                "parameterServer", "nobody launches parameter servers in a job whose workers are started by others"
            )
        return self


class ElasticJob(Resource):
    """A training job whose nodes join, leave and crash while its steps go on."""

    api_version: Literal["elastic.iml.github.io/v1alpha1"] = API_VERSION
    kind: Literal["ElasticJob"] = "ElasticJob"
    metadata: JobMetadata
    spec: ElasticJobSpec

    @property
    def name(self) -> JobName:
        return self.metadata.name


def load_job(document: object) -> ElasticJob:
    """Validate a plain document; raise InvalidJobSpec with one line for each field at fault."""
    return load(ElasticJob, document)


def _check_sizes(low: int, wanted: int, high: int) -> None:
    if low > high:
        raise field_error("minReplicas", f"{low} is above maxReplicas {high}")
    if wanted < low:
        raise field_error("replicas", f"{wanted} is below minReplicas {low}")
    if wanted > high:
        raise field_error("replicas", f"{wanted} is above maxReplicas {high}")
