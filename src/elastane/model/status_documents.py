"""What the operator says about a resource in its `status`."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field

from elastane.model.documents import Document

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class PlanPhase(enum.StrEnum):
    """Where a plan stands. The last two are final, until the plan changes."""

    PENDING = "Pending"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(Document):
    """One thing that is so, is not so, or is not known."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What it is about: Created, Running, Scaling, Suspended, Complete or Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: str = ""
    """Why, in one word."""
    message: str = ""
    """Why, in one line."""
    last_transition_time: Time | None = None
    """When the status became what it is."""
    observed_generation: Count | None = None
    """The generation of the spec that this was said of."""


class RoleCounts(Document):
    """How many pods of a role there are."""

    pending: Count = 0
    """Pods that do not run yet."""
    active: Count = 0
    """Pods that run."""
    succeeded: Count = 0
    """Pods that ended well."""
    failed: Count = 0
    """Pods that failed."""


class RestartCounts(Document):
    """How many nodes were relaunched."""

    counted: Count = 0
    """Those that failed by themselves, which `restartCount` bounds."""
    ignored: Count = 0
    """Those that were lost by no fault of theirs, such as by eviction."""


class ElasticJobStatus(Document):
    """What the operator says about an ElasticJob."""

    phase: str | None = None
    """Where the job stands, in one word."""
    reason: str | None = None
    """Why, in one line."""
    conditions: tuple[Condition, ...] = ()
    """What is so about the job."""
    observed_generation: Count | None = None
    """The generation of the spec that all this was said of."""
    replica_statuses: dict[str, RoleCounts] = Field(default_factory=dict)
    """How many pods there are, by role: master, ps, worker, evaluator."""
    restarts: RestartCounts | None = None
    """How many nodes were relaunched."""
    master_restarts: Count | None = None
    """How often the master's pod was made anew."""
    start_time: Time | None = None
    """When the job started."""
    completion_time: Time | None = None
    """When the job ended, however that was."""


class PlanStatus(Document):
    """What the operator says about a ScalePlan or a JobResource."""

    phase: PlanPhase | None = None
    """Where the plan stands."""
    message: str | None = None
    """Why, in one line."""
    observed_generation: Count | None = None
    """The generation of the spec that all this was said of."""
    job_uid: str | None = None
    """The uid of the job that it was carried out for."""
    finish_time: Time | None = None
    """When the plan was carried out, or failed."""
    created_pods: tuple[str, ...] = ()
    """The names of the pods that were created for it."""
    removed_pods: tuple[str, ...] = ()
    """The names of the pods that were removed for it."""
