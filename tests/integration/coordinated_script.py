"""A training script with a coordinator in a job that is scaled meanwhile; it has no code for that but to wait for it.

It trains until the coordinator has as many workers as the job is to have, for one size after another, and then likewise
for the parameter servers. At last a worker is killed, if it is to be.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.closure_client import job_client

DEADLINE_S = 200.0
COUNTED = TableSpec("counted", 4, OptimizerSpec(OptimizerKind.SGD, 1.0), Initializer(InitializerKind.ZEROS))


def plain_steps() -> tuple[Any, Callable[[int], None]]:
    from elastane.coordinator import ClusterCoordinator

    coordinator = ClusterCoordinator()

    def steps(count: int) -> None:
        values = [coordinator.schedule(os.getppid) for _ in range(count)]
        coordinator.join()
        print("ran on", sorted(set(coordinator.fetch(values))), flush=True)

    return coordinator, steps


def count(row: int) -> None:
    """Add 1 to a row on the job's parameter servers."""
    servers = job_client()
    servers.define(COUNTED)
    servers.push({COUNTED.name: (np.array([row]), np.full((1, COUNTED.dim), -1, np.float32))}, {}, 0)


def counting_steps() -> tuple[Any, Callable[[int], None]]:
    from elastane.coordinator import ClusterCoordinator

    coordinator = ClusterCoordinator()
    servers = job_client()
    servers.define(COUNTED)
    counted = np.zeros(64)

    def steps(count_of_steps: int) -> None:
        for number in range(count_of_steps):
            row = number % len(counted)
            coordinator.schedule(count, (row,))
            counted[row] += 1
        coordinator.join()
        rows = servers.pull({COUNTED.name: np.arange(len(counted))})[COUNTED.name]
        assert np.array_equal(rows[:, 0], counted), (rows[:, 0], counted)
        print("counted", int(counted.sum()), flush=True)

    return coordinator, steps


def tensorflow_steps() -> tuple[Any, Callable[[int], None]]:
    import tensorflow as tf

    from elastane.tensorflow import ClusterCoordinator

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64)
    scheduled = 0

    step = tf.function(lambda: counter.assign_add(1))

    def steps(count: int) -> None:
        nonlocal scheduled
        for _ in range(count):
            coordinator.schedule(step)
        scheduled += count
        coordinator.join()
        assert scheduled <= int(counter.numpy()) <= scheduled + coordinator.repeats
        print("counted", scheduled, flush=True)

    return coordinator, steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorflow", action="store_true")
    parser.add_argument(
        "--ps-sizes", type=int, nargs="*", default=[], help="count on the job's servers, and scale them"
    )
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    kinds = {"tensorflow": tensorflow_steps, "servers": counting_steps, "plain": plain_steps}
    kind = "tensorflow" if arguments.tensorflow else "servers" if arguments.ps_sizes else "plain"
    coordinator, steps = kinds[kind]()
    deadline = time.monotonic() + DEADLINE_S

    def train_until(reached: Callable[[], bool]) -> None:
        while not reached():
            assert time.monotonic() < deadline, f"the coordinator has {coordinator.workers}"
            steps(20)

    for size in arguments.sizes:
        subprocess.run([sys.executable, "-m", "elastane", "scale", "job", f"--workers={size}"], check=True)
        train_until(lambda size=size: len(coordinator.workers) == size)  # type: ignore[misc]
        print(f"trained with {size} workers", flush=True)
    for size in arguments.ps_sizes:
        subprocess.run([sys.executable, "-m", "elastane", "scale", "job", f"--ps={size}"], check=True)
        train_until(lambda size=size: len({each.owner for each in job_client().owner_map.entries}) == size)  # type: ignore[misc]
        print(f"trained with {size} servers", flush=True)
    if arguments.kill:
        before = set(coordinator.workers)
        node = next(pid for pid in {coordinator.schedule(os.getppid).fetch() for _ in range(50)} if pid != os.getpid())
        os.kill(node, signal.SIGKILL)
        train_until(lambda: len(coordinator.workers) == len(before) and set(coordinator.workers) != before)
        print("trained with a relaunched worker", flush=True)
    coordinator.close()


if __name__ == "__main__":
    main()
