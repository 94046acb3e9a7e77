"""The script of the evaluation tests: a small classifier, evaluated while it trains."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elastane
from tests.faults import kill_master

FEATURES = 8


class Samples:
    """Sample `i` is made of its number, so that every node sees the same data."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.size = size
        self.first = first

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.first + index)
        features = torch.randn(FEATURES, generator=generator)
        return features, int(features.sum() + torch.randn(1, generator=generator) > 0)


class Doubtful(elastane.Mean):
    """A metric of the user's own: the share of samples that the model is unsure of."""

    def update(self, scores: Any) -> None:  # type: ignore[override]
        super().update(abs(scores - 0.5) < 0.1)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def predict(model: nn.Module, batch: Any) -> dict[str, Any]:
    features, labels = batch
    logits = model(features).squeeze(1)
    scores = torch.sigmoid(logits)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
    return {
        "loss": losses,
        "accuracy": ((scores > 0.5).long(), labels),
        "auc": (scores, labels),
        "doubtful": scores,
    }


def metrics() -> dict[str, elastane.Metric]:
    return {
        "loss": elastane.Mean(),
        "accuracy": elastane.Accuracy(),
        "auc": elastane.AUC(),
        "doubtful": Doubtful(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--evaluated", type=int, default=500)
    parser.add_argument("--every-steps", type=int)
    parser.add_argument("--every-s", type=float)
    parser.add_argument("--best")
    parser.add_argument("--early-stop", type=int)
    parser.add_argument("--export")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--kill", help="the node of this name kills itself in its third batch of evaluation")
    parser.add_argument("--kill-master", help="the node of this name kills the master in its third batch of evaluation")
    parser.add_argument("--fail", action="store_true", help="evaluation raises an error")
    parser.add_argument("--trained", type=Path, help="the steps' weights are saved here, by rank 0, for comparison")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    batches = 0

    def with_faults(of: nn.Module, batch: Any) -> dict[str, Any]:
        nonlocal batches
        batches += 1
        if options.fail:
            raise ValueError("planted")
        if batches == 3:
            node = os.environ["ELASTANE_NODE"]
            if node.endswith(f"-{options.kill_master}"):
                kill_master()
            if node.endswith(f"-{options.kill}"):
                os.kill(os.getpid(), signal.SIGKILL)
        return predict(of, batch)

    evaluation = elastane.Evaluation(
        Samples(options.evaluated, first=1_000_000),
        batch_size=16,
        predict=with_faults,
        metrics=metrics(),
        every_steps=options.every_steps,
        every_s=options.every_s,
        best=options.best,
        early_stop=options.early_stop,
        export=options.export,
    )
    with elastane.join() as job:
        trainer = job.trainer(model, optimizer, evaluate=evaluation)
        for features, labels in job.batches(Samples(options.samples), batch_size=8, shuffle=True):
            logits = model(features).squeeze(1)
            trainer.step(nn.functional.binary_cross_entropy_with_logits(logits, labels.float()))
            if options.trained is not None and job.rank == 0 and job.step % (options.every_steps or 1) == 0:
                torch.save(model.state_dict(), options.trained / f"{job.step}.pt")
            time.sleep(options.step_ms / 1000)
        if options.trained is not None and job.rank == 0:
            torch.save(model.state_dict(), options.trained / f"{job.step}.pt")
        print(json.dumps({"steps": job.step, "stopped": job.draining}))


if __name__ == "__main__":
    main()
