"""TrainingService: evaluates the model while it trains, on evaluators or on workers. The rules are `core.evaluation`.

The first worker writes a version's weights into the versions folder. Its data is leased in shards by the TaskManager,
and each shard's state of the metrics comes with its commit; so a shard of a lost node is evaluated again, and counts
once. The master never looks into a state: a node merges them, in the order of the data, and says what they come to.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from elastane.core.evaluation import (
    Decision,
    Drop,
    Evaluate,
    Evaluations,
    Export,
    Finished,
    Over,
    StopTraining,
    Take,
    TakeFinal,
)
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.task_manager import Grant, TaskManager
from elastane.model.dataset import DatasetSpec, Task, TaskType
from elastane.model.errors import RequestRefused, StaleLease
from elastane.model.evaluation import (
    EvaluateShard,
    EvaluationSpec,
    ExportVersion,
    MergeStates,
    Result,
    Work,
    about_version,
    plain_metrics,
    version_file,
)
from elastane.model.ids import DatasetName, NodeName, TaskId
from elastane.rpc.evaluation_wire import work_to_wire
from elastane.rpc.protos import control_pb2
from elastane.rpc.protos import node_pb2 as pb

MOST_MERGED = 4 * 2**20
"""How many characters of states one message holds. At least two states must fit."""

_JOURNALLED = "evaluations"

Tell = Callable[[NodeName, pb.MasterMessage], None]


@dataclass
class _Work:
    """What the nodes are at: the shards of a version, the merging of their states, or the export."""

    name: DatasetName
    step: int
    states: dict[int, str] = field(default_factory=dict)
    """The states of the shards that are done, by where they begin."""
    merging: tuple[int, ...] = ()
    export: str | None = None


class TrainingService:
    """The evaluations of one job. Without a folder for versions, none can be described.

    evaluators_expected: whether there are evaluators, or will be; without them, workers evaluate.
    training: who is in the world that trains.
    on_training_end: called when nobody trains any more, and nobody is to begin anew.
    """

    def __init__(
        self,
        events: EventLog,
        tell: Tell,
        task_manager: TaskManager,
        *,
        versions: Path | None,
        evaluators_expected: Callable[[], bool],
        training: Callable[[], Collection[NodeName]],
        on_training_end: Callable[[], None],
        journal: Journal,
    ) -> None:
        self.rules: Evaluations | None = None
        self._events = events
        self._tell = tell
        self._task_manager = task_manager
        self._versions = versions
        self._evaluators_expected = evaluators_expected
        self._training = training
        self._on_training_end = on_training_end
        self._journal = journal
        self._clock = journal.clock
        self._evaluators: dict[NodeName, None] = {}
        self._workers: dict[NodeName, None] = {}
        self._done: dict[NodeName, int] = {}
        """The workers that train no more, and the steps of what they have."""
        self._writer: NodeName | None = None
        self._held: dict[NodeName, Task] = {}
        self._work: _Work | None = None
        self._started_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        if _JOURNALLED in journal.names:
            self._watch(EvaluationSpec.from_plain(journal.description_of(_JOURNALLED)))

    def resume(self) -> None:
        """Go on in the place of a master that died: what was at work is begun anew, as nodes come back."""
        if self.rules is not None:
            if self.rules.running is not None:
                self._evaluate(self.rules.running)
            elif self.rules.exporting is not None:
                self._export(self.rules.exporting)
            self._set_timer()

    # --- what nodes say ---

    def define(self, node: NodeName, spec: EvaluationSpec, *, evaluator: bool) -> None:
        """Take a description of the job's evaluation, and the node as one that can evaluate. Raises RequestRefused."""
        if self._versions is None:
            raise RequestRefused("evaluate: this master has no folder for the versions of a model")
        if self.rules is None:
            self._versions.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._carry_out(self._watch(spec).begin(self._clock()))
        elif self.rules.spec != spec:
            raise RequestRefused(f"evaluate: {_difference(self.rules.spec, spec)}")
        rules = self._described()
        (self._evaluators if evaluator else self._workers)[node] = None
        if rules.over:
            self._tell(node, pb.MasterMessage(evaluation_over=pb.EvaluationOver()))
            return
        if not evaluator:
            if rules.wanted:
                self._tell(node, self._take_version(rules.wanted))
            if rules.stopping:
                self._tell(node, pb.MasterMessage(stop_training=pb.StopTraining()))
        self._offer()

    def version_written(self, node: NodeName, step: int, error: str) -> None:
        """A node has written a version's weights, or could not."""
        rules = self._described()
        if error:
            self._events.emit("version_failed", step=step, node=node, error=error)
            if node == self._writer:
                self._writer = None
                del self._done[node]
                self._choose_writer()
            return
        self._carry_out(rules.taken(step, self._clock()))

    def task_done(self, node: NodeName, done: pb.TaskDone) -> None:
        """Count a finished task. Raises StaleLease, and changes nothing, if the node does not hold it (any more)."""
        rules, task = self._described(), self._held.get(node)
        work = self._work
        if task is None or work is None or not work.name == task.dataset == done.dataset or task.id != done.task:
            raise StaleLease(f"task {done.task} of {done.dataset} is not leased to {node}")
        last = self._task_manager.finish(node, task)
        del self._held[node]
        if task.type is TaskType.EXPORT:
            self._close_work()
            self._events.emit("exported", step=work.step, folder=rules.spec.export, node=node)
            self._carry_out(rules.exported(self._clock()))
        elif work.merging:
            self._merged(work, done)
        else:
            work.states[task.shard.start] = done.state
            if last:
                self._close_work()
                self._merge(work)
            else:
                self._lease(node)

    def gave_back(self, node: NodeName, name: DatasetName, tasks: Collection[TaskId]) -> None:
        """A node has returned tasks: if it was one of these, it may try again, or another."""
        if (task := self._held.get(node)) is not None and task.dataset == name and task.id in tasks:
            del self._held[node]
            self._offer()

    def training_done(self, node: NodeName, step: int) -> None:
        """A worker trains no more. Unless others do, it stays for the final version."""
        rules = self._described()
        others = [other for other in self._training() if other != node and other not in self._done]
        if rules.over or (others and rules.end is None):
            self._tell(node, pb.MasterMessage(evaluation_over=pb.EvaluationOver()))
            return
        self._done[node] = step
        self._on_training_end()
        # A worker that came after the others were done has none of their steps.
        self._carry_out(rules.training_ended(max(step, self._task_manager.steps), self._clock()))
        self._choose_writer()

    def lost(self, node: NodeName) -> None:
        """A node is gone; the TaskManager returns what it held."""
        known = node in self._workers or node in self._evaluators
        for table in (self._evaluators, self._workers, self._done, self._held):
            table.pop(node, None)
        if known and self.rules is not None:
            if node == self._writer:
                self._writer = None
            self._choose_writer()
            self._offer()

    def view(self) -> control_pb2.EvaluationView | None:
        """What is known, for people; None if the job does not evaluate."""
        if self.rules is None:
            return None
        rules, goal = self.rules, self.rules.spec.best
        evaluated = 0
        if self._work is not None and self._work.name in self._task_manager.ledgers and not self._work.export:
            ledger = self._task_manager.ledgers[self._work.name]
            evaluated = rules.spec.size if self._work.merging else ledger.committed_samples
        return control_pb2.EvaluationView(
            running=rules.running,
            committed=evaluated,
            size=rules.spec.size,
            last=_result_view(rules.last),
            best=_result_view(rules.best) if goal is not None else None,
            goal="" if goal is None else str(goal),
        )

    # --- what the rules decide ---

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Take(multiple_of):
                    self._tell_all(self._workers, self._take_version(multiple_of))
                case TakeFinal():
                    self._choose_writer()
                case Evaluate(step):
                    self._evaluate(step)
                case Finished(result, best):
                    self._finished(result, best=best)
                case Drop(step):
                    self._file(step).unlink(missing_ok=True)
                case StopTraining(evaluations):
                    self._events.emit("early_stop", evaluations=evaluations)
                    self._tell_all(self._workers, pb.MasterMessage(stop_training=pb.StopTraining()))
                case Export(result):
                    self._export(result)
                case Over():
                    over = pb.MasterMessage(evaluation_over=pb.EvaluationOver())
                    self._tell_all([*self._workers, *self._evaluators], over)
        self._set_timer()

    def _evaluate(self, step: int) -> None:
        spec = self._described().spec
        self._started_at = self._clock()
        self._writer = None
        self._events.emit("evaluation_started", step=step, samples=spec.size)
        work = _Work(DatasetName(f"evaluation-{step}"), step)
        self._open(work, spec.size, spec.shard_size, TaskType.EVALUATION)

    def _finished(self, result: Result, *, best: bool) -> None:
        self._events.emit(
            "evaluation_finished",
            step=result.step,
            metrics=plain_metrics(result.metrics),
            seconds=round(self._clock() - self._started_at, 3),
        )
        if best:
            self._events.emit("best_version", step=result.step, metrics=plain_metrics(result.metrics))

    def _export(self, result: Result) -> None:
        work = _Work(DatasetName(f"export-{result.step}"), result.step)
        work.export = about_version(result, self._described().spec.best)
        self._open(work, 1, 1, TaskType.EXPORT)

    def _merge(self, work: _Work) -> None:
        """Have as many states merged as one message holds, the first of them first."""
        merging: list[int] = []
        room = MOST_MERGED
        for start, state in sorted(work.states.items()):
            room -= len(state)
            if merging and room < 0:
                break
            merging.append(start)
        again = _Work(DatasetName(f"merge-{work.step}-{len(work.states)}"), work.step, work.states, tuple(merging))
        self._open(again, 1, 1, TaskType.EVALUATION)

    def _merged(self, work: _Work, done: pb.TaskDone) -> None:
        rules = self._described()
        self._close_work()
        rest = {start: state for start, state in work.states.items() if start not in work.merging}
        if rest:
            work.states = {work.merging[0]: done.state, **rest}
            self._merge(work)
            return
        metrics = {name: done.metrics.get(name, math.nan) for name in rules.spec.metrics}
        self._carry_out(rules.evaluated(work.step, {**done.metrics, **metrics}, self._clock()))

    # --- tasks ---

    def _open(self, work: _Work, size: int, shard_size: int, kind: TaskType) -> None:
        self._work = work
        self._task_manager.open(DatasetSpec(work.name, shard_size=shard_size, size=size, type=kind))
        self._offer()

    def _close_work(self) -> None:
        if self._work is not None:
            self._task_manager.close(self._work.name)
            self._work = None

    def _offer(self) -> None:
        """Let every node that evaluates have a task, if it has none."""
        evaluates = self._evaluators if self._evaluators_expected() else self._workers
        for node in list(evaluates):
            self._lease(node)

    def _lease(self, node: NodeName) -> None:
        if self._work is not None and node not in self._held:
            self._task_manager.lease(node, self._work.name, 1, lambda grant: self._granted(node, grant))

    def _granted(self, node: NodeName, grant: Grant) -> None:
        work = self._work
        if work is None:
            return
        for task in grant.tasks:
            self._held[node] = task
            what: EvaluateShard | MergeStates | ExportVersion
            if work.export is not None:
                what = ExportVersion(str(self._file(work.step)), self._described().spec.export or "", work.export)
            elif work.merging:
                what = MergeStates(tuple(work.states[start] for start in work.merging))
            else:
                what = EvaluateShard(str(self._file(work.step)), task.shard.start, task.shard.end)
            self._tell(node, work_to_wire(Work(task.dataset, task.id, what)))

    # --- versions ---

    def _choose_writer(self) -> None:
        """Ask one of those who have the final version for it; if nobody has it, go on without."""
        rules = self._described()
        if not rules.awaits_final or self._writer is not None:
            return
        self._writer = next((node for node, step in self._done.items() if step == rules.end), None)
        if self._writer is not None:
            self._tell(self._writer, self._take_version(1))
        elif all(node in self._done for node in self._workers):
            self._events.emit("final_version_lost", step=rules.end)
            self._carry_out(rules.no_final(self._clock()))

    def _take_version(self, multiple_of: int) -> pb.MasterMessage:
        return pb.MasterMessage(take_version=pb.TakeVersion(multiple_of=multiple_of, folder=str(self._versions)))

    def _file(self, step: int) -> Path:
        return (self._versions or Path()) / version_file(step)

    def _watch(self, spec: EvaluationSpec) -> Evaluations:
        self.rules = self._journal.watch(_JOURNALLED, Evaluations(spec, self._clock()), asdict(spec))
        return self.rules

    def _described(self) -> Evaluations:
        if self.rules is None:
            raise RequestRefused("evaluate: no node has described the job's evaluation")
        return self.rules

    def _tell_all(self, nodes: Iterable[NodeName], message: pb.MasterMessage) -> None:
        for node in nodes:
            self._tell(node, message)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = None if self.rules is None else self.rules.next_tick()
        if due is not None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._described().tick(self._clock()))


def _difference(known: EvaluationSpec, given: EvaluationSpec) -> str:
    for name, ours in vars(known).items():
        if ours != (theirs := getattr(given, name)):
            return f"{name} {theirs} differs from {ours}, which another node gave"
    raise AssertionError("equal descriptions")


def _result_view(result: Result | None) -> control_pb2.VersionResult | None:
    if result is None:
        return None
    return control_pb2.VersionResult(step=result.step, metrics=result.metrics)
