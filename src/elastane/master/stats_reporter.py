"""StatsReporter: gathers what the nodes say of their work, and makes readings and windows of the whole job of it.

A reading is made whenever every worker has said something new, so it covers the same time of all of them. What cannot
be true is refused by name, and changes nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastane.core.stable_windows import StableWindows, WindowRules
from elastane.master.event_log import EventLog
from elastane.model.errors import InvalidInput
from elastane.model.ids import NodeName
from elastane.model.node import Node, NodeStatus, NodeType
from elastane.model.sizing import JobSize, MemoryReading, Reading, Window
from elastane.rpc.figures_wire import CLOCKS_DIFFER_S, MOST_SPAN_S, checked_cpu, checked_figures
from elastane.rpc.protos import node_pb2 as pb

LOOK_EVERY_S = 0.2
"""How often it is looked for, at least, whether the workers are still the same."""
MOST_MEMORY_READINGS = 600
"""How many are kept of one server; of more, every second one is dropped."""


@dataclass(frozen=True)
class ServerState:
    """The parameter servers as they are: whether all buckets are in their places, and the load of each server."""

    settled: bool
    rows_per_s: dict[int, float]


@dataclass
class _Said:
    """What one worker has said since the last reading."""

    span_s: float = 0.0
    steps: int = 0
    samples: int = 0
    input_wait_s: float = 0.0
    pull_s: float = 0.0
    push_s: float = 0.0
    sync_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, figures: pb.StepFigures) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(figures, name))

    def per_step(self, name: str) -> float:
        return float(getattr(self, name)) / self.steps


@dataclass
class NodeUse:
    """What one node uses, as it said last, and the most it ever did."""

    cpu: float = 0.0
    memory_bytes: int = 0
    peak_bytes: int = 0
    gpu_memory_bytes: int = 0
    loss: float | None = None

    def uses(self, cpu: float, memory_bytes: int) -> None:
        self.cpu, self.memory_bytes = cpu, memory_bytes
        self.peak_bytes = max(self.peak_bytes, memory_bytes)


class StatsReporter:
    """All statistics of one job. What else is to be known of the job is asked for."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[Node]],
        servers: Callable[[], ServerState | None],
        samples_done: Callable[[], float],
        events: EventLog,
        clock: Callable[[], float],
        *,
        window_s: float,
    ) -> None:
        self._nodes = nodes
        self._servers = servers
        self._samples_done = samples_done
        self._events = events
        self._clock = clock
        # A worker speaks once a second, so a window has as many readings as seconds.
        readings = max(2, round(window_s))
        self._windows = StableWindows(WindowRules(readings=readings, warm_up_s=max(1.0, 3 * window_s / 8)))
        self._said: dict[NodeName, _Said] = {}
        self._members: frozenset[NodeName] = frozenset()
        self._looked_at = 0.0
        self._heard_since: dict[NodeName, float] = {}
        self._heard_span_s: dict[NodeName, float] = {}
        self._refused: set[NodeName] = set()
        self.use: dict[NodeName, NodeUse] = {}
        self.peaks: dict[NodeType, int] = {}
        """The most memory that any node of a role was seen to use; it outlives the nodes."""
        self.memory: dict[NodeName, list[MemoryReading]] = {}
        """Of each parameter server: how its memory grew with the samples."""
        self.last: Reading | None = None
        self._fixed_global_batch = False
        self.on_figures: list[Callable[[NodeName, pb.StepFigures], None]] = []
        """Called with what each worker says, if it can be true."""
        self.on_reading: list[Callable[[Reading], None]] = []
        self.on_window: list[Callable[[Window], None]] = []

    def attended(self, name: NodeName) -> None:
        """A node has opened a stream; from now on it can have steps."""
        self._heard_since[name] = self._clock()
        self._heard_span_s[name] = 0.0

    def resumed(self, name: NodeName) -> None:
        """A node goes on after the death of a master, perhaps in the middle of a long step."""
        self._heard_since[name] = self._clock() - MOST_SPAN_S
        self._heard_span_s[name] = 0.0

    def gone(self, name: NodeName) -> None:
        """A node is no longer here."""
        for known in (self._said, self._heard_since, self._heard_span_s, self.use, self.memory):
            known.pop(name, None)
        self._refused.discard(name)

    def heard(self, name: NodeName, figures: pb.StepFigures) -> None:
        """A worker says what its steps took. Raises InvalidInput, and changes nothing, if that cannot be true."""
        now = self._clock()
        since = self._heard_since.setdefault(name, now)
        spoken = self._heard_span_s.get(name, 0.0)
        try:
            checked_figures(figures, now - since - spoken)
        except InvalidInput as error:
            self._refuse(name, error)
            raise
        self._refused.discard(name)
        # Of time that it said nothing about, it will not speak later.
        self._heard_span_s[name] = max(spoken + figures.span_s, now - since - CLOCKS_DIFFER_S)
        self._said.setdefault(name, _Said()).add(figures)
        self._fixed_global_batch = figures.fixed_global_batch
        use = self.use.setdefault(name, NodeUse())
        use.uses(figures.cpu_s / figures.span_s, figures.memory_bytes)
        use.gpu_memory_bytes = figures.gpu_memory_bytes
        if figures.HasField("loss"):
            use.loss = figures.loss
        self._saw(NodeType.WORKER, figures.memory_bytes)
        for callback in self.on_figures:
            callback(name, figures)
        self._read(now)

    def server_load(self, name: NodeName, load: pb.ServerLoad) -> None:
        """A parameter server says what it uses. Raises InvalidInput, and changes nothing, if that cannot be true."""
        try:
            cpu = checked_cpu(load)
        except InvalidInput as error:
            self._refuse(name, error)
            raise
        self.use.setdefault(name, NodeUse()).uses(cpu, load.memory_bytes)
        self._saw(NodeType.PS, load.memory_bytes)
        if (servers := self._servers()) is not None and not servers.settled:
            self.memory.pop(name, None)  # What moves in, or out, is no growth.
        readings = self.memory.setdefault(name, [])
        readings.append(MemoryReading(self._samples_done(), load.memory_bytes))
        if len(readings) > MOST_MEMORY_READINGS:
            del readings[1:-1:2]

    @property
    def loss(self) -> float | None:
        """The mean of what the workers said last of their losses."""
        losses = [use.loss for use in self.use.values() if use.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def changing(self) -> None:
        """The job changes: what was gathered of the open window does not count."""
        self._said.clear()
        self._windows.changing(self._clock())

    def _saw(self, role: NodeType, memory_bytes: int) -> None:
        self.peaks[role] = max(memory_bytes, self.peaks.get(role, 0))

    def _refuse(self, name: NodeName, error: InvalidInput) -> None:
        if name not in self._refused:
            self._refused.add(name)  # Once, until it speaks sense again: garbage may come every second.
            self._events.emit("figures_refused", node=name, reason=str(error))

    def _working(self) -> dict[NodeName, Node]:
        return {
            node.name: node
            for node in self._nodes()
            if node.type is NodeType.WORKER and not node.status.final and node.relaunchable
        }

    def _ends(self) -> bool:
        """Whether a worker has come to the end of the data: what the others do then says nothing about a size."""
        return any(node.type is NodeType.WORKER and node.status is NodeStatus.SUCCEEDED for node in self._nodes())

    def _read(self, now: float) -> None:
        if len(self._said) < len(self._members) and now < self._looked_at + LOOK_EVERY_S:
            return  # Of thousands of workers, each speaks every second: not all are looked at for each.
        self._looked_at = now
        working = self._working()
        servers = self._servers()
        if working.keys() != self._members or (servers is not None and not servers.settled):
            self._members = frozenset(working)
            self.changing()
            return
        if not working or not working.keys() <= self._said.keys() or self._ends():
            return
        said = [self._said.pop(name) for name in working]
        reading = self._reading(now, list(working.values()), said, servers)
        try:
            window = self._windows.add(reading, now)
        except InvalidInput as error:
            # Each worker's figures can be true and yet not all together.
            self._events.emit("figures_refused", node=None, reason=str(error))
            return
        self.last = reading
        for callback in self.on_reading:
            callback(reading)
        if window is not None:
            for heard in self.on_window:
                heard(window)

    def _reading(
        self, now: float, workers: Sequence[Node], said: Sequence[_Said], servers: ServerState | None
    ) -> Reading:
        def middle(name: str) -> float:
            return statistics.median(one.per_step(name) for one in said)

        loads = {} if servers is None else servers.rows_per_s
        total = sum(loads.values())
        used = [use for name, use in self.use.items() if name in self.memory]
        size = JobSize(
            len(workers),
            len(loads),
            workers[0].resource.cpu,
            next((node.resource.cpu for node in self._nodes() if node.name in self.memory), None),
        )
        return Reading(
            at_s=now,
            size=size,
            batch_size=sum(one.samples for one in said) / sum(one.steps for one in said),
            samples_per_s=sum(one.samples / one.span_s for one in said),
            step_s=middle("span_s"),
            input_wait_s=middle("input_wait_s"),
            pull_s=middle("pull_s"),
            push_s=middle("push_s"),
            sync_s=middle("sync_s"),
            hottest_share=0.0 if not loads else max(loads.values()) / total if total else 1 / len(loads),
            worker_cpu_used=statistics.median(one.cpu_s / one.span_s for one in said),
            ps_cpu_used=max((use.cpu for use in used), default=None),
            fixed_global_batch=self._fixed_global_batch,
        )
