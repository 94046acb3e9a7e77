"""A training script with a coordinator in a job that is scaled meanwhile; it has no code for that but to wait for it.

It trains until the coordinator has as many workers as the job is to have, for one size after another. Before the last
one a worker is killed, if it is to be.
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

DEADLINE_S = 200.0


def plain_steps() -> tuple[Any, Callable[[int], None]]:
    from elastane.coordinator import ClusterCoordinator

    coordinator = ClusterCoordinator()

    def steps(count: int) -> None:
        values = [coordinator.schedule(os.getppid) for _ in range(count)]
        coordinator.join()
        print("ran on", sorted(set(coordinator.fetch(values))), flush=True)

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
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    coordinator, steps = tensorflow_steps() if arguments.tensorflow else plain_steps()
    deadline = time.monotonic() + DEADLINE_S

    def train_until(reached: Callable[[], bool]) -> None:
        while not reached():
            assert time.monotonic() < deadline, f"the coordinator has {coordinator.workers}"
            steps(20)

    for size in arguments.sizes:
        subprocess.run([sys.executable, "-m", "elastane", "scale", "job", f"--workers={size}"], check=True)
        train_until(lambda size=size: len(coordinator.workers) == size)  # type: ignore[misc]
        print(f"trained with {size} workers", flush=True)
    if arguments.kill:
        before = set(coordinator.workers)
        node = next(pid for pid in {coordinator.schedule(os.getppid).fetch() for _ in range(50)} if pid != os.getpid())
        os.kill(node, signal.SIGKILL)
        train_until(lambda: len(coordinator.workers) == size and set(coordinator.workers) != before)
        print("trained with a relaunched worker", flush=True)
    coordinator.close()


if __name__ == "__main__":
    main()
