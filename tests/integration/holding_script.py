"""A training script that stays when its data is done, until a file is there: so that its job can be looked at."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import elastane
from tests.faults import add_faults, inject
from tests.integration.counting_script import Numbers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, default=1.0)
    add_faults(parser)
    options = parser.parse_args()
    with elastane.join() as job:
        for _ in job.batches(Numbers(options.samples, None), 10, epochs=2):
            time.sleep(options.step_ms / 1000)
            inject(job, options.fault, job.step)
        while not options.until.exists():
            time.sleep(0.01)


if __name__ == "__main__":
    main()
