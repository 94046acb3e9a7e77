"""Train a DeepFM whose embeddings live on parameter servers, and evaluate its AUC while it trains.

python examples/deepfm.py                                  # alone: the rows are in this process
elastane run --ps 2 --workers 2 examples/deepfm.py         # two servers, two workers
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from deepfm_data import FIELDS, NUMBERS, make_clicks
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import elastane

DIM = 16
BATCH = 512


class DeepFM(nn.Module):
    """Of each row the first number is the id's own weight, and the others are its factors, which meet in pairs."""

    def __init__(self, job: elastane.Job) -> None:
        super().__init__()
        self.fields = job.embedding(
            "fields",
            DIM,
            elastane.adagrad(lr=0.1, initial_accumulator_value=0.1),
            initializer=elastane.Initializer(scale=0.01),
        )
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * DIM + NUMBERS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        rows = self.fields(ids)  # (samples, FIELDS, DIM)
        total, squares = rows.sum(1), (rows * rows).sum(1)
        pairs = (total[:, 1:] ** 2 - squares[:, 1:]).sum(1) / 2
        deep = self.deep(torch.cat([rows.flatten(1), numbers], 1))
        logits: Tensor = total[:, 0] + pairs + deep.squeeze(1)
        return logits


def as_tensors(columns: Any) -> list[Tensor]:
    """The data set gives whole batches in columns, so there is nothing to collate."""
    return [torch.from_numpy(column) for column in columns]


def predict(model: nn.Module, batch: Any) -> dict[str, Any]:
    ids, numbers, clicked = batch
    logits = model(ids, numbers)
    return {
        "loss": binary_cross_entropy_with_logits(logits, clicked, reduction="none"),
        "auc": (logits.sigmoid(), clicked),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)  # Alone, results are logged; in a job, its events have them.
    torch.manual_seed(0)
    evaluation = elastane.Evaluation(
        make_clicks(50_000, seed=2),
        batch_size=1_000,
        predict=predict,
        metrics={"loss": elastane.Mean(), "auc": elastane.AUC()},
        every_steps=200,
        best="auc:max",
        collate_fn=as_tensors,
    )
    with elastane.join() as job:
        model = DeepFM(job)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)
        trainer = job.trainer(model, optimizer, evaluate=evaluation)
        clicks = make_clicks(options.samples, seed=1)
        batches = job.batches(
            clicks,
            BATCH,
            epochs=options.epochs,
            shuffle=True,
            collate_fn=as_tensors,
            ids_of=lambda batch: {
                model.fields: batch[0]
            },  # Its rows are on the way while the batch before is computed.
        )
        for ids, numbers, clicked in batches:
            trainer.step(binary_cross_entropy_with_logits(model(ids, numbers), clicked))


if __name__ == "__main__":
    main()
