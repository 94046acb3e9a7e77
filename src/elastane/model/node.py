"""A node of a job: a process or a pod, its resource, its status, and how it ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from elastane.model.errors import IllegalTransition
from elastane.model.ids import JobName, NodeName
from elastane.model.quantity import Memory


class NodeType(enum.StrEnum):
    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    EVALUATOR = "evaluator"

    @property
    def plural(self) -> str:
        """The word for several."""
        return self.value if self is NodeType.PS else f"{self}s"


class NodeStatus(enum.StrEnum):
    """Where a node is in its life. INITIAL: planned. PENDING: asked of the platform. The last three are final."""

    INITIAL = "initial"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"

    @property
    def final(self) -> bool:
        return not LEGAL_TRANSITIONS[self]


_ENDS = frozenset({NodeStatus.SUCCEEDED, NodeStatus.FAILED, NodeStatus.DELETED})

LEGAL_TRANSITIONS: dict[NodeStatus, frozenset[NodeStatus]] = {
    NodeStatus.INITIAL: frozenset({NodeStatus.PENDING, NodeStatus.DELETED}),
    # A platform may report a short life in one event, so PENDING may end without having been seen RUNNING.
    NodeStatus.PENDING: frozenset({NodeStatus.RUNNING}) | _ENDS,
    NodeStatus.RUNNING: _ENDS,
    NodeStatus.SUCCEEDED: frozenset(),
    NodeStatus.FAILED: frozenset(),
    NodeStatus.DELETED: frozenset(),
}


class ExitReason(enum.StrEnum):
    """Why a node ended; `core.nodes.EXIT_POLICIES` says what follows from each."""

    DONE = "done"
    ERROR = "error"
    OOM = "oom"
    KILLED = "killed"
    PREEMPTED = "preempted"
    LOST = "lost"


@dataclass(frozen=True)
class NodeExit:
    """How a node ended: the reason, the exit code (negative: the signal) where there is one, the end of its log."""

    reason: ExitReason
    code: int | None = None
    log_tail: str = ""


@dataclass(frozen=True)
class NodeResource:
    """What one node may use. `None` means that the platform's own limit is the only one."""

    cpu: float | None = None
    memory: Memory | None = None
    gpu_type: str | None = None
    gpu_num: int = 0
    disk: Memory | None = None
    priority: str | None = None


@dataclass(frozen=True)
class NodeGroupResource:
    """A number of equal nodes."""

    count: int
    node_resource: NodeResource


@dataclass(frozen=True)
class Node:
    """One node. `id` is never used twice in a job; a replacement takes over the `slot` of the node that it replaces.

    The worker in slot 0 is the chief. `relaunches` counts those of the slot so far, `restarts` those of them that use
    up what the slot is allowed. A node that is to leave
    is no longer `relaunchable`; once it was told to, it `is_released`. A node that others started has the name that it
    gave.
    """

    job: JobName
    type: NodeType
    id: int
    slot: int
    resource: NodeResource = field(default_factory=NodeResource)
    status: NodeStatus = NodeStatus.INITIAL
    restarts: int = 0
    relaunches: int = 0
    critical: bool = False
    relaunchable: bool = True
    is_released: bool = False
    exit: NodeExit | None = None
    given_name: NodeName | None = None

    @property
    def name(self) -> NodeName:
        return self.given_name or NodeName(f"{self.job}-{self.type}-{self.id}")

    @property
    def short_name(self) -> str:
        return self.given_name or f"{self.type}-{self.id}"

    @property
    def is_retired(self) -> bool:
        """Whether it is to leave, and works on until it can."""
        return not self.relaunchable and not self.is_released and not self.status.final

    def moved_to(self, status: NodeStatus, exit: NodeExit | None = None) -> Node:
        """The same node in another status; raise IllegalTransition if `status` cannot follow the present one."""
        if status not in LEGAL_TRANSITIONS[self.status]:
            raise IllegalTransition(f"{self.name}: {status} cannot follow {self.status}")
        return replace(self, status=status, exit=exit or self.exit)

    def released(self) -> Node:
        """The same node, told to leave and not to be replaced."""
        return replace(self, relaunchable=False, is_released=True)
