"""A DistributedDataParallel script as torchrun's users write it; it knows nothing of elastane, which only brings its
workers together:

    elastane run --no-task-manager --workers 2 \
        --worker-command "torchrun --rdzv-backend=elastane --nnodes=1:2 --max-restarts=3 examples/ddp.py"

torchrun starts all workers again whenever one is lost or comes, so the script keeps a snapshot, and goes on from it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a line, with a snapshot every ten steps.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--snapshot", type=Path, default=Path("ddp-snapshot.pt"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if options.snapshot.exists():
        saved = torch.load(options.snapshot, weights_only=True)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    for step in range(first, options.steps):
        inputs = torch.rand(32, 1)
        loss = nn.functional.mse_loss(model(inputs), 3 * inputs + 1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            beside = options.snapshot.with_suffix(".new")
            torch.save({"model": model.state_dict(), "step": step + 1}, beside)
            beside.rename(options.snapshot)
            print(f"step {step + 1}, {dist.get_world_size()} workers: loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
