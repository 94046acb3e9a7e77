"""A plain DistributedDataParallel script, as torchrun's users write them: it knows nothing of elastane.

It keeps a snapshot after every step, and starts from it. Faults strike at named steps: before step `--kill-at` a worker
that has VICTIM in its environment kills its agent and itself; before a step `--company-at` a worker that is alone waits
to be restarted among others; before step `--crash-at` the worker of rank 1 exits with an error, the first time.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save(model: torch.nn.Module, step: int, path: Path) -> None:
    beside = path.with_suffix(".new")
    torch.save({"model": model.state_dict(), "step": step}, beside)
    beside.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--snapshot", type=Path, required=True)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--company-at", type=int, action="append", default=[])
    parser.add_argument("--crash-at", type=int)
    options = parser.parse_args()
    crashed = options.snapshot.with_suffix(".crashed")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(4, 1)
    first = 0
    if options.snapshot.exists():
        saved = torch.load(options.snapshot, weights_only=True)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    print(f"starts rank={rank} size={size} step={first}", flush=True)
    for step in range(first, options.steps):
        if step == options.kill_at and os.environ.get("VICTIM"):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if step in options.company_at and size == 1:
            print("waits for company", flush=True)
            while True:
                signal.pause()
        if step == options.crash_at and rank == 1 and not crashed.exists():
            crashed.touch()
            sys.exit(3)
        data = torch.full((2, 4), 1.0 + rank)
        loss = ddp(data).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            save(model, step + 1, options.snapshot)
    print(f"ends rank={rank} size={size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
