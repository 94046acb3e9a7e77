"""Evaluation on a node: what the script describes, and the one who does the tasks that come. Free of frameworks."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elastane.core.metrics import Bounded, Metric
from elastane.model.errors import InvalidInput
from elastane.model.evaluation import EvaluateShard, EvaluationSpec, ExportVersion, Goal, MergeStates, Work
from elastane.rpc.evaluation_wire import check_state
from elastane.worker.batches import Collate, MapDataset, collated
from elastane.worker.link import Link

MOST_SHARDS = 64
"""The fewer shards, the less to merge; the more, the less is done again when a node is lost."""

WEIGHTS_FILE = "model.safetensors"
ABOUT_FILE = "model.json"

_log = logging.getLogger("elastane.evaluation")


@dataclass(frozen=True)
class Evaluation:
    """What `job.trainer(..., evaluate=...)` evaluates, when, and what follows.

    dataset: anything with `dataset[i]` and `len(dataset)`; it must be the same on every node.
    predict: called as `predict(model, batch)`, with a model that is not the one that trains, in `eval()` mode and
        without gradients. It returns, by the name of each metric, what that metric's `update` takes.
    metrics: by name; `elastane.Mean`, `Accuracy`, `AUC`, or your own.
    every_steps, every_s: how often a version is evaluated, by steps and by seconds.
    at_end: whether the model is evaluated once more when training has ended.
    best: the metric that says which version is best, and whether more or less of it is better: "auc:max".
    early_stop: training ends after so many evaluations in a row without a better one.
    export: the folder for the weights of the best version (without `best`, the last), once training has ended.
    collate_fn: as in `job.batches`.
    """

    dataset: MapDataset
    batch_size: int
    predict: Callable[[Any, Any], Mapping[str, Any]]
    metrics: Mapping[str, Metric]
    every_steps: int | None = None
    every_s: float | None = None
    at_end: bool = True
    best: str | None = None
    early_stop: int | None = None
    export: str | os.PathLike[str] | None = None
    collate_fn: Collate | None = None

    def __post_init__(self) -> None:
        self.spec()  # It raises InvalidInput where the script can see it.

    def spec(self) -> EvaluationSpec:
        if self.batch_size < 1:
            raise InvalidInput(f"evaluate: batch_size {self.batch_size} is below 1")
        if not isinstance(self.dataset, Sized):
            raise InvalidInput("evaluate: the data set needs a length; an endless stream cannot be evaluated")
        for name, metric in self.metrics.items():
            if not isinstance(metric, Metric):
                kind = type(metric).__name__
                raise InvalidInput(f'evaluate: metric "{name}" is a {kind} without update, state, merge and result')
        size = len(self.dataset)
        return EvaluationSpec(
            size=size,
            # Whole batches, so that their cuts do not depend on the shards.
            shard_size=self.batch_size * max(1, math.ceil(size / (self.batch_size * MOST_SHARDS))),
            metrics=tuple(sorted(self.metrics)),
            every_steps=self.every_steps,
            every_s=self.every_s,
            at_end=self.at_end,
            best=None if self.best is None else Goal.parse(self.best),
            early_stop=self.early_stop,
            export=None if self.export is None else os.path.abspath(self.export),
        )


class EvaluatedModel(Protocol):
    """The model as its framework has it."""

    def load(self, file: str) -> None:
        """Have the weights of a version."""

    def predict(self, batch: Any) -> Mapping[str, Any]:
        """The script's `predict`, with what it returns as NumPy arrays."""

    def save(self, file: Path) -> None:
        """Write the weights that were loaded, under the names that the framework loads them by."""


class _Leaves(Exception):
    """The node leaves in the middle of a task."""


class EvaluationClient:
    """An EvaluationFollower, and a thread's way to what is to be done."""

    def __init__(
        self, link: Link, evaluation: Evaluation, model: Callable[[], EvaluatedModel], collate: Collate
    ) -> None:
        self.wanted = 0
        self.folder = ""
        self.stopping = False
        self.failure: Exception | None = None
        self._link = link
        self._evaluation = evaluation
        self._make_model = model
        self._model: EvaluatedModel | None = None
        self._collate = evaluation.collate_fn or collate
        self._works: deque[Work] = deque()
        self._over = False
        self._leaving = False
        self._done_at: int | None = None
        self._joins = 0
        """Counts how often what was to be done became void."""
        # Re-entrant, for a signal handler may call leave() while this very thread holds it.
        self._changed = threading.Condition(threading.RLock())
        link.join_evaluation(evaluation.spec(), self)

    # --- the link's thread ---

    def take_version(self, multiple_of: int, folder: str) -> None:
        with self._changed:
            self.wanted, self.folder = multiple_of, folder
            self._changed.notify_all()

    def run(self, work: Work) -> None:
        with self._changed:
            self._works.append(work)
            self._changed.notify_all()

    def stop_training(self) -> None:
        self.stopping = True

    def over(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def rejoin(self) -> None:
        with self._changed:
            self._works.clear()
            self._joins += 1
            self.wanted = 0
        if self._done_at is not None:
            self._link.training_done(self._done_at)

    def failed(self, error: Exception) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    # --- any thread ---

    def leave(self) -> None:
        """Do no more: what is at work is given back. Safe in a signal handler."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._over or self._leaving or self.failure is not None

    def training_done(self, step: int) -> None:
        """This worker trains no more. From here on a version is wanted of it only if it is asked for the final one."""
        with self._changed:
            self.wanted = 0
        self._done_at = step
        self._link.training_done(step)

    def wait_for_request(self) -> bool:
        """Wait until the final version is wanted; False if evaluation is over. Raises what the link failed with."""
        with self._changed:
            self._changed.wait_for(lambda: self.wanted or self.ended)
            self.wanted = 0
            if self.failure is not None:
                raise self.failure
            return not self.ended

    # --- the thread that evaluates ---

    def works(self) -> Iterator[Work]:
        """What is to be done, as it comes, until evaluation is over. Raises what the link failed with."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._works or self.ended)
                if self.failure is not None:
                    raise self.failure
                if self.ended:
                    for work in self._works:
                        self._link.give_back(work.dataset, [work.task], None)
                    return
                work = self._works.popleft()
            yield work

    def do(self, work: Work) -> None:
        """Do one task. What the script's code raises comes out, and the task is not given back."""
        if self._model is None:
            self._model = self._make_model()
        state, results = "", dict[str, float]()
        joins = self._joins
        try:
            match work.what:
                case EvaluateShard():
                    state = self._evaluate(self._model, work.what)
                case MergeStates(states):
                    state, results = self._merge(states)
                case ExportVersion():
                    self._export(self._model, work.what)
        except _Leaves:
            self._link.give_back(work.dataset, [work.task], None)
            return
        if joins == self._joins:
            self._link.task_done(work, state, results)

    def do_or_give_back(self, work: Work) -> None:
        """Do one task beside the training, which an error in it must not end: the task's try counts as failed."""
        try:
            self.do(work)
        except Exception as error:  # noqa: BLE001  # whatever it is, the job hears of it with the task
            _log.exception("evaluation failed")
            self._link.give_back(work.dataset, [work.task], f"{type(error).__name__}: {error}")

    def _evaluate(self, model: EvaluatedModel, shard: EvaluateShard) -> str:
        model.load(shard.file)
        metrics = self._new_metrics()
        size = self._evaluation.batch_size
        for start in range(shard.start, shard.end, size):
            if self._leaving:
                raise _Leaves
            indices = range(start, min(start + size, shard.end))
            found = model.predict(collated(self._evaluation.dataset, indices, self._collate))
            for name, metric in metrics.items():
                if name not in found:
                    raise InvalidInput(f'evaluate: predict returned nothing for "{name}", only {", ".join(found)}')
                values = found[name]
                metric.update(*(values if isinstance(values, tuple) else (values,)))
        return _state_of(metrics)

    def _merge(self, states: tuple[str, ...]) -> tuple[str, dict[str, float]]:
        metrics = self._new_metrics()
        for state in map(json.loads, states):
            for name, metric in metrics.items():
                metric.merge(state[name])
        results = {name: float(metric.result()) for name, metric in metrics.items()}
        bounds = {f"{name}_error": float(one.error()) for name, one in metrics.items() if isinstance(one, Bounded)}
        return _state_of(metrics), {**bounds, **results}

    def _export(self, model: EvaluatedModel, export: ExportVersion) -> None:
        folder = Path(export.folder)
        folder.mkdir(parents=True, exist_ok=True)
        model.load(export.file)
        with beside(folder / ABOUT_FILE) as about, beside(folder / WEIGHTS_FILE) as weights:
            about.write_text(export.json + "\n")
            model.save(weights)
            # It stands there only with the weights it is about, which take their place first.
            (folder / ABOUT_FILE).unlink(missing_ok=True)

    def _new_metrics(self) -> dict[str, Metric]:
        return {name: copy.deepcopy(metric) for name, metric in self._evaluation.metrics.items()}


@contextmanager
def beside(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """A file beside this one, which takes its place once it is written; if it is to be lasting, to the disk."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield written
        if lasting:
            with written.open("rb") as file:
                os.fsync(file.fileno())
        written.rename(path)
    finally:
        written.unlink(missing_ok=True)


def _state_of(metrics: Mapping[str, Metric]) -> str:
    state = json.dumps({name: metric.state() for name, metric in metrics.items()})
    check_state(state)
    return state
