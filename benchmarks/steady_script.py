"""Trains the same model by elastane and without it, in turns, and writes down what each step cost."""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import elastane

LAYERS = 3


def block(step: Callable[[], None], steps: int, device: str) -> tuple[float, float]:
    """Wall and CPU milliseconds of a step."""
    _wait(device)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    _wait(device)
    return 1000 * (time.perf_counter() - wall) / steps, 1000 * (time.process_time() - cpu) / steps


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def mlp(parameters: int) -> nn.Module:
    width = round(math.sqrt(parameters / LAYERS))
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Transformer(nn.Module):
    """About 124 million parameters, in the shape of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50304, 768)
        self.places = nn.Embedding(1024, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 50304, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        answer: Tensor = self.head(self.layers(hidden))
        return answer


def main() -> None:  # noqa: PLR0915  # one straight story
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = options.device
    torch.manual_seed(0)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        model: nn.Module = Transformer().to(device)
        batch = torch.randint(50304, (32, 512), device=device)
        targets = torch.randint(50304, (32 * 512,), device=device)
    else:
        torch.set_num_threads(1)
        model = mlp(options.parameters)
        width = round(math.sqrt(options.parameters / LAYERS))
        size = {1_000_000: 512}.get(options.parameters, 64)
        batch, targets = torch.randn(size, width), torch.randint(width, (size,))

    def loss_of(of: nn.Module) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            answers = of(batch)
        return nn.functional.cross_entropy(answers.flatten(0, -2).float(), targets)

    with elastane.join() as job:
        other = copy.deepcopy(model)
        adam = torch.optim.Adam(model.parameters(), lr=1e-5)
        other_adam = torch.optim.Adam(other.parameters(), lr=1e-5)
        trainer = job.trainer(model, adam)
        trainer.sync()
        if job.world_size > 1:
            store = torch.distributed.FileStore(  # type: ignore[attr-defined]
                str(Path(os.environ["ELASTANE_STATE_DIR"]) / "ddp-store"), 2
            )
            torch.distributed.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world_size)
            other = nn.parallel.DistributedDataParallel(other)

        def with_elastane() -> None:
            trainer.step(loss_of(model))

        def without() -> None:
            loss_of(other).backward()  # type: ignore[no-untyped-call]
            other_adam.step()
            other_adam.zero_grad()

        turns = {"elastane": with_elastane, "other": without, "again": without}
        for step in turns.values():
            block(step, 5, device)
        found = []
        for number in range(options.blocks):
            names = list(turns)[number % 3 :] + list(turns)[: number % 3]
            times = {name: block(turns[name], options.steps, device) for name in names}
            figures = {
                f"{name}_{kind}_ms": times[name][place] for name in times for place, kind in enumerate(("wall", "cpu"))
            }
            for place, kind in enumerate(("wall", "cpu")):
                figures[f"{kind}_ratio"] = times["elastane"][place] / times["other"][place]
                figures[f"{kind}_ratio_of_noise"] = times["again"][place] / times["other"][place]
            found.append(figures)
        if job.rank == 0:
            options.out.write_text(json.dumps(found))
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
