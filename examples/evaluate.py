"""Train a small classifier, evaluate it while it trains, stop when it gets no better, and export the best weights.

python examples/evaluate.py                                           # alone
elastane run --workers 2 examples/evaluate.py                         # the workers evaluate beside their steps
elastane run --workers 2 --evaluators 1 examples/evaluate.py          # an evaluator does, and the workers only train
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import elastane

FEATURES = 20


class Clicks:
    """Made-up clicks: whether one comes depends on the features, and on chance."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(size, FEATURES, generator=generator)
        taste = torch.linspace(-1, 1, FEATURES)
        chances = torch.sigmoid(self.features @ taste + self.features[:, 0] * self.features[:, 1])
        self.clicked = (torch.rand(size, generator=generator) < chances).float()

    def __len__(self) -> int:
        return len(self.clicked)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index], self.clicked[index]


def predict(model: nn.Module, batch: Any) -> dict[str, Any]:
    """For each metric what its `update` takes; the model is not the one that trains."""
    features, clicked = batch
    logits = model(features).squeeze(1)
    return {
        "loss": binary_cross_entropy_with_logits(logits, clicked, reduction="none"),
        "auc": (torch.sigmoid(logits), clicked),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--export", default="best-clicks")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)  # Alone, results are logged; in a job, its events have them.
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    evaluation = elastane.Evaluation(
        Clicks(20_000, seed=2),
        batch_size=500,
        predict=predict,
        metrics={"loss": elastane.Mean(), "auc": elastane.AUC()},
        every_steps=100,
        best="auc:max",
        early_stop=3,
        export=options.export,
    )
    with elastane.join() as job:
        trainer = job.trainer(model, optimizer, evaluate=evaluation)
        for features, clicked in job.batches(Clicks(20_000, seed=1), 64, epochs=options.epochs, shuffle=True):
            trainer.step(binary_cross_entropy_with_logits(model(features).squeeze(1), clicked))
        print(f"trained for {job.step} steps")


if __name__ == "__main__":
    main()
