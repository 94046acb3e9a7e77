"""The ElasticJob document: the one description of a job, from a command line, a file or the Kubernetes API.

`load_job` turns a plain document into an `ElasticJob`, or raises InvalidJobSpec with one line for each field at fault:
the field's path, the value, and what is allowed.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from elastane.model.components import ComponentSet
from elastane.model.errors import InvalidInput, InvalidJobSpec
from elastane.model.ids import JobName, job_name
from elastane.model.node import NodeResource
from elastane.model.quantity import Memory

API_VERSION: Literal["elastic.iml.github.io/v1alpha1"] = "elastic.iml.github.io/v1alpha1"


class _Document(BaseModel):
    """Frozen, camelCase outside, and strict about keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, arbitrary_types_allowed=True)


def _memory(value: object) -> Memory:
    if isinstance(value, Memory):
        return value
    try:
        return Memory.parse(value)  # type: ignore[arg-type]  # parse() itself refuses what is neither str nor int
    except InvalidInput as error:
        raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from None


def _name(value: object) -> JobName:
    try:
        return job_name(str(value))
    except InvalidInput as error:
        raise PydanticCustomError("quantity", "{text}", {"text": str(error).removeprefix("name: ")}) from None


MemoryField = Annotated[Memory, BeforeValidator(_memory), PlainSerializer(str)]
Seconds = Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)]


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


class ResourceSpec(_Document):
    """What one node of a role may use; absent means that there is no limit beside the platform's own."""

    cpu: Annotated[float, Field(gt=0, le=4096)] | None = None
    memory: MemoryField | None = None
    disk: MemoryField | None = None
    gpu: Annotated[int, Field(strict=True, ge=0, le=64)] = 0

    def node_resource(self) -> NodeResource:
        return NodeResource(cpu=self.cpu, memory=self.memory, disk=self.disk, gpu_num=self.gpu)


class _KubernetesPart(BaseModel):
    """A part of the pod template: keys beyond those named here belong to Kubernetes and pass through as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")


class EnvVar(_KubernetesPart):
    name: str
    value: str = ""


class Container(_KubernetesPart):
    name: str = "main"
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()


class PodSpec(_KubernetesPart):
    containers: tuple[Container, ...]

    @model_validator(mode="after")
    def _has_a_container(self) -> PodSpec:
        if not self.containers:
            raise _field_error("containers", "at least one is needed")
        return self


class PodTemplate(_KubernetesPart):
    """A pod template. A local job takes the command, arguments and environment of its first container."""

    spec: PodSpec


class RoleSpec(_Document):
    """One role of a job: how many nodes, what each may use, how often each is relaunched, and what it runs."""

    min_replicas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    max_replicas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 10_000
    replicas: Annotated[
        int, Field(strict=True, ge=1, le=10_000, default_factory=lambda known: known.get("min_replicas", 1))
    ]
    """How many to start with; `minReplicas` unless given."""
    restart_count: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 3
    critical: Critical = Critical.NONE
    resource: ResourceSpec = ResourceSpec()
    guests: Annotated[bool, Field(strict=True)] = False
    """Whether these nodes are started by others, and come by themselves; then there is no template."""
    template: PodTemplate | None = None

    @model_validator(mode="after")
    def _has_a_command(self) -> RoleSpec:
        if self.template is None and not self.guests:
            raise _field_error("template", "missing")
        if self.template is not None and self.guests:
            raise _field_error("template", "guests are started by others, so there is nothing to run")
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
        return None if self.template is None else self.template.spec.containers[0]


class EvaluatorSpec(_Document):
    """The nodes that evaluate and do not train. They run what the workers run."""

    replicas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    restart_count: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 3
    resource: ResourceSpec = ResourceSpec()


class SavesSpec(_Document):
    """Checkpoints of the parameter servers. A job that starts goes on from the newest whole one in the folder."""

    folder: Annotated[str, Field(min_length=1)]
    every_seconds: Seconds | None = 600.0
    every_steps: Annotated[int, Field(strict=True, ge=1)] | None = None
    keep: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 3


class ServerSpec(_Document):
    """The parameter servers: how many, what each may use, and what holds for all of them."""

    min_replicas: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    max_replicas: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1000
    replicas: Annotated[
        int, Field(strict=True, ge=1, le=1000, default_factory=lambda known: known.get("min_replicas", 1))
    ]
    """How many to start with; `minReplicas` unless given."""
    restart_count: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 3
    resource: ResourceSpec = ResourceSpec()
    backups: Annotated[bool, Field(strict=True)] = False
    """Whether every bucket has a second copy on another server, which has an update before it is acknowledged."""
    buckets: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1024
    """The unit that a server owns and moves. It stays the same for the job, and for its checkpoints."""
    staleness: Annotated[int, Field(strict=True, ge=0, le=10**6)] | None = None
    """How many steps a worker may be ahead of the slowest; 0 is synchronous. Unless it is said, nobody waits."""
    checkpoint: SavesSpec | None = None

    @property
    def least(self) -> int:
        """How few there may be: a second copy needs a second server."""
        return max(self.min_replicas, 2 if self.backups else 1)

    @model_validator(mode="after")
    def _sizes_in_order(self) -> ServerSpec:
        _check_sizes(self.min_replicas, self.replicas, self.max_replicas)
        if self.replicas < self.least:
            raise _field_error("replicas", f"{self.replicas} is below 2, which backups need: a row is on two servers")
        return self


class AutoscaleSpec(_Document):
    """The job sizes itself, inside the bounds of its roles."""

    window_seconds: Annotated[float, Field(ge=2, le=3600, allow_inf_nan=False)] = 8.0
    """How long the job's work is observed for one window; three of them come before a change."""
    cpu: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """Cores that all nodes may have together; a node without a limit of its own counts as one."""
    brain: Annotated[str, Field(min_length=1)] | None = None
    """The address of the Brain that knows other jobs; without one the job knows itself alone."""
    brain_token_file: Annotated[str, Field(min_length=1)] | None = None
    """The file with the Brain's token."""


class ElasticJobSpec(_Document):
    distribution_strategy: DistributionStrategy = DistributionStrategy.RING_ALLREDUCE
    worker: RoleSpec
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
    check_replicas: Annotated[bool, Field(strict=True)] = False
    """Whether workers compare checksums of their training state whenever the world has changed."""
    evaluator: EvaluatorSpec | None = None
    """Without evaluators, a job that evaluates does it on its workers."""
    ps: ServerSpec | None = None
    """The parameter servers of a job of that strategy."""
    autoscale: AutoscaleSpec | None = None
    """Whether the job sizes itself; without it people do."""
    pod_manager: Annotated[bool, Field(strict=True)] = True
    task_manager: Annotated[bool, Field(strict=True)] = True
    training_service: Annotated[bool, Field(strict=True)] | None = None
    """Unless it is said, a job that launches nodes and has tasks has one; it is idle until a script evaluates."""
    task_fault_tolerance: Annotated[bool, Field(strict=True)] = True

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
    def launches_nodes(self) -> bool:
        """Whether the job's master launches its nodes; else others do."""
        return self.pod_manager and not self.worker.guests

    @model_validator(mode="after")
    def _components_go_together(self) -> ElasticJobSpec:
        if wrong := self.components.contradiction():
            raise _field_error(wrong.field, wrong.reason)
        if self.autoscale is not None and not (self.launches_nodes and self.task_manager):
            raise _field_error("autoscale", "a job sizes itself only if it launches its nodes and has tasks")
        if self.evaluator is not None and not self.components.training_service:
            raise _field_error("evaluator", "without the training service there is nothing to evaluate")
        if not self.pod_manager and not self.worker.guests:
            raise _field_error("worker", "without the pod manager nobody launches workers; say guests: true")
        return self

    @model_validator(mode="after")
    def _servers_fit_the_strategy(self) -> ElasticJobSpec:
        by_servers = self.distribution_strategy is DistributionStrategy.PARAMETER_SERVER
        if self.ps is not None and not by_servers:
            strategy = self.distribution_strategy
            raise _field_error("ps", f'parameter servers are not used with "{strategy}"; choose parameter_server')
        if self.ps is not None and not self.launches_nodes:
            raise _field_error("ps", "nobody launches parameter servers in a job whose workers are started by others")
        return self


class Metadata(_Document):
    name: Annotated[JobName, BeforeValidator(_name)]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ElasticJob(_Document):
    api_version: Literal["elastic.iml.github.io/v1alpha1"] = API_VERSION
    kind: Literal["ElasticJob"] = "ElasticJob"
    metadata: Metadata
    spec: ElasticJobSpec

    @property
    def name(self) -> JobName:
        return self.metadata.name

    def document(self) -> dict[str, Any]:
        """The plain document that `load_job` reads back to an equal job."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def load_job(document: object) -> ElasticJob:
    """Validate a plain document; raise InvalidJobSpec with one line for each field at fault."""
    try:
        return ElasticJob.model_validate(document)
    except ValidationError as error:
        problems = [p for p in error.errors(include_url=False) if p["type"] != "default_factory_not_called"]
        raise InvalidJobSpec(tuple(_line(problem) for problem in problems)) from None


def _check_sizes(low: int, wanted: int, high: int) -> None:
    if low > high:
        raise _field_error("minReplicas", f"{low} is above maxReplicas {high}")
    if wanted < low:
        raise _field_error("replicas", f"{wanted} is below minReplicas {low}")
    if wanted > high:
        raise _field_error("replicas", f"{wanted} is above maxReplicas {high}")


def _field_error(field: str, text: str) -> PydanticCustomError:
    return PydanticCustomError("field", "{text}", {"text": text, "field": field})


def _line(problem: ErrorDetails) -> str:
    loc = list(problem["loc"])
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "field":
        return f"{_path([*loc, context['field']])}: {problem['msg']}"
    if kind == "extra_forbidden":
        return f"{_path(loc)}: unknown key; allowed: {', '.join(_keys_at(loc[:-1]))}"
    if kind == "missing":
        return f"{_path(loc)}: missing"
    if kind in ("enum", "literal_error"):
        return f'{_path(loc)}: "{value}" is not known; allowed: {context["expected"]}'
    if kind == "quantity":
        return f"{_path(loc)}: {problem['msg']}"
    shown = f'"{value}"' if isinstance(value, str | int | float) and not _is_nan(value) else type(value).__name__
    return f"{_path(loc)}: {shown} cannot be used; {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _path(loc: list[int | str]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "document"


def _keys_at(loc: list[int | str]) -> list[str]:
    """The keys that the document knows at `loc`; every place that forbids others is reached by plain field names."""
    model: Any = ElasticJob
    for part in loc:
        found = next(field.annotation for field in model.model_fields.values() if field.alias == part)
        # Of an optional field, the model.
        model = next((kind for kind in get_args(found) if kind is not type(None)), found)
    return [field.alias or name for name, field in model.model_fields.items()]
