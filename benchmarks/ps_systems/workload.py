"""What all systems train: a DeepFM on made-up clicks. It needs NumPy alone, for each system has a Python of its own.

The data are those of the example, so its folder must be on the path."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from deepfm_data import FIELDS, NUMBERS, Clicks, make_clicks

COLUMNS = ("ids", "numbers", "clicked")
BATCH = 512
DIM = 16
"""Of each row the first number is the id's own weight, and the others are its factors."""
HIDDEN = (64, 32)
INPUTS = FIELDS * DIM + NUMBERS
LR = 0.1
DENSE_LR = 0.05
ACCUMULATOR = 0.1
"""What Adagrad's sums of squares start with."""
SCALE = 0.01
"""Rows start uniformly in (-SCALE, SCALE)."""
TRAIN_SEED, HELD_OUT_SEED = 1, 2
HELD_OUT = 51_200
WARM_UP = 40
"""Batches before the measurement, which count for the AUC like the others."""
PROBES = 100
"""How often a batch's rows are pulled, and its gradients pushed, to time them alone."""


def options() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument(
        "--data", type=Path, required=True, help="where `python -m benchmarks.ps_systems.workload` put it"
    )
    made.add_argument("--batches", type=int, required=True)
    made.add_argument("--tables", type=int, choices=(1, FIELDS), default=1)
    made.add_argument("--eager", action="store_true", help="do not compile the model")
    return made


def training_clicks(data: Path) -> Clicks:
    """The warm-up's batches, and then the measured ones."""
    return _load(data, "training")


def held_out_clicks(data: Path) -> Clicks:
    return _load(data, "held-out")


def _load(data: Path, name: str) -> Clicks:
    return Clicks(*(np.load(data / f"{name}-{column}.npy") for column in COLUMNS))


def _save(data: Path, name: str, clicks: Clicks) -> None:
    for column in COLUMNS:
        np.save(data / f"{name}-{column}.npy", getattr(clicks, column))


def main() -> None:
    """Make the data once, for all runs."""
    made = argparse.ArgumentParser()
    made.add_argument("data", type=Path)
    made.add_argument("batches", type=int)
    settings = made.parse_args()
    _save(settings.data, "training", make_clicks((WARM_UP + settings.batches) * BATCH, TRAIN_SEED))
    _save(settings.data, "held-out", make_clicks(HELD_OUT, HELD_OUT_SEED))


if __name__ == "__main__":
    main()
