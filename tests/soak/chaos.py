"""Jobs whose workers are killed, stopped, preempted, drained and scaled at random, one job after the other.

After each job: every sample of every epoch was committed exactly once, the job succeeded, and no process is left.

    make soak
    python -m tests.soak.chaos --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.integration.harness import ROOT, every_sample_once, left_behind, read_events

SAMPLES = 60_000
EPOCHS = 2
SIGNALS = {"kill": signal.SIGKILL, "preempt": signal.SIGTERM, "stop": signal.SIGSTOP}


class Chaos:
    """One job and its tormentor."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder = folder
        self._rng = rng
        self._env = {**os.environ, "ELASTANE_STATE_DIR": str(folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self.actions: Counter[str] = Counter()

    def run(self) -> None:
        """Run one job to its end among random trouble, and check what it left. Raises AssertionError."""
        events = self._folder / "events.jsonl"
        words = ["run", "--name", "job", "--workers", "1:4", "--restarts", "10000", "--events", str(events)]
        limits = ["--heartbeat-timeout", "2", "--grace", "3", "--max-task-retries", "1000"]
        script = [str(ROOT / "examples" / "count.py"), "--samples", str(SAMPLES), "--epochs", str(EPOCHS)]
        with (self._folder / "output").open("w") as output:
            job = subprocess.Popen(
                [sys.executable, "-m", "elastane", *words, *limits, *script, "--step-ms", "5", "--shuffle"],
                env=self._env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        while job.poll() is None:
            time.sleep(self._rng.uniform(0.1, 0.8))
            self._act()
        output_text = (self._folder / "output").read_text()
        assert job.returncode == 0, output_text[-3000:]
        committed = Counter(
            (event["epoch"], position)
            for event in read_events(events)
            if event["kind"] == "samples_committed"
            for position in range(event["start"], event["end"])
        )
        assert committed == every_sample_once(SAMPLES, EPOCHS), "not every sample was committed exactly once"
        assert not left_behind(self._folder), "processes were left behind"

    def _act(self) -> None:
        action = self._rng.choice(["kill", "kill", "preempt", "stop", "drain", "scale", "scale"])
        if action == "scale":
            self._command("scale", "job", "--workers", str(self._rng.randint(1, 4)))
        else:
            nodes = self._nodes()
            if not nodes:
                return
            name, pid = self._rng.choice(nodes)
            if action == "drain":
                self._command("drain", "job", name)
            else:
                try:
                    os.kill(pid, SIGNALS[action])
                except ProcessLookupError:
                    return  # It has ended since.
        self.actions[action] += 1

    def _nodes(self) -> list[tuple[str, int]]:
        answer = self._command("status", "job", "--json")
        if answer.returncode:
            return []
        nodes = json.loads(answer.stdout)["nodes"]
        return [(node["name"], node["pid"]) for node in nodes if node["status"] == "running"]

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "elastane", *words], env=self._env, capture_output=True, text=True, check=False
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    rng = random.Random(options.seed)
    until = time.monotonic() + 60 * options.minutes
    total: Counter[str] = Counter()
    jobs = 0
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory(prefix="elastane-soak-") as folder:
            chaos = Chaos(Path(folder), rng)
            chaos.run()
        jobs += 1
        total += chaos.actions
        print(f"job {jobs}: {SAMPLES * EPOCHS:,} samples, each exactly once, through {dict(chaos.actions)}", flush=True)
    print(f"{jobs} jobs, {total.total()} actions: {dict(total)}")


if __name__ == "__main__":
    main()
