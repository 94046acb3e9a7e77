"""What all systems train: a DeepFM on made-up clicks. It needs NumPy alone, for each system has a Python of its own.

The data are those of the example, so its folder must be on the path."""

from __future__ import annotations

import argparse
from pathlib import Path

from deepfm_data import FIELDS, NUMBERS, Clicks, make_clicks

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
    made.add_argument("--batches", type=int, required=True)
    made.add_argument("--tables", type=int, choices=(1, FIELDS), default=1)
    return made


def training_clicks(batches: int) -> Clicks:
    return make_clicks((WARM_UP + batches) * BATCH, TRAIN_SEED)


def held_out_clicks() -> Clicks:
    return make_clicks(HELD_OUT, HELD_OUT_SEED)
