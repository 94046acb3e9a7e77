"""Counts to a hundred thousand, together: each sample goes to one worker, whatever happens to the workers.

elastane run --workers 3 examples/count.py
elastane run --workers 3 --events events.jsonl examples/count.py --samples 100000 --epochs 2 --step-ms 5
"""

import argparse
import time

import elastane


class Numbers:
    """A map-style data set: anything with a length and samples by number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=2.0, help="how long a training step takes")
    parser.add_argument("--shuffle", action="store_true")
    options = parser.parse_args()

    total = 0
    with elastane.join() as job:
        numbers = Numbers(options.samples)
        for batch in job.batches(numbers, options.batch_size, epochs=options.epochs, shuffle=options.shuffle):
            time.sleep(options.step_ms / 1000)  # the training step
            total += len(batch)
    print(f"{job.node}: {total} samples in {job.step} steps{', then told to leave' if job.draining else ''}")


if __name__ == "__main__":
    main()
