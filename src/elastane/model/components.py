"""The components of a job's master: which a job needs, and which of them make sense together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Contradiction(NamedTuple):
    """Why components do not go together: the field of the job document to change, and the reason."""

    field: str
    reason: str


@dataclass(frozen=True)
class ComponentSet:
    """What a master is to start. Seven sets are meaningful:

    1. tasks, without fault tolerance    5. nodes, rendezvous and tasks
    2. nodes                             6. nodes, tasks and training
    3. nodes and rendezvous              7. all four
    4. nodes and tasks
    """

    pod_manager: bool
    """Follows the nodes, and launches those that the job does not leave to others."""
    task_manager: bool
    """Leases shards of the data."""
    rendezvous: bool
    """Forms worlds of the workers."""
    training_service: bool
    """Evaluates the model while it is trained."""
    task_fault_tolerance: bool
    """Whether a lost worker's shards go to others as soon as it is known to be lost."""

    @property
    def names(self) -> tuple[str, ...]:
        """The components by their names in events and documents."""
        named = {
            "pod-manager": self.pod_manager,
            "task-manager": self.task_manager,
            "rendezvous": self.rendezvous,
            "training-service": self.training_service,
            "task-fault-tolerance": self.task_manager and self.task_fault_tolerance,
        }
        return tuple(name for name, wanted in named.items() if wanted)

    def contradiction(self) -> Contradiction | None:
        """Why this set makes no sense; None for those that do."""
        if not self.pod_manager and not self.task_manager:
            return Contradiction("podManager", "neither nodes nor tasks are left for a master to manage")
        if self.training_service and not self.task_manager:
            return Contradiction("trainingService", "evaluation is made of tasks, so it needs the task manager")
        if not self.pod_manager:
            return self._without_nodes()
        return None

    def _without_nodes(self) -> Contradiction | None:
        if self.rendezvous:
            why = "ring-allreduce needs the pod manager, which knows who comes and goes; choose none without it"
            return Contradiction("distributionStrategy", why)
        if self.training_service:
            why = "the training service needs the pod manager, which knows who trains and who evaluates"
            return Contradiction("trainingService", why)
        if self.task_fault_tolerance:
            why = "it needs the pod manager, which knows which workers are lost; switch it off without it"
            return Contradiction("taskFaultTolerance", why)
        return None
