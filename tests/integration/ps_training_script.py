"""A small model on parameter servers learns which ids are liked, by an embedding and a dense part."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import elastane
from tests.faults import add_faults, inject

IDS, FIELDS, BATCH = 200, 4, 50


class Tastes:
    """Samples of a few ids each; every id is liked or not."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, IDS, (samples, FIELDS), generator=generator)
        taste = torch.randn(IDS, generator=generator)
        self.liked = (taste[self.ids].sum(1) > 0).float()

    def __len__(self) -> int:
        return len(self.liked)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.ids[index], self.liked[index]


class Model(nn.Module):
    def __init__(self, job: elastane.Job) -> None:
        super().__init__()
        self.rows = job.embedding("rows", 8, elastane.adagrad(0.2))
        self.out = nn.Linear(8 * FIELDS, 1)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.out(self.rows(ids).flatten(1)).squeeze(1)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--ahead", action="store_true")
    parser.add_argument("--scaled", action="store_true", help="the learning rate shrinks with the staleness")
    parser.add_argument("--until", type=Path, help="take time for every step until this file is there")
    add_faults(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    with elastane.join() as job:
        model = Model(job)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        trainer = job.trainer(model, optimizer, scale_lr_by_staleness=options.scaled)
        tastes = Tastes(options.samples)
        ids_of = (lambda batch: {model.rows: batch[0]}) if options.ahead else None
        made = 0
        for ids, liked in job.batches(tastes, BATCH, shard_size=200, ids_of=ids_of):
            inject(job, options.fault, made)
            if options.until is not None and not options.until.exists():
                time.sleep(0.2)
            trainer.step(binary_cross_entropy_with_logits(model(ids), liked))
            made += 1
        with torch.no_grad():
            right = ((model(tastes.ids) > 0) == (tastes.liked > 0)).float().mean().item()
        print(f"made {made} right {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
