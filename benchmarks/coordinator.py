"""The coordinator: its pauses when workers change, and how many closures it runs a second.

- pause: the longest time between any two finished closures from 0.2 s before a change to 0.5 s after it; two workers,
  two parameter servers, each closure adds to a variable of one of them.
- rate: closures a second of TensorFlow's own coordinator and of this one, with the same servers, in turns; and empty
  closures a second on elastane's worker servers.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from tests.integration.server_nursery import ForkedServer
from tests.integration.tensorflow_servers import QUIET, TensorFlowServers
from tests.integration.worker_servers import TOKEN, WorkerServers

from benchmarks.report import Report, Row, parser

os.environ.update(QUIET)


class Pauses:
    """Notes when each closure of a coordinator is finished."""

    def __init__(self, coordinator: Any) -> None:
        self.coordinator = coordinator
        self._finished: list[float] = []
        queue = coordinator._queue
        take = queue.take

        def noted(worker: int, *, finished: bool = False) -> Any:
            if finished:
                self._finished.append(time.perf_counter())
            return take(worker, finished=finished)

        queue.take = noted

    def longest_s(self, schedule: Callable[[], object], change: Callable[[], object]) -> float:
        """The longest pause around a change, while there is always something to do."""
        self._finished.clear()
        for _ in range(50):
            schedule()
        _go_on(schedule, self._finished, 0.3)
        begin = time.perf_counter()
        change()
        end = time.perf_counter()
        _go_on(schedule, self._finished, 0.6)
        self.coordinator.join()
        around = [at for at in self._finished if begin - 0.2 <= at <= end + 0.5]
        return max(later - earlier for earlier, later in pairwise(around))


def _go_on(schedule: Callable[[], object], finished: list[float], seconds: float) -> None:
    """Keep the queue filled for a while, so that a change of half a second finds it so to its end."""
    until = time.perf_counter() + seconds
    ahead = 400
    scheduled = 50
    while time.perf_counter() < until:
        if scheduled - len(finished) < ahead:
            schedule()
            scheduled += 1
        else:
            time.sleep(0.001)


def measure_tensorflow(report: Report, *, quick: bool) -> None:
    with TensorFlowServers() as servers:
        import tensorflow as tf

        from elastane.tensorflow import ClusterCoordinator

        parameter_servers = servers.parameter_servers(2)
        workers = {each.address: each for each in (servers.worker(), servers.worker())}
        spec = tf.train.ClusterSpec({"ps": [each.address for each in parameter_servers], "worker": list(workers)})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        ours = ClusterCoordinator(strategy)
        strategy._cluster_coordinator = None  # TensorFlow allows one for each strategy; here both are to be measured.
        stock = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            counters = [tf.Variable(0, dtype=tf.int64) for _ in range(2)]

        def dataset_fn() -> Any:
            return strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors(1).repeat())

        @tf.function
        def step(iterator: Any) -> Any:
            def replica(value: Any) -> Any:
                counters[1].assign_add(tf.cast(value, tf.int64))
                return counters[0].assign_add(1)

            return strategy.run(replica, args=(next(iterator),))

        iterators = {
            coordinator: iter(coordinator.create_per_worker_dataset(dataset_fn)) for coordinator in (stock, ours)
        }
        _rates(report, {"TensorFlow's": stock, "elastane's": ours}, step, iterators, quick=quick)

        row = report.row("pause", backend="tensorflow", workers=2)
        _measure_pauses(row, ours, servers, workers, lambda: ours.schedule(step, args=(iterators[ours],)), quick=quick)
        ours.close()


def measure_python(report: Report, *, quick: bool) -> None:
    from elastane.coordinator import ClusterCoordinator, WorkerCluster

    with WorkerServers() as servers:
        workers = {each.address: each for each in (servers.worker(), servers.worker())}
        with ClusterCoordinator(WorkerCluster(tuple(workers), TOKEN)) as coordinator:
            count = 500 if quick else 5000
            for turn in range(-1, 2 if quick else 7):
                begin = time.perf_counter()
                for _ in range(count):
                    coordinator.schedule(_nothing)
                coordinator.join()
                if turn >= 0:
                    rate = count / (time.perf_counter() - begin)
                    report.row("rate", backend="python", workers=2).add(**{"empty closures/s": rate})
            row = report.row("pause", backend="python", workers=2)
            _measure_pauses(row, coordinator, servers, workers, lambda: coordinator.schedule(_nothing), quick=quick)


def _nothing() -> None:
    pass


def _measure_pauses(
    row: Row,
    coordinator: Any,
    servers: TensorFlowServers | WorkerServers,
    workers: dict[str, ForkedServer],
    schedule: Callable[[], object],
    *,
    quick: bool,
) -> None:
    pauses = Pauses(coordinator)
    for _ in range(2 if quick else 5):
        address = list(coordinator.workers)[-1]
        new = servers.worker()
        workers[new.address] = new
        changes: dict[str, Callable[[], object]] = {
            "remove_ms": partial(coordinator.remove_worker, address),
            "add_stopped_ms": partial(coordinator.add_worker, address),
            "add_new_ms": partial(coordinator.add_worker, new.address),
            "kill_ms": workers[address].kill,
        }
        for name, change in changes.items():
            row.add(**{name: 1e3 * pauses.longest_s(schedule, change)})


def _rates(report: Report, coordinators: dict[str, Any], step: Any, iterators: dict[Any, Any], *, quick: bool) -> None:
    count = 100 if quick else 400
    for turn in range(-1, 2 if quick else 7):
        for name, coordinator in coordinators.items():
            gc.collect()
            begin = time.perf_counter()
            for _ in range(count):
                coordinator.schedule(step, args=(iterators[coordinator],))
            coordinator.join()
            seconds = time.perf_counter() - begin
            if turn >= 0:
                report.row("rate", backend="tensorflow", workers=2).add(**{f"{name} closures/s": count / seconds})


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--backend", choices=["all", "python", "tensorflow"], default="all")
    arguments = options.parse_args()
    report = Report()
    if arguments.backend in {"all", "python"}:
        measure_python(report, quick=arguments.quick)
    if arguments.backend in {"all", "tensorflow"}:
        measure_tensorflow(report, quick=arguments.quick)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
