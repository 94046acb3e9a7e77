"""The training script of the tests of parameter servers: every step adds one to the worker's own rows, and counts."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter as Counted
from pathlib import Path

import numpy as np
import numpy.typing as npt

import elastane
from elastane.core.owners import OwnerMap
from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.client import Client
from tests.faults import carry_out
from tests.integration.counting_script import Numbers

COUNTING = TableSpec("counting", 4, OptimizerSpec(OptimizerKind.SGD, 1.0), Initializer(InitializerKind.ZEROS))
"""A push of -1 adds exactly 1."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=0, help="end after so many, if there is no plan")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--done", type=Path, required=True, help="the file that says that all are done")
    parser.add_argument("--then", action="append", default=[], help="what worker 0 does, one after the other")
    options = parser.parse_args()

    with elastane.join() as job:
        servers = job.servers()
        assert servers.settings is not None
        client = Client(
            OwnerMap.from_bytes(servers.owner_map()),
            servers.token,
            servers.settings.n_buckets,
            staleness=servers.settings.staleness,
        )
        servers.follow(lambda data: client.learn(OwnerMap.from_bytes(data)))
        servers.uses(client.number)
        client.define(COUNTING)
        counter = Counter(client, job, options.rows)
        plan = Plan(client, job, options.then if job.node.endswith("-worker-0") else [])
        for _ in job.batches(Numbers(options.samples, None), 10):
            counter.step()
            if plan.given and plan.goes_on() and not plan.left:
                options.done.touch()
            if options.done.exists() or counter.pushes == options.steps:
                break
            time.sleep(options.step_ms / 1000)
        counter.check()
        print(f"counted {counter.pushes} lost {counter.lost} worst {counter.worst_ms:.0f} ms", flush=True)
        client.close()


class Plan:
    """What one worker does to its job while it trains.

    run WORDS      the command of elastane with these words, in the background
    fault HOW      as in `tests.faults`
    moved N        wait until so many buckets have another owner than at the last command
    even N         wait until the buckets are spread evenly over so many servers
    steps N        wait for so many steps
    file PATH      wait until it is there
    """

    def __init__(self, client: Client, job: elastane.Job, left: list[str]) -> None:
        self.given = bool(left)
        self.left = left
        self._client = client
        self._job = job
        self._owners = self._now()
        self._steps = 0

    def goes_on(self) -> bool:
        """Do what can be done now."""
        self._steps += 1
        while self.left and self._does(*self.left[0].split(" ", 1)):
            print(f"plan: {self.left.pop(0)} at step {self._job.step}", flush=True)
            self._steps = 0
        return True

    def _does(self, word: str, what: str) -> bool:
        match word:
            case "run":
                self._owners = self._now()
                words = what.replace("JOB", self._job.node.rsplit("-", 2)[0]).split()
                subprocess.Popen([sys.executable, "-m", "elastane", *words])
            case "fault":
                carry_out(self._job, what)
            case "moved":
                return sum(old != new for old, new in zip(self._owners, self._now(), strict=True)) >= int(what)
            case "even":
                counts = Counted(self._now())
                return len(counts) == int(what) and max(counts.values()) - min(counts.values()) <= 1
            case "file":
                return Path(what).exists()
            case "steps":
                return self._steps >= int(what)
        return True

    def _now(self) -> list[int | None]:
        return [entry.owner for entry in self._client.owner_map.entries]


class Counter:
    """The rows of one worker, and what they must hold."""

    def __init__(self, client: Client, job: elastane.Job, rows: int) -> None:
        self.pushes = 0
        self.lost = 0
        self.worst_ms = 0.0
        self._client = client
        self._ids = int(job.node.rsplit("-", 1)[1]) * 1_000_000 + np.arange(rows, dtype=np.int64)
        self._ones = np.full((rows, COUNTING.dim), -1.0, np.float32)
        self._base = int(self._pull().min())
        if self._base:
            print(f"began with {self._base}", flush=True)

    def step(self) -> None:
        began = time.monotonic()
        self._client.push({"counting": (self._ids, self._ones)}, {"counting": 1.0}, self.pushes)
        self.worst_ms = max(self.worst_ms, 1000 * (time.monotonic() - began))
        self.pushes += 1
        if self.pushes % 10 == 0:
            self.check()

    def check(self) -> None:
        """Every row holds every push since it was last made anew."""
        rows = self._pull() - self._base
        assert (rows == rows[:, :1]).all(), "a part of a push"
        assert (rows <= self.pushes).all(), f"a push was applied twice: {rows.max()} of {self.pushes}"
        self.lost = max(self.lost, int(self.pushes - rows.min()))

    def _pull(self) -> npt.NDArray[np.float32]:
        return self._client.pull({"counting": self._ids})["counting"]


if __name__ == "__main__":
    main()
