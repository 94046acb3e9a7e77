"""What to do about the plans that name a job: users' go to its master, the master's own are carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastane.model.cluster_documents import (
    JobResource,
    NodeChange,
    ResourceChange,
    ScalePlanDocument,
    ScaleType,
    load_job_resource,
    load_scale_plan,
)
from elastane.model.errors import InvalidJobSpec
from elastane.model.ids import NodeName
from elastane.model.job_spec import ElasticJob
from elastane.model.status_documents import PlanPhase
from elastane.operator.actions import Action, AskMaster, CarryOutPlan, EmitEvent, PatchPlan, PlanRef
from elastane.operator.observed import Json, Observed
from elastane.operator.status import clipped
from elastane.operator.times import stamp
from elastane.rpc.protos import control_pb2 as pb

SCALE_PLANS, JOB_RESOURCES = "scaleplans", "jobresources"
FINAL = frozenset({PlanPhase.SUCCEEDED.value, PlanPhase.FAILED.value})


@dataclass
class PlanDecision:
    """What to do about a job's plans, whether any is open still, and when to look again."""

    actions: list[Action] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The names of those that are being carried out."""
    look_again_at: float | None = None


def is_open(plan: Json, job_uid: str | None) -> bool:
    """Whether something is to be done about a plan.

    A ScalePlan is carried out once. A JobResource is, too, once for each of its generations and each job of that name.
    """
    status = plan.get("status") or {}
    if status.get("phase") not in FINAL:
        return True
    if plan["kind"] != "JobResource":
        return False
    said_of_this = status.get("observedGeneration") == plan["metadata"].get("generation")
    return not said_of_this or (job_uid is not None and status.get("jobUid") not in (None, job_uid))


def removed_names(plans: Iterable[Json]) -> frozenset[str]:
    """The pods that plans remove, whether carried out or not. No name is used twice."""
    names: set[str] = set()
    for plan in plans:
        found = (plan.get("spec") or {}).get("removePods")
        if isinstance(found, list):
            names.update(name for name in found if isinstance(name, str))
    return frozenset(names)


def decide_plans(seen: Observed, job: ElasticJob | None, *, accepts: str, now: float) -> PlanDecision:
    """What to do about the open plans. `accepts` says why none can be carried out, and is empty if they can.

    The master's plans and the users' are each carried out in the order in which they were created.
    """
    decision = PlanDecision()
    uid = None if seen.job is None else seen.job["metadata"]["uid"]
    waiting = False
    for plan in sorted((*seen.plans, *seen.resources), key=_age):
        if not is_open(plan, uid):
            continue
        ref = _ref(plan)
        document = _loaded(plan)
        if isinstance(document, str):
            decision.actions += refused(ref, document, uid, now)
        elif seen.job is None:
            decision.actions += _pending(plan, ref, f'there is no ElasticJob "{seen.key.name}" yet')
        elif accepts:
            decision.actions += refused(ref, accepts, uid, now)
        elif not _is_of(plan, seen.job["metadata"]["uid"]):
            decision.actions += refused(ref, "it was written for another job of that name", uid, now)
        elif isinstance(document, ScalePlanDocument) and _names_pods(document):
            decision.open.append(ref.name)
            if job is not None:
                decision.actions.append(_carried_out(seen, job, ref, document))
        else:
            decision.open.append(ref.name)
            if not waiting:
                waiting = _ask(seen, plan, document, decision, now)
    return decision


def refused(ref: PlanRef, words: str, job_uid: str | None, now: float) -> list[Action]:
    """Say of a plan that nothing was done, and why."""
    return [
        PatchPlan(ref, plan_status(ref, PlanPhase.FAILED, words, now, job_uid)),
        EmitEvent("PlanRefused", f"{ref.plural.removesuffix('s')} {ref.name}: {clipped(words)}", warning=True),
    ]


def plan_status(ref: PlanRef, phase: PlanPhase, words: str, now: float | None, job_uid: str | None) -> dict[str, Any]:
    """The status of a plan; `now` is given if it is final."""
    status: dict[str, Any] = {
        "phase": phase.value,
        "message": clipped(words),
        "observedGeneration": ref.generation,
        "jobUid": job_uid,
    }
    return status if now is None else {**status, "finishTime": stamp(now)}


def apply_request(document: JobResource | ScalePlanDocument) -> pb.ApplyRequest:
    """What a user's plan asks of the master."""
    updates: tuple[NodeChange, ...] = document.spec.resource_updation if isinstance(document, JobResource) else ()
    request = pb.ApplyRequest(reason=f"{document.kind} {document.metadata.name}")
    for role, change in document.groups.items():
        request.group.add(role=role.value, count=change.replicas, **_amounts(change.resource))
    for update in updates:
        request.node.add(node=update.name, **_amounts(update.resource))
    return request


def drained_nodes(document: JobResource | ScalePlanDocument) -> tuple[NodeName, ...]:
    """The nodes that a user's plan lets go, without a replacement."""
    return document.remove_nodes if isinstance(document, ScalePlanDocument) else ()


def in_words(document: JobResource | ScalePlanDocument) -> str:
    """What a user's plan asks for, in one line."""
    parts = []
    for role, change in document.groups.items():
        count = "" if change.replicas is None else f" {change.replicas}"
        resource = change.resource.model_dump(mode="json", exclude_none=True)
        each = "".join(f", {key} {value}" for key, value in resource.items())
        parts.append(f"{role}{count}{each}")
    if isinstance(document, JobResource):
        parts += [f"{update.name} replaced" for update in document.spec.resource_updation]
    parts += [f"{node} drained" for node in drained_nodes(document)]
    return "; ".join(parts) or "nothing"


def _amounts(change: ResourceChange) -> dict[str, Any]:
    amounts: dict[str, Any] = {
        "cpu": change.cpu,
        "memory_bytes": None if change.memory is None else change.memory.bytes,
        "disk_bytes": None if change.disk is None else change.disk.bytes,
        "gpu": change.gpu,
    }
    return {key: value for key, value in amounts.items() if value is not None}


def _names_pods(document: ScalePlanDocument) -> bool:
    """Whether a plan is one that the master wrote: it says what to do, not what there is to be."""
    spec = document.spec
    return document.scale_type is ScaleType.AUTO and bool(spec.create_pods or spec.remove_pods or not document.groups)


def _carried_out(seen: Observed, job: ElasticJob, ref: PlanRef, document: ScalePlanDocument) -> CarryOutPlan:
    # A pod that was there, or that another plan removes already, is not made again: the plans' order is only known
    # to the second, and this operator may be the second one to see the plan.
    known = {pod.name for pod in (*seen.pods, *seen.gone)} | removed_names(
        plan for plan in seen.plans if plan["metadata"]["uid"] != ref.uid
    )
    create = tuple(node for node in document.launch_nodes if node.name not in known)
    return CarryOutPlan(ref, job, create, document)


def _ask(
    seen: Observed,
    plan: Json,
    document: JobResource | ScalePlanDocument,
    decision: PlanDecision,
    now: float,
) -> bool:
    """Hand one plan to the master, or wait until that can be done; whether those after it wait, too."""
    ref = _ref(plan)
    if seen.master is None or not seen.master.ready or seen.master.deleting:
        decision.actions += _pending(plan, ref, "the job's master does not run yet")
        return True
    if (due := seen.not_before.get(ref.uid, 0.0)) > now:
        decision.look_again_at = due
        return True
    status = plan.get("status") or {}
    asked_before = status.get("phase") == PlanPhase.SCALING and status.get("observedGeneration") == ref.generation
    decision.actions.append(AskMaster(ref, document, asked_before))
    return False


def _pending(plan: Json, ref: PlanRef, words: str) -> Sequence[Action]:
    status = plan.get("status") or {}
    said = status.get("phase") == PlanPhase.PENDING and status.get("message") == words
    if said and status.get("observedGeneration") == ref.generation:
        return []
    return [PatchPlan(ref, plan_status(ref, PlanPhase.PENDING, words, None, None))]


def _loaded(plan: Json) -> JobResource | ScalePlanDocument | str:
    """The document, or what is wrong with it."""
    try:
        return load_job_resource(plan) if plan["kind"] == "JobResource" else load_scale_plan(plan)
    except InvalidJobSpec as error:
        return str(error)


def _is_of(plan: Json, uid: str) -> bool:
    """Whether a plan may be this job's: nobody owns it, or this job does."""
    owners = [owner for owner in plan["metadata"].get("ownerReferences") or () if owner.get("kind") == "ElasticJob"]
    return not owners or any(owner["uid"] == uid for owner in owners)


def _ref(plan: Json) -> PlanRef:
    metadata: Mapping[str, Any] = plan["metadata"]
    plural = JOB_RESOURCES if plan["kind"] == "JobResource" else SCALE_PLANS
    return PlanRef(plural, metadata["name"], metadata["uid"], int(metadata.get("generation", 0)))


def _age(plan: Json) -> tuple[str, int, str]:
    metadata = plan["metadata"]
    version = str(metadata.get("resourceVersion", ""))
    # In one second, those that were not touched since have the version of their creation.
    return metadata["creationTimestamp"], int(version) if version.isdecimal() else 0, metadata["name"]
