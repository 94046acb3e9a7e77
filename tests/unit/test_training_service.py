"""The training service with a real task manager: nodes are names, and what they are told is a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.task_manager import TaskManager
from elastane.master.training_service import MOST_MERGED, TrainingService
from elastane.model.dataset import TaskType
from elastane.model.errors import InvalidInput, RequestRefused, StaleLease
from elastane.model.evaluation import EvaluationSpec, Goal, version_file
from elastane.model.ids import DatasetName, NodeName
from elastane.rpc.evaluation_wire import evaluation_from_wire, evaluation_to_wire
from elastane.rpc.protos import node_pb2 as pb

W0, W1, E0, E1 = (NodeName(name) for name in ("worker-0", "worker-1", "evaluator-0", "evaluator-1"))


class Clock(Journal):
    """A journal that writes nothing, with a time of its own."""

    now = 0.0

    def clock(self) -> float:
        return self.now


class Service(TrainingService):
    """Keeps what it told."""

    def __init__(self, folder: Path, *, evaluators: bool = True, world: tuple[NodeName, ...] = (W0, W1)) -> None:
        self.told: list[tuple[NodeName, pb.MasterMessage]] = []
        self.failures: list[str] = []
        self.evaluators = evaluators
        self.world = world
        self.ends = 0
        journal = Clock()
        self.tasks = TaskManager(
            EventLog(),
            max_task_retries=3,
            task_timeout_s=100.0,
            on_failed=self.failures.append,
            journal=journal,
        )
        super().__init__(
            EventLog(),
            lambda node, message: self.told.append((node, message)),
            self.tasks,
            versions=folder,
            evaluators_expected=lambda: self.evaluators,
            training=lambda: self.world,
            on_training_end=self.ended,
            journal=journal,
        )
        self.folder = folder
        self.time = journal

    def ended(self) -> None:
        self.ends += 1

    def heard(self, node: NodeName, kind: str) -> list[Any]:
        """What a node was told of a kind, and not yet asked for here."""
        mine = [(to, told) for to, told in self.told if to == node and told.WhichOneof("body") == kind]
        self.told = [entry for entry in self.told if entry not in mine]
        return [getattr(told, kind) for _, told in mine]

    def write(self, step: int, node: NodeName = W0) -> None:
        (self.folder / version_file(step)).touch()
        self.version_written(node, step, "")

    def work(self, node: NodeName, state: str = "[]", **metrics: float) -> pb.RunTask | None:
        """Let a node do the task that it was told to do."""
        tasks = self.heard(node, "run_task")
        if not tasks:
            return None
        (task,) = tasks
        done = pb.TaskDone(dataset=task.dataset, task=task.task, state=state, metrics=metrics)
        self.task_done(node, done)
        assert isinstance(task, pb.RunTask)
        return task

    def on_disk(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


def spec(**more: Any) -> EvaluationSpec:
    return EvaluationSpec(**{"size": 20, "shard_size": 10, "metrics": ("auc",), "every_steps": 5, **more})


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = Service(tmp_path)
    for node, evaluator in ((W0, False), (E0, True), (E1, True)):
        made.define(node, spec(best=Goal.parse("auc:max"), export="out"), evaluator=evaluator)
    return made


def test_a_version_goes_to_the_evaluators_in_shards_and_is_merged_in_order(service: Service) -> None:
    assert [told.multiple_of for told in service.heard(W0, "take_version")] == [5]
    service.write(5)
    assert [told.multiple_of for told in service.heard(W0, "take_version")] == [0]
    second, first = service.heard(E1, "run_task"), service.heard(E0, "run_task")
    assert [(task.evaluate.start, task.evaluate.end) for task in (*first, *second)] == [(0, 10), (10, 20)]
    for node, task, state in ((E1, second[0], "late"), (E0, first[0], "early")):
        service.task_done(node, pb.TaskDone(dataset=task.dataset, task=task.task, state=state))
    merging = service.work(E0, "both", auc=0.7) or service.work(E1, "both", auc=0.7)
    assert merging is not None
    assert list(merging.merge.state) == ["early", "late"]
    assert service.rules is not None
    assert service.rules.last is not None
    assert service.rules.last.metrics == {"auc": 0.7}
    assert [told.multiple_of for told in service.heard(W0, "take_version")] == [5]
    assert not service.heard(W0, "run_task")
    assert service.on_disk() == {"step-5.safetensors"}
    assert not service.tasks.ledgers


def test_a_lost_evaluators_shard_is_evaluated_again_and_counts_once(service: Service) -> None:
    service.write(5)
    (lost,) = service.heard(E1, "run_task")
    assert service.work(E0)
    service.lost(E1)
    service.tasks.worker_lost(E1, None)
    with pytest.raises(StaleLease):
        service.task_done(E1, pb.TaskDone(dataset=lost.dataset, task=lost.task, state="again"))
    (again,) = service.heard(E0, "run_task")
    assert (again.evaluate.start, again.evaluate.end) == (lost.evaluate.start, lost.evaluate.end)
    service.task_done(E0, pb.TaskDone(dataset=again.dataset, task=again.task, state="once"))
    (merging,) = service.heard(E0, "run_task")
    assert list(merging.merge.state) == ["[]", "once"]


def test_what_is_given_back_is_tried_again_and_fails_the_job_at_last(service: Service) -> None:
    service.lost(E1)
    service.write(5)
    for _ in range(3):
        (task,) = service.heard(E0, "run_task")
        name = DatasetName(task.dataset)
        service.tasks.give_back(E0, name, [task.task], "ValueError: planted")
        service.gave_back(E0, name, [task.task])
    assert service.failures == [
        'data set "evaluation-5", epoch 0 samples 0..9 failed on 3 tries: ' + "; ".join(["ValueError: planted"] * 3)
    ]


def test_workers_evaluate_when_the_last_evaluator_is_gone(service: Service) -> None:
    service.write(5)
    assert not service.heard(W0, "run_task")
    service.evaluators = False
    for node in (E0, E1):
        service.lost(node)
        service.tasks.worker_lost(node, None)
    assert service.work(W0)
    assert service.work(W0)


def test_the_final_version_is_asked_of_another_when_its_writer_is_lost(service: Service) -> None:
    service.define(W1, spec(best=Goal.parse("auc:max"), export="out"), evaluator=False)
    service.training_done(W1, 7)
    assert service.heard(W1, "evaluation_over"), "others train on"
    service.world = ()
    service.told.clear()
    service.training_done(W0, 9)
    service.training_done(W1, 9)
    assert service.ends == 2
    assert service.heard(W0, "take_version")[-1].multiple_of == 1
    assert not [told for told in service.heard(W1, "take_version") if told.multiple_of]
    service.lost(W0)
    assert service.heard(W1, "take_version")[-1].multiple_of == 1
    service.write(9, W1)
    for node in (E0, E1):
        assert service.work(node)
    assert service.work(E0, auc=0.5)
    exporting = service.work(E0) or service.work(E1)
    assert exporting is not None
    assert exporting.export.folder == "out"
    assert '"step": 9' in exporting.export.json
    for node in (W1, E0, E1):
        assert service.heard(node, "evaluation_over")
    service.define(W0, spec(best=Goal.parse("auc:max"), export="out"), evaluator=False)
    assert service.heard(W0, "evaluation_over"), "who comes later has nothing to wait for"


def test_a_replacement_without_the_steps_does_not_write_the_final_version(service: Service) -> None:
    service.world = ()
    service.tasks.steps = 9
    service.training_done(W0, 0)
    assert not [told for told in service.heard(W0, "take_version") if told.multiple_of == 1]
    assert service.heard(W0, "evaluation_over")


def test_a_version_that_cannot_be_written_is_asked_for_again(service: Service) -> None:
    service.version_written(W0, 5, "OSError: disk full")
    assert service.rules is not None
    assert service.rules.wanted == 5
    service.write(10)
    assert service.rules.running == 10


def test_states_that_fill_a_message_are_merged_in_turns(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.define(E0, spec(size=30), evaluator=True)
    service.write(5)
    large = "x" * (MOST_MERGED // 2)
    for _ in range(3):
        assert service.work(E0, large)
    first = service.work(E0, "merged", auc=0.1)
    assert first is not None
    assert [len(state) for state in first.merge.state] == [len(large)] * 2
    second = service.work(E0, "all", auc=0.9)
    assert second is not None
    assert list(second.merge.state) == ["merged", large]
    assert service.rules is not None
    assert service.rules.last is not None
    assert service.rules.last.metrics == {"auc": 0.9}


def test_nodes_must_describe_the_same_evaluation(service: Service) -> None:
    with pytest.raises(RequestRefused, match="every_steps 6 differs from 5"):
        service.define(W1, spec(every_steps=6, best=Goal.parse("auc:max"), export="out"), evaluator=False)


def test_evaluation_needs_a_folder_for_versions(service: Service) -> None:
    service._versions, service.rules = None, None
    with pytest.raises(RequestRefused, match="no folder"):
        service.define(W1, spec(), evaluator=False)
    with pytest.raises(RequestRefused, match="no node has described"):
        service.version_written(W1, 5, "")


def test_evaluation_tasks_are_no_training_data(service: Service) -> None:
    service.write(5)
    (ledger,) = service.tasks.ledgers.values()
    assert ledger.spec.type is TaskType.EVALUATION
    assert service.tasks.all_ledgers == []
    with pytest.raises(RequestRefused, match="TaskDone"):
        service.tasks.commit(E0, ledger.spec.name, [])


async def test_a_version_is_wanted_at_once_when_its_time_has_come(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.define(W0, spec(every_steps=None, every_s=10.0), evaluator=False)
    assert service.rules is not None
    assert service.rules.wanted == 0
    service.time.now = 10.0
    service._tick()
    assert service.heard(W0, "take_version")[-1].multiple_of == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"shard_size": 0},
        {"metrics": ()},
        {"metrics": ("auc", "auc")},
        {"metrics": ("",)},
        {"every_steps": 0},
        {"every_s": 0.0},
        {"best": Goal.parse("loss:min")},
        {"early_stop": 1},
        {"best": Goal.parse("auc:max"), "early_stop": 0},
        {"export": ""},
    ],
)
def test_what_cannot_be_evaluated_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="evaluate: "):
        spec(**wrong)


def test_a_description_travels_whole() -> None:
    full = spec(every_s=2.5, at_end=False, best=Goal.parse("auc:max"), early_stop=3, export="out")
    for one in (full, spec(every_steps=None)):
        assert evaluation_from_wire(evaluation_to_wire(one)) == one
