"""Plans: what an optimizer wants (ResourcePlan), and what the managers decided (ScalePlan)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastane.model.ids import NodeName
from elastane.model.node import Node, NodeGroupResource, NodeResource, NodeType
from elastane.model.sizing import Decision


@dataclass(frozen=True)
class ResourcePlan:
    """What the job should have: sizes of whole groups, and new resources for single nodes."""

    node_group_resources: Mapping[NodeType, NodeGroupResource] = field(default_factory=dict)
    node_resources: Mapping[NodeName, NodeResource] = field(default_factory=dict)
    reason: str = ""
    """The one line that says why."""
    decision: Decision | None = None
    """What a plan for speed was made of; a plan for memory has none."""

    def __bool__(self) -> bool:
        return bool(self.node_group_resources or self.node_resources)


@dataclass(frozen=True)
class ScalePlan:
    """What a Scaler is to do: launch these nodes, remove those."""

    launch_nodes: tuple[Node, ...] = ()
    remove_nodes: tuple[Node, ...] = ()
    ps_addrs: tuple[str, ...] = ()

    def joined(self, other: ScalePlan) -> ScalePlan:
        """Both, as one."""
        return ScalePlan(
            self.launch_nodes + other.launch_nodes,
            self.remove_nodes + other.remove_nodes,
            other.ps_addrs or self.ps_addrs,
        )

    def __bool__(self) -> bool:
        return bool(self.launch_nodes or self.remove_nodes or self.ps_addrs)
