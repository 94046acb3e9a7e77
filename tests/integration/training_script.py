"""The training script of the tests: small models of every kind, and faults at a named rank, step and phase."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elastane
from elastane.model.world import Place
from elastane.torch.trainer import Trainer
from tests.training_faults import TrainingFault, add_training_faults, arm

FEATURES = 8


class Samples:
    """Sample `i` is made of its number, so that every worker sees the same data."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size = size
        self.dtype = dtype

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(FEATURES, generator=generator, dtype=torch.float64).to(self.dtype)
        return features, features.sum()[None], index


class Counter(nn.Module):
    """Its parameter shows how often each sample was in a step: with SGD and lr 1 each adds its share of one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(size, dtype=torch.float64))


class Net(nn.Module):
    def __init__(self, cases: list[str]) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.norm = nn.BatchNorm1d(16) if "batch-norm" in cases else nn.Identity()
        self.middle = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        if "tied" in cases:
            self.tied.weight = self.middle.weight
        self.unused = nn.Linear(4, 4)
        self.last = nn.Linear(16, 1)
        if "frozen" in cases:
            self.first.requires_grad_(False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(features)))
        hidden = torch.tanh(self.middle(hidden)) + torch.tanh(self.tied(hidden))
        answer: torch.Tensor = self.last(hidden)
        return answer


def optimizer_of(name: str, parameters: Any) -> torch.optim.Optimizer:
    match name:
        case "sgd-momentum":
            return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.01)
        case "adam":
            return torch.optim.Adam(parameters, lr=0.01, amsgrad=True)
        case "adafactor":
            return torch.optim.Adafactor(parameters, lr=0.01)
        case "own-optimizer":
            return OwnOptimizer(parameters, lr=0.01)
        case _:
            return torch.optim.AdamW(parameters, lr=0.01)


class OwnOptimizer(torch.optim.SGD):
    """An optimizer that elastane knows nothing about."""


class Until:
    """Ends the job once a worker has seen different worlds of the given sizes, after all faults; the others follow."""

    def __init__(self, job: elastane.Job, wanted: list[int], faults: list[TrainingFault]) -> None:
        self._wanted = list(wanted or [])
        self._faults = [fault.mark(job) for fault in faults]
        self._steps = 0
        self._seen = 0
        self._mark = Path(os.environ.get("ELASTANE_STATE_DIR", ".")) / f"{job.node.rsplit('-', 2)[0]}-reached"

    def reached(self, place: Place) -> bool:
        fits = self._wanted and place.size == self._wanted[0] and place.version != self._seen
        self._steps = self._steps + 1 if fits else 0
        if self._steps == 10:
            self._wanted.pop(0)
            self._steps = 0
            self._seen = place.version
        if not self._wanted and all(fault.exists() for fault in self._faults):
            self._mark.touch()
        return self._mark.exists()


def write_losses(path: Path, step: int, samples: list[int], losses: list[float]) -> None:
    lines = "".join(f"{step} {sample} {loss!r}\n" for sample, loss in zip(samples, losses, strict=True))
    with path.open("a") as file:
        file.write(lines)


def show_state(trainer: Trainer) -> None:
    found = trainer._saving._found
    print(f"state {trainer._replica.checksum(between_rounds=True)} restored from {found and found.path}")


def sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", default="adamw", help="an optimizer, and what else is to be special, by commas")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--global-batch-size", type=int)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--losses", type=Path, help="append a line for each sample: its step, its number and its loss")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", help="for tensors on GPUs: nccl, or gloo for two workers on one GPU")
    parser.add_argument("--checkpoint", type=Path, help="a folder of checkpoints")
    parser.add_argument("--save-every-steps", type=int)
    parser.add_argument("--quit-after", type=int, help="the worker that is rank 1 then leaves after so many batches")
    parser.add_argument("--until", type=sizes, help="end after ten steps in worlds of these sizes, one after the other")
    add_training_faults(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0 if options.losses else os.getpid())
    cases = options.case.split(",")
    dtype = torch.float64 if options.double else torch.float32
    model = Net(cases).to(options.device, dtype)
    counter = Counter(options.samples).to(options.device)
    optimizer = optimizer_of(cases[0], model.parameters())
    counting = {"params": [counter.seen], "lr": 1.0, "weight_decay": 0.0}
    if "exactly-once" in cases:
        optimizer = torch.optim.SGD([{"params": list(model.parameters()), "lr": 0.01}, counting])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50) if "scheduler" in cases else None
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5) if "scaler" in cases else None
    with elastane.join() as job:
        trainer = job.trainer(
            nn.ModuleList([model, counter]),
            optimizer,
            scheduler,
            clip_grad_norm=0.5 if "clipping" in cases else None,
            global_batch_size=options.global_batch_size,
            grad_scaler=scaler,
            deterministic=options.deterministic,
            backend=options.backend,
            checkpoint=options.checkpoint,
            save_every_steps=options.save_every_steps,
        )
        arm(job, trainer, options.fault)
        until = Until(job, options.until, options.fault)
        data = Samples(options.samples, dtype)
        for number, (features, targets, indices) in enumerate(
            job.batches(data, options.batch_size, epochs=options.epochs, shuffle=True)
        ):
            losses = (model(features.to(options.device)) - targets.to(options.device)).square().squeeze(1)
            loss = losses.mean()
            if options.losses is not None:
                write_losses(options.losses, job.step, indices.tolist(), losses.tolist())
            if "exactly-once" in cases:
                # One sample's share of the step: its gradient times the samples of the step is 1, whoever took it.
                loss = loss - counter.seen[indices].mean()
            if "accumulation" in cases and number % 3:
                trainer.backward(loss)
            else:
                trainer.step(loss)
            time.sleep(options.step_ms / 1000)
            if (number == options.quit_after and job.rank == 1) or (options.until and until.reached(trainer.place)):
                break
        print(f"steps {job.step}")
        show_state(trainer)
        if "exactly-once" in cases and not job.draining:
            seen = counter.seen.detach() * options.global_batch_size
            print(f"seen {seen.min().item():.9f} to {seen.max().item():.9f}")


if __name__ == "__main__":
    main()
