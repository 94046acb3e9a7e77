"""WorkerManager: turns what is wanted of the workers, and what became of them, into scale plans. And other groups."""

from __future__ import annotations

from elastane.core.nodes import GroupLimits, NodeGroup
from elastane.master.journal import Journal
from elastane.model.ids import JobName
from elastane.model.job_spec import Critical, EvaluatorSpec, RoleSpec, ServerSpec
from elastane.model.node import NodeStatus, NodeType
from elastane.model.plan import ResourcePlan, ScalePlan

_CRITICAL_SLOTS: dict[Critical, frozenset[int] | None] = {
    Critical.NONE: frozenset(),
    Critical.CHIEF: frozenset({0}),
    Critical.ALL: None,
}


class WorkerManager:
    """The job's workers. `group` holds their rules and their state."""

    def __init__(self, job: JobName, role: RoleSpec, journal: Journal) -> None:
        limits = GroupLimits(
            min_count=role.min_replicas,
            max_count=role.max_replicas,
            restart_count=role.restart_count,
            critical_slots=_CRITICAL_SLOTS[role.critical],
        )
        self.group = journal.watch("workers", NodeGroup(job, NodeType.WORKER, role.resource.node_resource(), limits))

    def scale_plan(self, plan: ResourcePlan, now: float) -> ScalePlan:
        """What a resource plan means for the workers there are. Raises RequestRefused outside the job's limits.

        Who is one too many is released and will not be relaunched; the chief is the last. A worker whose resource
        changes is followed by another, and leaves once that one runs; for one that has ended, it is for whoever takes
        its place.
        """
        found = ScalePlan()
        wanted = plan.node_group_resources.get(NodeType.WORKER)
        if wanted is not None:
            found = self.group.scale_to(wanted.count, now, wanted.node_resource)
        for node in [node for node in self.group.nodes if node.name in plan.node_resources]:
            resource = plan.node_resources[node.name]
            if node.status.final or node.status is NodeStatus.INITIAL:
                self.group.grant(node.name, resource)
            elif resource != node.resource:
                found = found.joined(self.group.succeed(node.name, resource, now))
        return found


def evaluator_group(job: JobName, role: EvaluatorSpec | None, journal: Journal) -> NodeGroup:
    """The job's evaluators, of which there may be none. It can do without them, for workers can evaluate."""
    role = role or EvaluatorSpec()
    limits = GroupLimits(min_count=0, restart_count=role.restart_count)
    return journal.watch("evaluators", NodeGroup(job, NodeType.EVALUATOR, role.resource.node_resource(), limits))


def server_group(job: JobName, role: ServerSpec | None, journal: Journal) -> NodeGroup:
    """The job's parameter servers, of which there may be none. PSManager says who comes and goes."""
    role = role or ServerSpec.model_validate({})
    limits = GroupLimits(min_count=role.least, max_count=role.max_replicas, restart_count=role.restart_count)
    return journal.watch("ps", NodeGroup(job, NodeType.PS, role.resource.node_resource(), limits))
