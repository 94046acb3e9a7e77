"""What all systems train: a DeepFM on made-up clicks. It needs NumPy alone, for each system has a Python of its own."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.deepfm_data import FIELDS, NUMBERS, Clicks, make_clicks

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


@dataclass(frozen=True)
class Outcome:
    """What one run came to; the driver adds what the processes cost."""

    samples: int
    began: float
    ended: float
    """The clock's time at which training of the measured samples began and ended."""
    pull_ms: float
    push_ms: float
    auc: float


class Marks:
    """Files by which a run tells the driver how far it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> float:
        """The measured samples begin now."""
        return self._mark("began")

    def end(self) -> float:
        return self._mark("ended")

    def finish(self, outcome: Outcome) -> None:
        written = self._folder / "outcome.part"
        written.write_text(json.dumps(asdict(outcome)))
        written.rename(self._folder / "outcome.json")

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def outcome(self) -> Outcome | None:
        file = self._folder / "outcome.json"
        return Outcome(**json.loads(file.read_text())) if file.exists() else None

    def _mark(self, name: str) -> float:
        (self._folder / name).touch()
        return time.time()


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
