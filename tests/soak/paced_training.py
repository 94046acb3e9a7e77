"""The training script of the masters' soak: steps at an even pace, each written down with its time."""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
from torch import nn

import elastane

FEATURES = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--times", type=Path, required=True, help="the folder for a file with the time of each step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(options.steps * options.global_batch_size, FEATURES)
    with elastane.join() as job, (options.times / job.node).open("w") as times:
        trainer = job.trainer(model, optimizer, global_batch_size=options.global_batch_size, deterministic=True)
        for features in job.batches(data, options.global_batch_size // 2, shuffle=True):
            time.sleep(options.step_ms / 1000)
            trainer.step((model(features) - features.sum(1, keepdim=True)).square().mean())
            times.write(f"{job.step} {time.time()}\n")
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        print(f"weights {hashlib.blake2b(weights, digest_size=8).hexdigest()} after {job.step} steps")


if __name__ == "__main__":
    main()
