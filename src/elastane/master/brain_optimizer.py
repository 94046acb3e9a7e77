"""BrainOptimizer: asks the Brain, which knows other jobs too. While it is slow or away, the job decides by itself."""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from elastane.core.sizing_record import OptimizerStage, SizingRecord
from elastane.master.brain_client import BrainClient
from elastane.master.event_log import EventLog
from elastane.master.resource_optimizer import LocalOptimizer, OptimizerConfig, plan_of, stage_budget
from elastane.model.brain import ReportedWindow, RunIdentity
from elastane.model.errors import BrainUnreachable, InvalidInput
from elastane.model.job_spec import AutoscaleSpec, ElasticJob
from elastane.model.node import Node, NodeType
from elastane.model.plan import ResourcePlan
from elastane.model.quantity import Memory
from elastane.model.sizing import Change, JobKind, NoDecision, Window

MOST_CONFIG = 60_000
"""Characters of a job's document that the Brain is told; of a longer one, none."""


class Patience:
    """When to ask again, after it was said that a job stays as it is: later each time, as thousands of jobs ask.

    The first question of a stage is asked at once, and so is the first after a change.
    """

    FIRST_S = 5.0
    MOST_S = 120.0

    def __init__(self) -> None:
        self._stage: OptimizerStage | None = None
        self._answer = NoDecision("nothing was asked yet")
        self._pause_s = 0.0
        self._not_before_s = 0.0

    def answer(self, stage: OptimizerStage, now_s: float) -> NoDecision | None:
        """What was said before, if that is to do; None if it is to be asked."""
        return self._answer if stage is self._stage and now_s < self._not_before_s else None

    def stays(self, stage: OptimizerStage, answer: NoDecision, now_s: float) -> None:
        """The job was told to stay as it is."""
        self._pause_s = min(max(self.FIRST_S, 2 * self._pause_s), self.MOST_S) if stage is self._stage else self.FIRST_S
        self._stage, self._answer, self._not_before_s = stage, answer, now_s + self._pause_s

    def changed(self) -> None:
        """The job has changed, so everything is open again."""
        self._stage = None


class BrainOptimizer:
    """A ResourceOptimizer on a Brain, with a local one to fall back to. Whether the Brain is there is said once."""

    def __init__(
        self,
        spec: AutoscaleSpec,
        run: RunIdentity,
        record: SizingRecord,
        local: LocalOptimizer,
        peaks: Callable[[], dict[NodeType, int]],
        events: EventLog,
        clock: Callable[[], float],
    ) -> None:
        self._record = record
        self._local = local
        self._peaks = peaks
        self._events = events
        self._away = False
        self._patience = Patience()
        self._plan = 0
        self._plans: dict[int, int] = {}
        """The Brain's number of the plan that each change follows."""
        token = ""
        if spec.brain_token_file is not None:
            try:
                token = Path(spec.brain_token_file).read_text().strip()
            except OSError as error:
                self._lost(f"its token cannot be read: {error}")
        self._client = BrainClient(spec.brain or "", token, run, clock, self._reachable)

    def start(self) -> None:
        """Begin to tell the Brain."""
        self._client.start()

    async def finish(self, how: str) -> None:
        """The job has ended; the Brain hears it if it is there."""
        await self._client.finish(how)
        await self._client.close()

    async def generate_opt_plan(self, stage: OptimizerStage, config: OptimizerConfig) -> ResourcePlan:
        if (said := self._patience.answer(stage, config.now_s)) is not None:
            return plan_of(said, config)
        budget = stage_budget(stage, config.budget, self._record.size)
        try:
            advice = await self._client.plan(
                budget,
                config.remaining_samples,
                with_history=stage is OptimizerStage.CREATE,
                assumed_cost_s=self._local.assumed_cost_s,
            )
        except BrainUnreachable as error:
            self._lost(str(error))
            return await self._local.generate_opt_plan(stage, config)
        if self._away:
            self._away = False
            self._events.emit("brain_back")
        if stage is OptimizerStage.CREATE:
            self._local.history = advice.history
        self._plan = advice.plan
        if isinstance(advice.decision, NoDecision):
            self._patience.stays(stage, advice.decision, config.now_s)
        return plan_of(advice.decision, config)

    async def generate_oom_recovery_plan(
        self, oom_nodes: Sequence[Node], stage: OptimizerStage, config: OptimizerConfig
    ) -> ResourcePlan:
        return await self._local.generate_oom_recovery_plan(oom_nodes, stage, config)

    async def generate_resource_plan_with_optimizer(self, config: OptimizerConfig) -> ResourcePlan:
        return await self._local.generate_resource_plan_with_optimizer(config)

    def observed(self, window: Window) -> None:
        """Tell of a window, without waiting."""
        memory = {role: Memory(peak) for role, peak in self._peaks().items() if peak}
        try:
            self._client.report(ReportedWindow(window, memory.get(NodeType.WORKER), memory.get(NodeType.PS)))
        except InvalidInput as error:
            self._events.emit("figures_refused", node=None, reason=str(error))

    def changed(self, number: int, change: Change) -> None:
        """Tell of a change, now and whenever more is known of it, without waiting."""
        if number not in self._plans:
            self._patience.changed()
        plan = self._plans.setdefault(number, self._plan)
        self._plan = 0
        self._client.outcome(number, change, plan)

    def _reachable(self, reachable: bool, why: str) -> None:
        # That it takes what it is told does not mean that it answers: it is back when it has.
        if not reachable:
            self._lost(why)

    def _lost(self, why: str) -> None:
        if not self._away:
            self._away = True
            self._events.emit("brain_lost", reason=why)


def run_identity(job: ElasticJob, run: str, kind: JobKind) -> RunIdentity:
    """What makes another run like this one: the script is its code, and its arguments name its data."""
    command = job.spec.worker.command
    script = next((place for place, word in enumerate(command) if word.endswith(".py")), None)
    code, arguments, model = b"", command, ""
    if script is not None:
        path = Path(command[script])
        code = path.read_bytes() if path.is_file() else b""
        arguments, model = command[script + 1 :], path.stem
    config = json.dumps(job.document())
    return RunIdentity(
        run=run,
        job=job.name,
        user=getpass.getuser(),
        kind=kind,
        model=model[:200],
        code=hashlib.sha256(code).hexdigest() if code else "",
        data=hashlib.sha256("\0".join(arguments).encode()).hexdigest(),
        config_json=config if len(config) <= MOST_CONFIG else "{}",
    )
