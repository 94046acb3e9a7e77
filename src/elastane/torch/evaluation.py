"""Evaluation of a PyTorch model while it trains: versions are written from snapshots, and loaded where they are wanted.

On an evaluator, the model of the script is the one that is evaluated. A worker evaluates in a thread of its own, with a
copy of the model, so that no step waits for it.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from elastane.model.errors import InvalidInput
from elastane.model.evaluation import version_file
from elastane.torch.collate import collate
from elastane.torch.snapshot import Snapshot
from elastane.worker.evaluation import Evaluation, EvaluationClient, beside
from elastane.worker.link import Link

if TYPE_CHECKING:
    from elastane.torch.ps_trainer import PSTrainer
    from elastane.torch.trainer import Trainer

THREADS_END_S = 10.0

_log = logging.getLogger("elastane.torch")


class TorchModel:
    """An EvaluatedModel in PyTorch."""

    def __init__(self, model: nn.Module, predict: Callable[[Any, Any], Mapping[str, Any]]) -> None:
        self._model = model.eval()
        self._predict = predict
        self._loaded = ""

    def load(self, file: str) -> None:
        if file == self._loaded:
            return
        self._loaded = ""  # Until all of it is there.
        places: dict[str, Tensor] = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        found = load_file(file)
        if odd := sorted(places.keys() ^ found.keys()):
            raise InvalidInput(f"evaluate: the model here has other tensors than the one that trains: {odd[0]}")
        with torch.no_grad():
            for name, tensor in found.items():
                places[name].copy_(tensor)
        self._loaded = file

    def predict(self, batch: Any) -> Mapping[str, Any]:
        with torch.inference_mode():
            found = self._predict(self._model, batch)
        return {name: _to_arrays(values) for name, values in found.items()}

    def save(self, file: Path) -> None:
        # Copied, for a file cannot hold one tensor under two names.
        weights = {name: value.detach().cpu().clone() for name, value in self._model.state_dict().items()}
        file.write_bytes(save(weights))


class EvaluatorNode:
    """The part of a node that only evaluates."""

    def __init__(self, link: Link, model: nn.Module, evaluation: Evaluation) -> None:
        self._client = EvaluationClient(link, evaluation, lambda: TorchModel(model, evaluation.predict), collate)

    def leave(self) -> None:
        """Do no more. Safe in a signal handler."""
        self._client.leave()

    def run(self) -> None:
        """Evaluate until evaluation is over, or this node leaves."""
        for work in self._client.works():
            self._client.do(work)

    def finish(self) -> None:
        """There is nothing to wait for."""

    def join_threads(self) -> None:
        """There are none."""


class WorkerEvaluation:
    """The part of a worker: it writes versions when it is the first, and evaluates if there is nobody else to do it."""

    def __init__(
        self,
        link: Link,
        trainer: Trainer | PSTrainer,
        model: nn.Module,
        evaluation: Evaluation,
        *,
        every_worker_writes: bool = False,
    ) -> None:
        self._link = link
        self._trainer = trainer
        self._every_worker_writes = every_worker_writes
        # A copy of a model can be made only while nothing runs through it, so it is made now if it may be needed.
        spare = None if link.has_evaluators else copy.deepcopy(model)
        self._client = EvaluationClient(
            link, evaluation, lambda: TorchModel(spare or copy.deepcopy(model), evaluation.predict), collate
        )
        self._steps = 0
        self._writer: threading.Thread | None = None
        self._thread = threading.Thread(target=self._evaluate, name="elastane-evaluation", daemon=True)
        self._thread.start()
        trainer.after_round.append(self._after_round)

    def leave(self) -> None:
        """Do no more. Safe in a signal handler."""
        self._client.leave()

    def finish(self) -> None:
        """Training has ended on this worker, and it is out of the world: stay until evaluation is over."""
        client = self._client
        self._join_writer()
        client.training_done(self._trainer.steps)
        while client.wait_for_request():
            self._write(self._trainer.snapshots.take(model_only=True), client.folder)

    def join_threads(self) -> None:
        """After the link is closed: let nothing run on when Python ends."""
        self._client.leave()
        self._join_writer()
        self._thread.join(THREADS_END_S)

    def _after_round(self) -> None:
        """Between two rounds, in the training thread."""
        client, steps = self._client, self._trainer.steps
        if client.failure is not None:
            raise client.failure
        if client.stopping:
            self._trainer.give_notice()
        if steps == self._steps:
            return
        self._steps = steps
        if client.wanted and steps % client.wanted == 0 and not self._is_writing and self._writes(steps):
            snapshot = self._trainer.snapshots.take(model_only=True)
            self._writer = threading.Thread(
                target=self._write, args=(snapshot, client.folder), name="elastane-version", daemon=True
            )
            self._writer.start()

    def _writes(self, steps: int) -> bool:
        """Whether it is for this worker to write the version after so many steps."""
        if self._every_worker_writes:
            return not (Path(self._client.folder) / version_file(steps)).exists()
        return self._trainer.place.rank == 0

    @property
    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _join_writer(self) -> None:
        if self._writer is not None:
            self._writer.join(THREADS_END_S)

    def _write(self, taken: Future[Snapshot], folder: str) -> None:
        snapshot = taken.result()
        error = ""
        try:
            with beside(Path(folder) / version_file(snapshot.steps), lasting=False) as path:
                path.write_bytes(snapshot.model.data.numpy().data)
        except OSError as problem:
            error = f"{type(problem).__name__}: {problem}"
        self._link.version_written(snapshot.steps, error)

    def _evaluate(self) -> None:
        stand_back()
        try:
            for work in self._client.works():
                self._client.do_or_give_back(work)
        except Exception:
            # The link is gone: the training thread hears of it too.
            if self._client.failure is None:
                raise


def stand_back() -> None:
    """Let this thread have a tenth of the cores that the training wants, and all that it does not want."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _to_arrays(values: Any) -> Any:
    if isinstance(values, tuple):
        return tuple(_to_arrays(value) for value in values)
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    # NumPy does not know all that PyTorch computes in.
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
