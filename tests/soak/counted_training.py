"""The training script of the soak: a small model, and a parameter that counts in how many steps each sample was."""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import torch
from torch import nn

import elastane

FEATURES = 8
COUNTED_TO = 1e-6


class Samples:
    """Sample `i` is made of its number, so that every worker sees the same data."""

    def __init__(self, size: int) -> None:
        self._features = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self._features[index], self._features[index].sum()[None], index


class Counted(nn.Module):
    """A net with statistics of its own, and the count of samples."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.seen = nn.Parameter(torch.zeros(size, dtype=torch.float64))


def optimizer_of(model: Counted, *, fixed_batch: bool) -> torch.optim.Optimizer:
    """An optimizer that adds the same to a sample's count with each step that it is in.

    The gradient of a sample's count is its share of the step. If all steps have equally many samples, shares can be
    added up, and a sample that is twice in one step shows too. If not, Adam without a memory makes them 1.
    """
    if fixed_batch:
        net = {"params": list(model.net.parameters()), "lr": 0.01, "momentum": 0.9}
        return torch.optim.SGD([net, {"params": [model.seen], "lr": 1.0}])
    net = {"params": list(model.net.parameters()), "lr": 0.001}
    return torch.optim.Adam([net, {"params": [model.seen], "lr": 1.0, "betas": (0.0, 0.0), "eps": 1e-30}])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int)
    parser.add_argument("--step-ms", type=float, required=True, help="how long a step takes at most, before the calm")
    parser.add_argument("--calm", type=Path, required=True, help="once this file is there, train as fast as can be")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    rng = random.Random(os.getpid())
    model = Counted(options.samples)
    optimizer = optimizer_of(model, fixed_batch=options.global_batch_size is not None)
    with elastane.join() as job:
        trainer = job.trainer(model, optimizer, global_batch_size=options.global_batch_size)
        batches = job.batches(Samples(options.samples), options.batch_size, epochs=options.epochs, shuffle=True)
        for features, targets, indices in batches:
            # A world of many leaves one with a single sample now and then, which has no statistics.
            model.train(len(features) > 1)
            loss = nn.functional.mse_loss(model.net(features), targets) - model.seen[indices].mean()
            if not options.calm.exists():
                time.sleep(rng.uniform(0, options.step_ms / 1000))
            trainer.step(loss)
        if trainer.steps and not job.draining:
            counts = model.seen.detach() * (options.global_batch_size or 1)
            wrong = int(((counts - options.epochs).abs() > COUNTED_TO).sum())
            print(f"wrong counts: {wrong}, from {counts.min():.6f} to {counts.max():.6f}; steps {trainer.steps}")


if __name__ == "__main__":
    main()
