"""What the operator can do. Each may be repeated without harm; `carry_out.py` has the function for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastane.model.cluster_documents import JobResource, ScalePlanDocument
from elastane.model.job_spec import ElasticJob
from elastane.model.node import Node


@dataclass(frozen=True)
class CreateSecret:
    """Make the Secret with the job's token and the master's certificate, or bring the job in it up to date."""

    job: ElasticJob


@dataclass(frozen=True)
class CreateService:
    """Make the Service at which the master is found."""


@dataclass(frozen=True)
class CreateServiceAccount:
    """Make the account with which the master calls the API server."""


@dataclass(frozen=True)
class CreateRoleBinding:
    """Give that account the rights of a master."""


@dataclass(frozen=True)
class CreateMasterPod:
    job: ElasticJob


@dataclass(frozen=True)
class DeletePods:
    """Delete pods, given by name and uid; what has another uid stays."""

    pods: tuple[tuple[str, str], ...]
    at_once: bool = False


@dataclass(frozen=True)
class PatchStatus:
    """Say something else about the job. It fails if the job has changed since it was seen."""

    status: Mapping[str, Any]


@dataclass(frozen=True)
class EmitEvent:
    """Tell one thing of the job's story."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class PlanRef:
    """A ScalePlan or a JobResource, and the version of it that was seen."""

    plural: str
    name: str
    uid: str
    generation: int


@dataclass(frozen=True)
class PatchPlan:
    """Say where a plan stands."""

    plan: PlanRef
    status: Mapping[str, Any]


@dataclass(frozen=True)
class AskMasterToStop:
    """Ask the master to end the job, so that the nodes leave in their own time."""


@dataclass(frozen=True)
class AskMaster:
    """Hand a user's plan to the master, and say in the plan's status what came of it."""

    plan: PlanRef
    document: JobResource | ScalePlanDocument
    asked_before: bool = False
    """Whether it may have been asked already, by an operator that did not live to say so."""


@dataclass(frozen=True)
class CarryOutPlan:
    """Create and delete the pods of a plan that the master wrote, and say in its status what was done."""

    plan: PlanRef
    job: ElasticJob
    create: tuple[Node, ...]
    """The nodes whose pods are not there and are not known to have been."""
    document: ScalePlanDocument


@dataclass(frozen=True)
class DeleteJob:
    """Delete the ElasticJob, and with it all that it owns."""


Action = (
    CreateSecret
    | CreateService
    | CreateServiceAccount
    | CreateRoleBinding
    | CreateMasterPod
    | DeletePods
    | PatchStatus
    | EmitEvent
    | PatchPlan
    | AskMasterToStop
    | AskMaster
    | CarryOutPlan
    | DeleteJob
)
