"""Trains a model in blocks of steps, with and without evaluation in turn, and writes down what each step cost."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elastane

WIDTH, BATCH = 512, 256


class Inputs:
    """Samples that cost nothing to make, so that the model is what takes the time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows = torch.randn(1024, WIDTH)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index % len(self._rows)]


def predict(model: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
    return {"loss": model(batch).square().mean(1)}


def block(step: Callable[[], None], steps: int) -> float:
    """Milliseconds of a step."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return 1000 * (time.perf_counter() - began) / steps


def finished() -> list[dict[str, Any]]:
    """The evaluations so far, as the master has written them down."""
    folder = Path(os.environ["ELASTANE_STATE_DIR"]) / "jobs" / "job" / "logs" / "master.log"
    lines = [json.loads(line) for line in folder.read_text().splitlines()]
    return [line for line in lines if line["event"] == "evaluation_finished"]


class Gate:
    """Lets evaluation run only in every other block: a batch of it waits while the gate is shut."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        self._path.touch()

    def shut(self) -> None:
        self._path.unlink(missing_ok=True)

    def passed(self) -> None:
        while not self._path.exists():
            time.sleep(0.001)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True, help="how many are evaluated")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--never", action="store_true", help="evaluate nothing: what is left is noise")
    parser.add_argument("--stranger", action="store_true", help="compute on the last core, without a part in the job")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gate = Gate(options.out.with_name("gate"))
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)

    def gated(of: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
        gate.passed()
        return predict(of, batch)

    if options.stranger:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        while True:
            gated(model, torch.randn(BATCH, WIDTH))

    evaluation = elastane.Evaluation(
        Inputs(options.samples),
        batch_size=BATCH,
        predict=gated,
        metrics={"loss": elastane.Mean()},
        every_steps=None if options.never else 5,
        at_end=False,
    )
    inputs = torch.randn(BATCH, WIDTH)
    with elastane.join() as job:
        trainer = job.trainer(model, optimizer, evaluate=evaluation)
        trainer.sync()

        def step() -> None:
            trainer.step(model(inputs).square().mean())

        gate.open()
        while not options.never and not finished():
            block(step, 10)  # Until the evaluator has started, and has evaluated once.
        block(step, options.steps)
        found = []
        for number in range(options.blocks):
            times = {}
            before = len(finished())
            for name in ("with", "without") if number % 2 else ("without", "with"):
                gate.open() if name == "with" else gate.shut()
                block(step, 5)
                times[name] = block(step, options.steps)
            found.append(
                {
                    "with_ms": times["with"],
                    "without_ms": times["without"],
                    "ratio": times["with"] / times["without"],
                    "evaluations": float(len(finished()) - before),
                }
            )
        gate.open()
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
