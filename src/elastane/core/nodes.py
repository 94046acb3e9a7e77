"""The rules of a node's life: when it is relaunched, with what, and when the job ends.

A `NodeGroup` keeps the nodes of one role. It is told what happened (a node runs, exited, went silent; a person scales
or drains) and answers with a ScalePlan. A slot is a place in the group: slots 0 to n-1 are wanted, and a node that
ends too soon is followed by another with a new id in the same slot. `EXIT_POLICIES` is the whole of what each way to
end leads to.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastane.model.errors import RequestRefused
from elastane.model.ids import JobName, NodeName
from elastane.model.node import ExitReason, Node, NodeExit, NodeResource, NodeStatus, NodeType
from elastane.model.plan import ScalePlan
from elastane.model.quantity import Memory

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0


@dataclass(frozen=True)
class ExitPolicy:
    """What follows when a node ends for one reason."""

    relaunch: bool = True
    counts: bool = True
    """Whether the relaunch uses up one of the slot's `restart_count`."""
    backs_off: bool = False
    """Whether the relaunch waits, twice as long with each counted one before it."""
    more_memory: bool = False
    """Whether the replacement gets twice the memory."""
    ends_job: bool = False
    """Whether the job fails once no restart is left, whatever the group's minimum."""


EXIT_POLICIES: dict[ExitReason, ExitPolicy] = {
    ExitReason.DONE: ExitPolicy(relaunch=False),
    ExitReason.ERROR: ExitPolicy(backs_off=True, ends_job=True),
    ExitReason.OOM: ExitPolicy(backs_off=True, more_memory=True, ends_job=True),
    ExitReason.KILLED: ExitPolicy(),
    ExitReason.PREEMPTED: ExitPolicy(counts=False, backs_off=True),
    ExitReason.LOST: ExitPolicy(),
}


class JobEnd(enum.StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Outcome:
    """How the job ended, and for a failure the one line that says why and the node at fault."""

    end: JobEnd
    reason: str = ""
    node: NodeName | None = None


@dataclass(frozen=True)
class GroupLimits:
    """What a group is allowed: its sizes, its restarts for each slot, its critical slots."""

    min_count: int = 1
    max_count: int = 10_000
    restart_count: int = 3
    critical_slots: frozenset[int] | None = frozenset()
    """None: every slot is critical."""


class NodeGroup:
    """The nodes of one role, and what to do next about them."""

    def __init__(self, job: JobName, node_type: NodeType, resource: NodeResource, limits: GroupLimits) -> None:
        self.job = job
        self.type = node_type
        self.limits = limits
        self.resource = resource
        self.target = 0
        self.outcome: Outcome | None = None
        self._nodes: dict[NodeName, Node] = {}
        self._due: dict[NodeName, float] = {}
        self._preempted: set[NodeName] = set()
        self.stopping = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node so far, the ended ones too, in the order of their making."""
        return tuple(self._nodes.values())

    def node(self, name: str) -> Node:
        """The node of a full or short name; raise RequestRefused if there is none."""
        for node in self._nodes.values():
            if name in (node.name, node.short_name):
                return node
        raise RequestRefused(f'node "{name}" is not in job "{self.job}"; it has {_names(self._nodes.values())}')

    def scale_to(self, count: int, now: float, resource: NodeResource | None = None) -> ScalePlan:
        """Grow or shrink to `count` nodes; new ones get `resource`, or what those before them got.

        Raises RequestRefused, and changes nothing, outside the limits.
        """
        self.check_count(count)
        wanted = self._wanted()
        self.target = count
        self.resource = resource or self.resource
        if len(wanted) >= count:
            return self._release(self._by_worth(wanted)[count:])
        taken = {node.slot for node in wanted}
        free = (slot for slot in range(len(taken) + count) if slot not in taken)
        for _ in range(count - len(wanted)):
            self._add(next(free), self.resource, restarts=0, due=now)
        return self.launch_due(now)

    def drain(self, name: str) -> ScalePlan:
        """Let one node leave without a replacement. Raises RequestRefused below the minimum or if it has left."""
        self._check_may_leave(name)
        self.target = len(self._wanted()) - 1
        return self._release([self.node(name)])

    def retire_to(self, count: int, now: float) -> ScalePlan:
        """Grow to `count` nodes, or choose who is to leave when it can: whoever is `retired` works on until `remove`.

        Those who were to leave and still work stay, before others are launched. Raises RequestRefused as `scale_to`.
        """
        self.check_count(count)
        retired = [node for node in self._nodes.values() if node.is_retired]
        for node in retired[::-1][: max(0, count - len(self._wanted()))]:
            self._nodes[node.name] = replace(node, relaunchable=True)
        for node in self._by_worth(self._wanted())[count:]:
            self._nodes[node.name] = replace(node, relaunchable=False)
        return self.scale_to(count, now)

    def twin(self, name: str, resource: NodeResource, now: float) -> ScalePlan:
        """Launch a node with this resource, in a slot of its own, that is to take the place of another, now retired."""
        living = {other.slot for other in self._nodes.values() if not other.status.final}
        return self._replace(name, next(slot for slot in range(len(living) + 1) if slot not in living), resource, now)

    def succeed(self, name: str, resource: NodeResource, now: float) -> ScalePlan:
        """Launch a node with this resource in the slot of another, which is retired: `relieve` lets it go."""
        return self._replace(name, self.node(name).slot, resource, now)

    def relieve(self) -> ScalePlan:
        """Let those leave who were retired, once all who are wanted run."""
        if any(node.status is not NodeStatus.RUNNING for node in self._wanted()):
            return ScalePlan()
        return self._release([node for node in self._nodes.values() if node.is_retired])

    def _replace(self, name: str, slot: int, resource: NodeResource, now: float) -> ScalePlan:
        self._check_may_change()
        node = self._check_stays(name)
        self._nodes[node.name] = replace(node, relaunchable=False)
        self._add(slot, resource, restarts=0, due=now)
        return self.launch_due(now)

    def grant(self, name: str, resource: NodeResource) -> None:
        """Whoever takes a node's place gets this, if it was not launched yet, and later nodes as much memory."""
        slot = self.node(name).slot
        for node in [self._nodes[waiting] for waiting in self._due if self._nodes[waiting].slot == slot]:
            self._nodes[node.name] = replace(node, resource=resource)
        if resource.memory is not None and self.resource.memory is not None:
            self.resource = replace(self.resource, memory=max(resource.memory, self.resource.memory))

    def retire(self, name: str) -> None:
        """Let one node leave when it can. Raises RequestRefused below the minimum or if it has left."""
        self._check_may_leave(name)
        node = self.node(name)
        self._nodes[node.name] = replace(node, relaunchable=False)
        self.target = len(self._wanted())

    def remove(self, name: NodeName) -> ScalePlan:
        """Let a node leave that was retired; nothing happens to one that stays after all."""
        return self._release([node] if (node := self._nodes[name]).is_retired else [])

    def stop(self) -> ScalePlan:
        """Let every node leave, to end the job."""
        self.stopping = True
        self.target = 0
        plan = self._release([node for node in self._nodes.values() if not node.status.final and not node.is_released])
        self._settle()
        return plan

    def fail(self, reason: str, node: NodeName | None = None) -> ScalePlan:
        """End the job as failed, for a reason found elsewhere; the first outcome stands."""
        if self.outcome is None:
            self.outcome = Outcome(JobEnd.FAILED, reason, node)
        return self.stop()

    def running(self, name: NodeName) -> None:
        """The platform says that a node runs."""
        node = self._nodes[name]
        if node.status is NodeStatus.PENDING:
            self._nodes[name] = node.moved_to(NodeStatus.RUNNING)

    def preempted(self, name: NodeName) -> None:
        """A node says that it was told to leave: its coming exit is no completion."""
        self._preempted.add(name)

    def exited(self, name: NodeName, exit: NodeExit, now: float) -> ScalePlan:
        """A node ended: relaunch it, or give its slot up, or end the job. A second word on one node changes nothing."""
        node = self._nodes[name]
        if node.status.final:
            return ScalePlan()
        if not node.relaunchable:
            self._nodes[name] = node.moved_to(NodeStatus.DELETED, exit)
            self._settle()
            return ScalePlan()
        preempted = exit.reason is ExitReason.DONE and name in self._preempted
        reason = ExitReason.PREEMPTED if preempted else exit.reason
        status = NodeStatus.SUCCEEDED if reason is ExitReason.DONE else NodeStatus.FAILED
        node = self._nodes[name] = node.moved_to(status, replace(exit, reason=reason))
        plan = self._follow(node, EXIT_POLICIES[reason], reason, now)
        self._settle()
        return plan

    def launch_due(self, now: float) -> ScalePlan:
        """Launch the nodes whose back-off is over."""
        ready = [name for name, due in self._due.items() if due <= now]
        for name in ready:
            del self._due[name]
            self._nodes[name] = self._nodes[name].moved_to(NodeStatus.PENDING)
        return ScalePlan(launch_nodes=tuple(self._nodes[name] for name in ready))

    def next_due(self) -> float | None:
        """When `launch_due` has something to do."""
        return min(self._due.values(), default=None)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain JSON values."""
        return {
            "resource": asdict(self.resource),
            "target": self.target,
            "outcome": None if self.outcome is None else asdict(self.outcome),
            "nodes": [asdict(node) for node in self._nodes.values()],
            "due": list(self._due.items()),
            "preempted": sorted(self._preempted),
            "stopping": self.stopping,
        }

    def load(self, state: dict[str, Any], now: float) -> None:  # noqa: ARG002  # its times are the job's own
        """Take the state of a snapshot."""
        outcome = state["outcome"]
        self.resource = _resource(state["resource"])
        self.target = state["target"]
        self.outcome = None if outcome is None else Outcome(**{**outcome, "end": JobEnd(outcome["end"])})
        self._nodes = {node.name: node for node in map(_node, state["nodes"])}
        self._due = dict(state["due"])
        self._preempted = set(state["preempted"])
        self.stopping = state["stopping"]

    def _follow(self, node: Node, policy: ExitPolicy, reason: ExitReason, now: float) -> ScalePlan:
        if not policy.relaunch:
            return ScalePlan()
        if policy.counts and node.restarts >= self.limits.restart_count:
            return self._give_up(node, policy, reason)
        resource = node.resource
        if policy.more_memory and resource.memory is not None:
            doubled = resource.memory * 2
            resource = replace(resource, memory=doubled)
            # Later nodes of the group get as much as any has come to need.
            self.resource = replace(self.resource, memory=max(doubled, self.resource.memory or doubled))
        delay = _backoff_s(node.restarts) if policy.backs_off else 0.0
        self._add(node.slot, resource, node.restarts + policy.counts, now + delay, node.relaunches + 1)
        return self.launch_due(now)

    def _give_up(self, node: Node, policy: ExitPolicy, reason: ExitReason) -> ScalePlan:
        tried = f"{node.short_name} ended ({reason}) and has used its {self.limits.restart_count} restarts"
        if policy.ends_job or node.critical:
            return self.fail(tried, node.name)
        self.target -= 1
        left = len(self._wanted()) + sum(other.status is NodeStatus.SUCCEEDED for other in self._nodes.values())
        if left < self.limits.min_count:
            return self.fail(
                f"{tried}; {left} {self.type.plural} are left, below min {self.limits.min_count}", node.name
            )
        return ScalePlan()

    def _wanted(self) -> list[Node]:
        """The nodes that live, or wait to be launched, and are not to leave."""
        return [node for node in self._nodes.values() if not node.status.final and node.relaunchable]

    def _by_worth(self, nodes: Iterable[Node]) -> list[Node]:
        # The chief goes last; of the others, a node that waits for its relaunch goes before one that works.
        return sorted(nodes, key=lambda node: (node.slot != 0, node.name in self._due, node.slot))

    def check_count(self, count: int) -> None:
        """Raises RequestRefused for a count that `scale_to` would refuse."""
        self._check_may_change()
        word = self.type.plural
        if count < self.limits.min_count:
            raise RequestRefused(f'{word}: {count} is below min {self.limits.min_count} in job "{self.job}"')
        if count > self.limits.max_count:
            raise RequestRefused(f'{word}: {count} is above max {self.limits.max_count} in job "{self.job}"')

    def _check_may_leave(self, name: str) -> None:
        self._check_may_change()
        self._check_stays(name)
        left = len(self._wanted()) - 1
        if left < self.limits.min_count:
            low = self.limits.min_count
            raise RequestRefused(f'{self.type.plural}: {left} would be below min {low} in job "{self.job}"')

    def _check_stays(self, name: str) -> Node:
        node = self.node(name)
        if node.status.final or not node.relaunchable:
            state = node.status.value if node.status.final else "leaving already"
            raise RequestRefused(f'node "{node.short_name}" of job "{self.job}" is {state}')
        return node

    def _add(self, slot: int, resource: NodeResource, restarts: int, due: float, relaunches: int = 0) -> None:
        critical = self.limits.critical_slots is None or slot in self.limits.critical_slots
        node = Node(
            self.job,
            self.type,
            len(self._nodes),
            slot,
            resource,
            restarts=restarts,
            relaunches=relaunches,
            critical=critical,
        )
        self._nodes[node.name] = node
        self._due[node.name] = due

    def _release(self, nodes: Iterable[Node]) -> ScalePlan:
        leaving = []
        for node in nodes:
            released = node.released()
            if self._due.pop(node.name, None) is not None:
                released = released.moved_to(NodeStatus.DELETED)
            else:
                leaving.append(released)
            self._nodes[node.name] = released
        return ScalePlan(remove_nodes=tuple(leaving))

    def _settle(self) -> None:
        """Note the job's end once no node lives and none is to come."""
        if self.outcome is not None or not self._nodes or any(not node.status.final for node in self._nodes.values()):
            return
        done = any(node.status is NodeStatus.SUCCEEDED for node in self._nodes.values())
        self.outcome = Outcome(JobEnd.SUCCEEDED if done and not self.stopping else JobEnd.STOPPED)

    def _check_may_change(self) -> None:
        if self.outcome is not None:
            raise RequestRefused(f'job "{self.job}" has ended: {self.outcome.end}')
        if self.stopping:
            raise RequestRefused(f'job "{self.job}" is stopping')

    @property
    def ended(self) -> bool:
        """Whether the outcome is known and no node lives any more."""
        return self.outcome is not None and all(node.status.final for node in self._nodes.values())


def _resource(plain: dict[str, Any]) -> NodeResource:
    amounts = {key: None if plain[key] is None else Memory(**plain[key]) for key in ("memory", "disk")}
    return NodeResource(**{**plain, **amounts})


def _node(plain: dict[str, Any]) -> Node:
    its_exit = plain["exit"]
    read = {
        "type": NodeType(plain["type"]),
        "status": NodeStatus(plain["status"]),
        "resource": _resource(plain["resource"]),
        "exit": None if its_exit is None else NodeExit(**{**its_exit, "reason": ExitReason(its_exit["reason"])}),
    }
    return Node(**{**plain, **read})


def _backoff_s(restarts: int) -> float:
    doublings = min(restarts, 10)  # Past these the limit holds, and the power would outgrow a float.
    return min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0**doublings)


def _names(nodes: Iterable[Node]) -> str:
    living = [node.short_name for node in nodes if not node.status.final]
    return ", ".join(living) or "none"
