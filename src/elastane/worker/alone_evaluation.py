"""Evaluation of a worker without a launcher: the rules of `core.evaluation` in this process."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
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
from elastane.model.errors import EvaluationFailed
from elastane.model.evaluation import (
    EvaluateShard,
    EvaluationSpec,
    ExportVersion,
    MergeStates,
    Work,
    about_version,
    version_file,
)
from elastane.model.ids import DatasetName, TaskId
from elastane.worker.link import EvaluationFollower

_log = logging.getLogger("elastane.evaluation")


class AloneEvaluations:
    """The master's part, for one worker that evaluates by itself. Its threads take turns."""

    def __init__(self, spec: EvaluationSpec, follower: EvaluationFollower) -> None:
        self._follower = follower
        self._temporary = tempfile.TemporaryDirectory(prefix="elastane-versions-")
        self._folder = Path(self._temporary.name)
        self._rules = Evaluations(spec, time.monotonic())
        self._tasks = 0
        self._turn = threading.RLock()
        self._timer: threading.Timer | None = None
        self._carry_out(self._rules.begin(time.monotonic()))

    def version_written(self, step: int, error: str) -> None:
        with self._turn:
            if not error:
                self._carry_out(self._rules.taken(step, time.monotonic()))
            else:
                _log.warning("step %d could not be written: %s", step, error)
                self._carry_out(self._rules.no_final(time.monotonic()))

    def task_done(self, work: Work, state: str, metrics: Mapping[str, float]) -> None:
        with self._turn:
            match work.what:
                case EvaluateShard():
                    self._run(MergeStates((state,)))
                case MergeStates():
                    self._carry_out(self._rules.evaluated(self._rules.running or 0, metrics, time.monotonic()))
                case ExportVersion():
                    self._carry_out(self._rules.exported(time.monotonic()))

    def failed(self, error: str | None) -> None:
        """A task was given back. Alone there is nobody else to try it: with an error, training ends with it."""
        if error is not None:
            self._follower.failed(EvaluationFailed(error))

    def training_done(self, step: int) -> None:
        with self._turn:
            self._carry_out(self._rules.training_ended(step, time.monotonic()))

    def close(self) -> None:
        with self._turn:
            if self._timer is not None:
                self._timer.cancel()
        self._temporary.cleanup()

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Take(multiple_of):
                    self._follower.take_version(multiple_of, str(self._folder))
                case TakeFinal():
                    self._follower.take_version(1, str(self._folder))
                case Evaluate(step):
                    self._run(EvaluateShard(self._file(step), 0, self._rules.spec.size))
                case Finished(result, best):
                    _log.info("step %d%s: %s", result.step, " (the best)" if best else "", result.metrics)
                case Drop(step):
                    Path(self._file(step)).unlink(missing_ok=True)
                case StopTraining(evaluations):
                    _log.info("training stops: no better for %d evaluations", evaluations)
                    self._follower.stop_training()
                case Export(result):
                    about = about_version(result, self._rules.spec.best)
                    self._run(ExportVersion(self._file(result.step), self._rules.spec.export or "", about))
                case Over():
                    self._follower.over()
        self._set_timer()

    def _run(self, what: EvaluateShard | MergeStates | ExportVersion) -> None:
        self._tasks += 1
        self._follower.run(Work(DatasetName("evaluation"), TaskId(self._tasks), what))

    def _file(self, step: int) -> str:
        return str(self._folder / version_file(step))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := self._rules.next_tick()) is not None:
            self._timer = threading.Timer(max(0.0, due - time.monotonic()), self._tick)
            self._timer.daemon = True
            self._timer.start()

    def _tick(self) -> None:
        with self._turn:
            self._carry_out(self._rules.tick(time.monotonic()))
