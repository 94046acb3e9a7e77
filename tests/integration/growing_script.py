"""The training script of the tests of growing memory: every step makes new rows on the parameter servers."""

from __future__ import annotations

import argparse
import time

import numpy as np

import elastane
from elastane.core.owners import OwnerMap
from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.client import Client
from tests.integration.counting_script import Numbers

GROWING = TableSpec("growing", 32, OptimizerSpec(OptimizerKind.SGD, 1.0), Initializer(InitializerKind.ZEROS))
"""A push of -1 adds exactly 1."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1500, help="new ones a step")
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()

    with elastane.join() as job:
        servers = job.servers()
        assert servers.settings is not None
        client = Client(OwnerMap.from_bytes(servers.owner_map()), servers.token, servers.settings.n_buckets)
        servers.follow(lambda data: client.learn(OwnerMap.from_bytes(data)))
        servers.uses(client.number)
        client.define(GROWING)
        ones = np.full((options.rows, GROWING.dim), -1.0, np.float32)
        for step, _ in enumerate(job.batches(Numbers(options.steps * 10, None), 10)):
            ids = step * options.rows + np.arange(options.rows, dtype=np.int64)
            client.push({"growing": (ids, ones)}, {"growing": 1.0}, step)
            time.sleep(options.step_ms / 1000)
        missing = 0
        for step in range(options.steps):
            ids = step * options.rows + np.arange(options.rows, dtype=np.int64)
            missing += int((client.pull({"growing": ids})["growing"] != 1.0).any(axis=1).sum())
        print(f"rows {options.steps * options.rows} lost {missing}", flush=True)
        client.close()


if __name__ == "__main__":
    main()
