"""The training script under torchrun: every change of the membership starts all workers anew, from the checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.membership_systems.workload import StepLog, Workload, loss_of, parser


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write beside and rename, so that a restart in the middle finds the checkpoint before."""
    beside = path.with_suffix(".next")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
    beside.rename(path)


def main() -> None:
    made = parser()
    made.add_argument("--worker", required=True)
    made.add_argument("--checkpoint", type=Path, required=True)
    made.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    options = made.parse_args()
    workload, log = Workload(options.parameters), StepLog(options.steps_folder, options.worker)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = workload.model()
    optimizer = workload.optimizer(model)
    step = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    parallel = DistributedDataParallel(model)
    for vectors, labels in workload.batches(seed=rank):
        optimizer.zero_grad()
        loss_of(parallel, vectors, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        log.finished(step, world)
        if rank == 0 and step % options.save_every == 0:
            save(options.checkpoint, model, optimizer, step)


if __name__ == "__main__":
    main()
