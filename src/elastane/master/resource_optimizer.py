"""ResourceOptimizer: who says what a job should have. LocalOptimizer knows its own job; BrainOptimizer asks the Brain.

The rules that it asks need numpy and scipy. They are imported when there is something to decide: most jobs never have,
and every master would start later for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from elastane.core.sizing_record import OptimizerStage, SizingRecord
from elastane.model.errors import InvalidInput
from elastane.model.ids import NodeName
from elastane.model.node import Node, NodeGroupResource, NodeResource, NodeType
from elastane.model.plan import ResourcePlan
from elastane.model.quantity import Memory
from elastane.model.sizing import (
    NO_HISTORY,
    Budget,
    Change,
    Decision,
    History,
    JobKind,
    JobSize,
    MemoryReading,
    NoDecision,
    Window,
)

if TYPE_CHECKING:
    from elastane.core.throughput import ThroughputModel

LEAST_READINGS = 5
SURE_READINGS = 10
"""So many before a server's growth is believed; the fewer only if there is no time to wait for more."""
LOOK_AT_SHARE = 0.4
"""A server that uses less of its limit is not looked at."""
MOVE_AHEAD_S = 60.0
"""A server that comes to its limit within this time is moved."""
MOVE_AT_SHARE = 0.75
"""So is one that will come to it some day, and uses so much of it already."""


@dataclass(frozen=True)
class ServerMemory:
    """One parameter server: its resource, and how its memory grew with the samples."""

    resource: NodeResource
    readings: Sequence[MemoryReading]


@dataclass(frozen=True)
class OptimizerConfig:
    """What holds for a job right now, beside what was observed of it."""

    kind: JobKind
    budget: Budget
    now_s: float = 0.0
    remaining_samples: float | None = None
    """None of a job that does not end by itself."""
    samples_done: float = 0.0
    samples_per_s: float = 0.0
    worker: NodeResource = field(default_factory=NodeResource)
    ps: NodeResource = field(default_factory=NodeResource)
    peaks: Mapping[NodeType, int] = field(default_factory=dict)
    """The most memory that a node of each role was seen to use, in bytes."""
    servers: Mapping[NodeName, ServerMemory] = field(default_factory=dict)
    wanted: JobSize | None = None
    """The size that somebody asks about."""


class ResourceOptimizer(Protocol):
    """Says what a job should have. An empty plan changes nothing; its reason says why."""

    async def generate_opt_plan(self, stage: OptimizerStage, config: OptimizerConfig) -> ResourcePlan:
        """The plan for a stage of the job's life."""

    async def generate_oom_recovery_plan(
        self, oom_nodes: Sequence[Node], stage: OptimizerStage, config: OptimizerConfig
    ) -> ResourcePlan:
        """What the roles of these nodes are to have, which were killed for memory."""

    async def generate_resource_plan_with_optimizer(self, config: OptimizerConfig) -> ResourcePlan:
        """The plan for the size that `config.wanted` names, with what it would give. Raises InvalidInput if unknown."""


class LocalOptimizer:
    """Decides from what was observed of its own job, which it keeps in memory."""

    def __init__(self, record: SizingRecord, assumed_cost_s: float | None = None) -> None:
        self._record = record
        self.assumed_cost_s = assumed_cost_s
        self.history: History = NO_HISTORY
        """What somebody else knew of like jobs."""

    async def generate_opt_plan(self, stage: OptimizerStage, config: OptimizerConfig) -> ResourcePlan:
        if stage is OptimizerStage.CREATE:
            return plan_of(await asyncio.to_thread(_first_size, config, self.history), config)
        budget = stage_budget(stage, config.budget, self._record.size)
        windows, changes = list(self._record.windows), list(self._record.changes)
        # The fit takes a while, and what it needs even longer to be imported: the master goes on meanwhile.
        found = await asyncio.to_thread(
            _decide, replace(config, budget=budget), windows, changes, self.history, self.assumed_cost_s
        )
        return plan_of(found, config)

    async def generate_oom_recovery_plan(
        self,
        oom_nodes: Sequence[Node],
        stage: OptimizerStage,  # noqa: ARG002  # memory is needed at any
        config: OptimizerConfig,
    ) -> ResourcePlan:
        return oom_plan(oom_nodes, config)

    async def generate_resource_plan_with_optimizer(self, config: OptimizerConfig) -> ResourcePlan:
        if config.wanted is None:
            raise InvalidInput("size: say which one")
        model = await asyncio.to_thread(fitted, config.kind, list(self._record.windows), self.history)
        predicted = model.predict(config.wanted)
        why = f"{config.wanted}: {model.limit(config.wanted)}"
        decision = Decision(config.wanted, why, predicted, self._record.size, self._record.present_samples_per_s)
        return plan_of(replace(decision, observations=model.observations), config)


def _first_size(config: OptimizerConfig, history: History) -> Decision | NoDecision:
    from elastane.core.size_search import first_size

    return first_size(config.kind, config.budget, history)


def _decide(
    config: OptimizerConfig,
    windows: Sequence[Window],
    changes: Sequence[Change],
    history: History,
    assumed_cost_s: float | None,
) -> Decision | NoDecision:
    from elastane.core.size_search import RULES, decide

    rules = RULES if assumed_cost_s is None else replace(RULES, assumed_cost_s=assumed_cost_s)
    return decide(config.kind, windows, changes, config.budget, config.remaining_samples, history, config.now_s, rules)


def fitted(kind: JobKind, windows: Sequence[Window], history: History) -> ThroughputModel:
    """The model that the windows lead to. Raises InvalidInput without any."""
    from elastane.core.throughput import fit

    return fit(kind, windows, history)


def stage_budget(stage: OptimizerStage, budget: Budget, size: JobSize | None) -> Budget:
    """What may be changed at a stage: first the workers alone, then the servers alone, then all."""
    if size is None or stage is OptimizerStage.RUNNING:
        return budget
    if stage is OptimizerStage.WORKER_INITIAL:
        return replace(budget, min_ps=size.ps, max_ps=size.ps)
    return replace(budget, min_workers=size.workers, max_workers=size.workers)


def plan_of(found: Decision | NoDecision, config: OptimizerConfig) -> ResourcePlan:
    """The plan for a size: each role's count, and what each of its nodes is to have."""
    if isinstance(found, NoDecision):
        return ResourcePlan(reason=found.reason)
    size = found.size
    groups = {NodeType.WORKER: NodeGroupResource(size.workers, _resized(config.worker, size.worker_cpu))}
    if config.kind is JobKind.PARAMETER_SERVER:
        groups[NodeType.PS] = NodeGroupResource(size.ps, _resized(config.ps, size.ps_cpu))
    return ResourcePlan(groups, reason=found.reason, decision=found)


def _resized(resource: NodeResource, cpu: float | None) -> NodeResource:
    return resource if cpu is None else replace(resource, cpu=cpu)


def oom_plan(oom_nodes: Sequence[Node], config: OptimizerConfig) -> ResourcePlan:
    """Twice the memory for each of these nodes."""
    from elastane.core import memory_growth

    given: dict[NodeName, NodeResource] = {}
    lines = []
    for node in oom_nodes:
        if node.resource.memory is None:
            lines.append(f"{node.short_name} was killed for memory, and has no limit that could be raised")
            continue
        peak = config.peaks.get(node.type, 0)
        memory = memory_growth.least(memory_growth.after_oom(node.resource.memory, 0), peak)
        given[node.name] = replace(node.resource, memory=memory)
        lines.append(f"{node.short_name} was killed for memory at {node.resource.memory}: {memory} in its place")
    return ResourcePlan(node_resources=given, reason="; ".join(lines))


def memory_moves(config: OptimizerConfig) -> ResourcePlan:
    """More memory for the parameter servers that would come to their limit before the job ends."""
    given: dict[NodeName, NodeResource] = {}
    lines = []
    for name, server in config.servers.items():
        limit = server.resource.memory
        if limit is None or len(server.readings) < LEAST_READINGS:
            continue
        used = server.readings[-1].bytes
        if used < LOOK_AT_SHARE * limit.bytes:
            continue
        full = used >= MOVE_AT_SHARE * limit.bytes
        if len(server.readings) < SURE_READINGS and not full:
            continue
        from elastane.core import memory_growth

        remaining = config.samples_done if config.remaining_samples is None else config.remaining_samples
        found = memory_growth.forecast(server.readings, config.samples_done + remaining, limit)
        if found.limit_at_samples is None or found.wanted_bytes <= limit.bytes:
            continue
        near_s = (found.limit_at_samples - config.samples_done) / max(config.samples_per_s, 1e-9)
        if near_s > MOVE_AHEAD_S and not full:
            continue  # It can be foreseen better later.
        wanted = Memory.mib(-(-found.wanted_bytes // 2**20))
        given[name] = replace(server.resource, memory=wanted)
        lines.append(
            f"{'-'.join(name.rsplit('-', 2)[-2:])} uses {used >> 20} of {limit.bytes >> 20} MiB and comes to "
            f"{found.bytes_at_end >> 20} MiB by the job's end, over its limit at {found.limit_at_samples:,.0f} samples:"
            f" it moves to {wanted}"
        )
    return ResourcePlan(node_resources=given, reason="; ".join(lines))
