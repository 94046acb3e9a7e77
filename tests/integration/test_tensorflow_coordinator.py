"""The coordinator on stock TensorFlow servers: real processes, two parameter servers, workers that come and go."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elastane.model.errors import InvalidInput, RequestRefused, UnsupportedVersion, WorkerUnreachable
from tests.integration.server_nursery import ForkedServer, free_address
from tests.integration.tensorflow_servers import QUIET, TensorFlowServers

GUIDE = Path(__file__).with_name("guide_script.py")
STOCK_LINE = "ClusterCoordinator = tf.distribute.coordinator.ClusterCoordinator"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@dataclass
class Training:
    """A cluster, its coordinator, and a step that counts itself on a parameter server."""

    servers: TensorFlowServers
    parameter_servers: list[ForkedServer]
    strategy: Any
    coordinator: Any
    counter: Any
    total: Any
    step: Any
    iterators: Any
    workers: dict[str, ForkedServer] = field(default_factory=dict)
    scheduled: int = 0

    def new_worker(self, address: str = "") -> ForkedServer:
        worker = self.servers.worker(address)
        self.workers[worker.address] = worker
        return worker

    def schedule(self, count: int) -> None:
        for _ in range(count):
            self.coordinator.schedule(self.step, args=(self.iterators,))
        self.scheduled += count

    def check_counter(self, repeats: int = 0) -> None:
        """Every closure had its effect; of those whose worker was killed, perhaps more than once."""
        counted = int(self.counter.numpy())
        assert self.scheduled <= counted <= self.scheduled + repeats
        self.scheduled = counted


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    os.environ.update(QUIET)
    with TensorFlowServers() as servers:
        import tensorflow as tf

        from elastane.tensorflow import ClusterCoordinator

        parameter_servers = servers.parameter_servers(2)
        workers = [servers.worker() for _ in range(2)]
        spec = tf.train.ClusterSpec(
            {"ps": [each.address for each in parameter_servers], "worker": [each.address for each in workers]}
        )
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            counter = tf.Variable(0, dtype=tf.int64)
            total = tf.Variable(0, dtype=tf.int64)

        def dataset_fn() -> Any:
            return strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors(2).repeat())

        @tf.function
        def step(iterator: Any) -> Any:
            def replica(value: Any) -> Any:
                total.assign_add(tf.cast(value, tf.int64))
                return counter.assign_add(1)

            return strategy.run(replica, args=(next(iterator),))

        iterators = iter(coordinator.create_per_worker_dataset(dataset_fn))
        yield Training(
            servers,
            parameter_servers,
            strategy,
            coordinator,
            counter,
            total,
            step,
            iterators,
            {each.address: each for each in workers},
        )
        coordinator.close()


def test_the_loop_removes_and_adds_workers_between_epochs_and_loses_no_closure(training: Training) -> None:
    coordinator = training.coordinator
    first, second = list(training.workers)
    for epoch in range(4):
        if epoch == 1:
            coordinator.remove_worker(second)
            assert coordinator.stopped_workers == {second: 1}
        if epoch == 2:
            coordinator.add_worker(second)
        if epoch == 3:
            assert coordinator.add_worker(training.new_worker().address) == 2
        training.schedule(30)
        coordinator.join()
        training.check_counter()
    assert coordinator.done()
    assert int(training.total.numpy()) == 2 * training.scheduled
    assert set(coordinator.workers) == {first, second, *training.workers}


def test_results_are_fetched_in_the_structure_they_were_put_in(training: Training) -> None:
    import tensorflow as tf

    @tf.function
    def double(value: Any) -> Any:
        return {"twice": 2 * value, "nothing": None}

    value = training.coordinator.schedule(double, args=(tf.constant(21),))
    assert isinstance(value, tf.distribute.coordinator.RemoteValue)
    fetched = training.coordinator.fetch({"a": [value], "b": 5})
    assert fetched["a"][0]["twice"] == 42
    assert fetched["a"][0]["nothing"] is None
    assert fetched["b"] == 5


def test_a_killed_worker_is_dropped_and_another_address_takes_its_index(training: Training) -> None:
    coordinator = training.coordinator
    before = coordinator.repeats
    victim, index = next(iter(coordinator.workers.items()))
    training.schedule(40)
    training.workers.pop(victim).kill()
    training.schedule(40)
    coordinator.join()
    training.check_counter(coordinator.repeats - before)
    assert victim not in coordinator.workers
    replacement = training.new_worker()
    assert coordinator.add_worker(replacement.address) == index
    training.schedule(20)
    coordinator.join()
    training.check_counter()


def test_a_server_that_was_started_anew_at_a_removed_address_is_connected_anew(training: Training) -> None:
    coordinator = training.coordinator
    address = next(reversed(coordinator.workers))
    index = coordinator.remove_worker(address)
    training.workers[address].kill()
    training.new_worker(address)
    assert coordinator.add_worker(address) == index
    training.schedule(20)
    coordinator.join()
    training.check_counter()


def test_an_error_of_a_function_surfaces_in_join_cancels_the_rest_and_leaves_the_coordinator_usable(
    training: Training,
) -> None:
    import tensorflow as tf

    coordinator = training.coordinator

    @tf.function
    def divide_by_nothing(value: Any) -> Any:
        return tf.debugging.check_numerics(tf.cast(value, tf.float32) / 0.0, "a loss that is not finite")

    values = []

    def train() -> None:
        for _ in range(200):
            values.append(coordinator.schedule(training.step, args=(training.iterators,)))
        coordinator.join()

    coordinator.schedule(divide_by_nothing, args=(tf.constant(1),))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a loss that is not finite") as caught:
        train()
    assert any("closures.py" in str(entry.path) for entry in caught.traceback)
    if len(values) == 200:
        with pytest.raises(tf.errors.CancelledError):
            values[-1].fetch()
    training.scheduled = int(training.counter.numpy())
    training.schedule(20)
    coordinator.join()
    training.check_counter()


def test_what_cannot_be_done_is_refused_with_the_reason_and_changes_nothing(training: Training) -> None:
    import tensorflow as tf

    coordinator = training.coordinator
    before = coordinator.workers
    there = next(iter(before))
    with pytest.raises(RequestRefused, match=f"worker {there} is in the cluster already, with index"):
        coordinator.add_worker(there)
    with pytest.raises(RequestRefused, match=r"worker 127\.0\.0\.1:1 is not in the cluster; running: "):
        coordinator.remove_worker("127.0.0.1:1")
    with pytest.raises(WorkerUnreachable, match="does not answer; start its server"):
        coordinator.add_worker(free_address())
    with pytest.raises(WorkerUnreachable, match='is not of the job "worker"'):
        coordinator.add_worker(training.parameter_servers[0].address)
    with pytest.raises(InvalidInput, match="'nowhere' is not host:port"):
        coordinator.add_worker("nowhere")
    with pytest.raises(InvalidInput, match=r"decorate it with @tf\.function"):
        coordinator.schedule(lambda: 1)
    value = coordinator.schedule(training.step, args=(training.iterators,))
    training.scheduled += 1
    with pytest.raises(InvalidInput, match="RemoteValue cannot be an argument"):
        coordinator.schedule(tf.function(lambda one: one), args=(value,))
    coordinator.join()
    assert coordinator.workers == before
    training.check_counter()


def test_the_last_running_worker_is_not_removed(training: Training) -> None:
    coordinator = training.coordinator
    *others, last = coordinator.workers
    for address in others:
        coordinator.remove_worker(address)
    with pytest.raises(RequestRefused, match=f"worker {last} is the last that runs"):
        coordinator.remove_worker(last)
    for address in others:
        coordinator.add_worker(address)


def test_lookup_tables_exist_on_workers_that_are_added_later(training: Training) -> None:
    import tensorflow as tf

    coordinator = training.coordinator
    with training.strategy.scope():
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([7, 8])), default_value=-1
        )

    @tf.function
    def look_up(key: Any) -> Any:
        return table.lookup(key)

    key = tf.constant("b")
    assert coordinator.schedule(look_up, args=(key,)).fetch() == 8
    added = training.new_worker().address
    coordinator.add_worker(added)
    kept = [address for address in coordinator.workers if address != added]
    for address in kept:
        coordinator.remove_worker(address)
    assert coordinator.schedule(look_up, args=(key,)).fetch() == 8
    for address in kept:
        coordinator.add_worker(address)


def test_there_is_one_coordinator_for_a_strategy_and_tensorflow_finds_it(training: Training) -> None:
    import tensorflow as tf

    from elastane.tensorflow import ClusterCoordinator

    assert ClusterCoordinator(training.strategy) is training.coordinator
    assert tf.distribute.coordinator.ClusterCoordinator(training.strategy) is training.coordinator


def test_an_untested_tensorflow_is_refused_with_what_to_install() -> None:
    from elastane.tensorflow.versions import check_version

    check_version("2.21.3")
    with pytest.raises(UnsupportedVersion, match=r"TensorFlow 2\.30\.0 is installed; .* pip install"):
        check_version("2.30.0")


@pytest.mark.slow
@pytest.mark.parametrize("line", [STOCK_LINE, "from elastane.tensorflow import ClusterCoordinator"])
def test_documented_code_runs_with_only_the_import_replaced(training: Training, tmp_path: Path, line: str) -> None:
    text = GUIDE.read_text()
    assert text.count(STOCK_LINE) == 1
    script = tmp_path / "guide.py"
    script.write_text(text.replace(STOCK_LINE, line))
    addresses = {
        "chief": [free_address()],
        "ps": [each.address for each in training.servers.parameter_servers(2)],
        "worker": [training.servers.worker().address for _ in range(2)],
    }
    config = json.dumps({"cluster": addresses, "task": {"type": "chief", "index": 0}})
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TF_CONFIG": config},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "steps 104 learnt True" in done.stdout


def random_order(training: Training, seed: int) -> None:
    """Eight epochs with a change while each runs: remove, add back, add new, kill and replace."""
    chance = random.Random(seed)
    coordinator = training.coordinator
    for _ in range(8):
        before = coordinator.repeats
        training.schedule(20)
        running, stopped = list(coordinator.workers), list(coordinator.stopped_workers)
        possible = ["add new"] if len(running) < 4 else []
        possible += ["remove", "kill"] if len(running) > 1 else []
        possible += ["add back"] if stopped else []
        match chance.choice(possible):
            case "add new":
                coordinator.add_worker(training.new_worker().address)
            case "remove":
                coordinator.remove_worker(chance.choice(running))
            case "kill":
                training.workers.pop(chance.choice(running)).kill()
                if chance.random() < 0.5:
                    coordinator.add_worker(training.new_worker().address)
            case "add back":
                coordinator.add_worker(chance.choice(stopped))
        training.schedule(20)
        coordinator.join()
        training.check_counter(coordinator.repeats - before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_changes_keeps_every_closure(training: Training, seed: int) -> None:
    random_order(training, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_random_orders_of_changes_keep_every_closure(training: Training, seed: int) -> None:
    random_order(training, seed)
