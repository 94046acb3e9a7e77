"""What every system trains: the same model, data, batch and step, and the file that says when a step was finished."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

_LAYERS = 3
_SAMPLES = 4096
# Batches that make a step of two workers on two cores take about 0.06 s and 0.25 s.
_BATCH = {1_000_000: 512, 10_000_000: 64}


@dataclass(frozen=True)
class Workload:
    """A model of about so many parameters, and how it is trained."""

    parameters: int

    @property
    def width(self) -> int:
        return round(math.sqrt(self.parameters / _LAYERS))

    @property
    def batch_size(self) -> int:
        return _BATCH.get(self.parameters, 64)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(_LAYERS):
            layers += [nn.Linear(self.width, self.width), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-4)

    def dataset(self) -> Samples:
        return Samples(self.width)

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches without end, for the systems that leave the data to their user."""
        order = torch.Generator().manual_seed(seed)
        loader = DataLoader(self.dataset(), self.batch_size, shuffle=True, drop_last=True, generator=order)
        while True:
            yield from loader


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random vectors with random labels."""

    def __init__(self, width: int) -> None:
        source = torch.Generator().manual_seed(1)
        self._vectors = torch.randn(_SAMPLES, width, generator=source)
        self._labels = torch.randint(width, (_SAMPLES,), generator=source)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._vectors[index], self._labels[index]


def loss_of(model: nn.Module, vectors: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(vectors), labels)


class StepLog:
    """One line for each step of this worker."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._file = (folder / f"{worker}.jsonl").open("a")

    def finished(self, step: int, world: int) -> None:
        """Step number `step`, counted from 1 over the whole job, has been applied in a world of this size."""
        self._write(step, world, done=True)

    def dropped(self, step: int, world: int) -> None:
        """A batch was computed, and given up."""
        self._write(step, world, done=False)

    def _write(self, step: int, world: int, *, done: bool) -> None:
        line = {"time": time.time(), "pid": os.getpid(), "step": step, "world": world, "done": done}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def parser() -> argparse.ArgumentParser:
    """The options of every training script."""
    made = argparse.ArgumentParser()
    made.add_argument("--parameters", type=int, required=True)
    made.add_argument("--steps-folder", type=Path, required=True, help="where a worker writes when it finished a step")
    torch.set_num_threads(1)
    return made
