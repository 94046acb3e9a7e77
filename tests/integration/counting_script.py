"""The training script of the tests: counts its samples, and fails where it is told to."""

from __future__ import annotations

import argparse
import time

import elastane
from tests.faults import AFTER_DRAIN, add_faults, inject


class Numbers:
    def __init__(self, size: int, poison: int | None) -> None:
        self.size = size
        self.poison = poison

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index == self.poison:
            raise ValueError(f"sample {index} is broken")
        return index


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--poison", type=int)
    parser.add_argument("--differ", action="store_true", help="each worker describes the data set differently")
    parser.add_argument("--break-at", type=int)
    add_faults(parser)
    options = parser.parse_args()

    with elastane.join() as job:
        size = options.samples + (int(job.node.rsplit("-", 1)[1]) if options.differ else 0)
        numbers = Numbers(size, options.poison)
        for _ in job.batches(numbers, options.batch_size, epochs=options.epochs, shuffle=options.shuffle):
            time.sleep(options.step_ms / 1000)  # the training step
            inject(job, options.fault, job.step)
            if job.step == options.break_at:
                break
        if job.draining:
            inject(job, options.fault, AFTER_DRAIN)


if __name__ == "__main__":
    main()
