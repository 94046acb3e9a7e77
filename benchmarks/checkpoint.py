"""What a checkpoint of 200 MB (model and Adam) costs the training thread, beside PyTorch's own ways to save.

One model is trained by one worker, and saved in turns by elastane, by `torch.distributed.checkpoint.async_save` and by
`torch.save`. For each save:

- call: how long the call took that saves.
- stretched: how much longer the steps after it took, until the checkpoint was on disk and at least eight, than the
  eight before it.
- lost: both together.

With one thread for PyTorch, one of two cores is free for what is done beside the training; with two, none is.

    python -m benchmarks.checkpoint
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import elastane
from benchmarks.report import Report, parser
from elastane.model.environment import ENV_MEMORY
from elastane.torch.trainer import Trainer

LAYERS, WIDTH = 8, 1444
"""16.7 million parameters: 67 MB, and 200 MB with Adam's moments."""

FEWEST_STEPS = 8

Save = Callable[[Trainer, Path], "Future[Any] | None"]


def by_elastane(trainer: Trainer, folder: Path) -> Future[Any] | None:
    del folder  # It has one since the trainer was made.
    return trainer.save()


def by_async_save(trainer: Trainer, folder: Path) -> Future[Any] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saving: Any = dcp.async_save(trainer.state_dict(), checkpoint_id=folder)  # type: ignore[attr-defined]
    future: Future[Any] = saving
    return future


def by_torch_save(trainer: Trainer, folder: Path) -> Future[Any] | None:
    folder.mkdir()
    torch.save(trainer.state_dict(), folder / "state.pt")
    return None


SYSTEMS: dict[str, Save] = {
    "elastane": by_elastane,
    "torch.distributed.checkpoint.async_save": by_async_save,
    "torch.save": by_torch_save,
}


class Training:
    """A model that is trained, step by step."""

    def __init__(self, job: elastane.Job, checkpoints: Path, batch_size: int) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
        self._batch = torch.randn(batch_size, WIDTH)
        optimizer = torch.optim.Adam(self._model.parameters())
        self.trainer = job.trainer(self._model, optimizer, checkpoint=checkpoints, save_every_s=1e9, keep=1)
        self.trainer.sync()

    def step(self) -> float:
        """Make one; the answer is how many seconds it took."""
        begin = time.perf_counter()
        self.trainer.step(self._model(self._batch).square().mean())
        return time.perf_counter() - begin


def measure(training: Training, save: Save, folder: Path) -> dict[str, float]:
    """One save, in milliseconds."""
    quiet = [training.step() for _ in range(FEWEST_STEPS)]
    begin = time.perf_counter()
    saving = save(training.trainer, folder)
    call = time.perf_counter() - begin
    steps: list[float] = []
    while len(steps) < FEWEST_STEPS or not (saving is None or saving.done()):
        steps.append(training.step())
    if saving is not None:
        saving.result()
    stretched = sum(steps) - len(steps) * statistics.mean(quiet)
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()  # What one wrote is not to be another's burden.
    return {
        "call_ms": 1000 * call,
        "stretched_ms": 1000 * stretched,
        "lost_ms": 1000 * (call + stretched),
        "step_ms": 1000 * statistics.mean(quiet),
        "steps": len(steps),
    }


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--repeats", type=int, default=9)
    options_parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    options_parser.add_argument("--batch-size", type=int, default=128)
    options = options_parser.parse_args()
    report = Report()
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # async_save wants one
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        os.environ[ENV_MEMORY] = memory  # As a node agent sets it.
        with elastane.join() as job:
            training = Training(job, Path(name) / "elastane", options.batch_size)
            for threads in options.threads:
                torch.set_num_threads(threads)
                for repeat in range(-2, 1 if options.quick else options.repeats):
                    for what, save in SYSTEMS.items():
                        found = measure(training, save, Path(name) / "other")
                        if repeat >= 0:  # The first ones take memory that later ones use again.
                            report.row(what, threads=threads).add(**found)
    dist.destroy_process_group()
    report.show(options.json)


if __name__ == "__main__":
    main()
