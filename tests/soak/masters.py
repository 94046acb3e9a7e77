"""The same training twice: once undisturbed, and once with its master killed again and again at random moments.

At the end: both succeeded, every sample was in exactly one step, the final weights are equal to the last bit, the same
processes trained from the first step to the last, and the longest time between two steps says whether they waited.

    python -m tests.soak.masters --kills 20 --steps 2000 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from elastane.platform.local.registry import STATE_ENV
from tests.integration.harness import ROOT, Finished, every_sample_once, left_behind, read_events

SCRIPT = ROOT / "tests" / "soak" / "paced_training.py"
BATCH = 16
WORKERS = 2
STEP_MS = 25.0
REST_S = 0.5
"""How long after a kill the next may come at the earliest: sometimes before the next master is there."""


@dataclass(frozen=True)
class Result:
    weights: str
    median_s: float
    longest_s: float
    masters: int


def run(folder: Path, name: str, steps: int, kills: int, rng: random.Random) -> Result:
    """Train to the end. Raises AssertionError."""
    times = folder / f"{name}-times"
    times.mkdir()
    events = folder / f"{name}.jsonl"
    words = ["run", "--name", name, "--workers", str(WORKERS), "--restarts", "0", "--events", str(events), str(SCRIPT)]
    pace = ["--steps", str(steps), "--global-batch-size", str(BATCH), "--step-ms", str(STEP_MS), "--times", str(times)]
    with (folder / f"{name}.out").open("w") as output:
        job = psutil.Popen(
            [sys.executable, "-m", "elastane", *words, *pace],
            env={**os.environ, STATE_ENV: str(folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    _wait_for_steps(times, job)
    pause_s = steps * STEP_MS / 1000 / (kills + 1)
    for _ in range(kills):
        time.sleep(rng.uniform(REST_S, max(REST_S, 2 * pause_s - REST_S)))
        for child in job.children():
            if "elastane.master" in child.cmdline():
                child.kill()
    code = job.wait()
    output_text = (folder / f"{name}.out").read_text()
    done = Finished(code, output_text, "", read_events(events))
    assert code == 0, output_text[-3000:]
    assert done.committed() == every_sample_once(steps * BATCH)
    assert {event["reason"] for event in done.of("node_ended")} == {"done"}
    assert len(list(times.iterdir())) == WORKERS
    assert not left_behind(folder)
    (weights,) = set(re.findall(rf"weights (\w+) after {steps} steps", output_text))
    gaps = [gap for file in times.iterdir() for gap in _gaps(file)]
    return Result(weights, statistics.median(gaps), max(gaps), len(done.of("master_restarted")))


def _wait_for_steps(times: Path, job: psutil.Popen) -> None:
    while job.poll() is None and not any(file.stat().st_size for file in times.iterdir()):
        time.sleep(0.1)


def _gaps(file: Path) -> list[float]:
    moments = [float(line.split()[1]) for line in file.read_text().splitlines()]
    return [second - first for first, second in pairwise(moments)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="elastane-masters-") as folder:
        calm = run(Path(folder), "calm", options.steps, 0, rng)
        killed = run(Path(folder), "killed", options.steps, options.kills, rng)
    for name, result in (("undisturbed", calm), ("master killed", killed)):
        print(
            f"{name}: {options.steps} steps, weights {result.weights}, median {1000 * result.median_s:.1f} ms, "
            f"longest {1000 * result.longest_s:.1f} ms, {result.masters} masters followed by another"
        )
    assert killed.weights == calm.weights
    assert killed.masters > 0


if __name__ == "__main__":
    main()
