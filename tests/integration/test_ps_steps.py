"""Clients that wait for each other: the synchronous mode and the staleness bound, on real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from elastane.core.owners import ServerId
from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import keys
from elastane.ps.client import Client
from elastane.ps.store import Store
from tests.integration.ps_driver import TOKEN, Cluster, cluster

BUCKETS = 16
N_IDS = 60
SAMPLES = (5, 3, 8)
"""Of each client in a step."""

OPTIMIZERS = {
    OptimizerKind.SGD: OptimizerSpec(OptimizerKind.SGD, 0.1),
    OptimizerKind.MOMENTUM: OptimizerSpec(OptimizerKind.MOMENTUM, 0.02, momentum=0.9),
    OptimizerKind.ADAGRAD: OptimizerSpec(OptimizerKind.ADAGRAD, 0.1),
    OptimizerKind.ROWWISE_ADAGRAD: OptimizerSpec(OptimizerKind.ROWWISE_ADAGRAD, 0.1),
    OptimizerKind.ADAM: OptimizerSpec(OptimizerKind.ADAM, 0.01),
    OptimizerKind.FTRL: OptimizerSpec(OptimizerKind.FTRL, 0.1, l1=0.001),
}


def table(kind: OptimizerKind) -> TableSpec:
    return TableSpec(f"sync-{kind}", 8, OPTIMIZERS[kind], Initializer(InitializerKind.UNIFORM, 0.5, seed=3))


def batch(step: int, client: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([step, client]).zipf(1.4, SAMPLES[client]) % N_IDS


def gradients(ids: npt.NDArray[np.int64], rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Of the mean over samples of half the squared distance of each sample's row from what it should be."""
    wanted = np.sin(np.arange(8) + ids[:, None]).astype(np.float32)
    mean: npt.NDArray[np.float32] = (rows - wanted) / np.float32(len(ids))
    return mean


def train(client: Client, number: int, spec: TableSpec, steps: int, at_step: Callable[[int], None] | None) -> None:
    for step in range(steps):
        ids = batch(step, number)
        found, inverse = keys.unique(ids)
        rows = client.pull({spec.name: found}, step)[spec.name]
        grads = keys.combine(inverse, gradients(ids, rows[inverse]), len(found))
        client.push({spec.name: (found, grads)}, {}, step, weight=float(len(ids)))
        if at_step is not None:
            at_step(step)
    client.leave()


def trained_alone(spec: TableSpec, steps: int) -> npt.NDArray[np.float32]:
    store = Store(1)
    number = np.array([store.define(spec)], np.uint32)
    for step in range(steps):
        ids = np.concatenate([batch(step, client) for client in range(len(SAMPLES))])
        found, inverse = keys.unique(ids)
        count = np.array([len(found)], np.uint32)
        rows = np.empty((len(found), spec.dim), np.float32)
        store.pull(number, count, found, rows)
        grads = keys.combine(inverse, gradients(ids, rows[inverse]), len(found))
        store.push(number, count, found, grads, np.array([spec.optimizer.lr], np.float32), step)
    out = np.empty((N_IDS, spec.dim), np.float32)
    store.pull(number, np.array([N_IDS], np.uint32), np.arange(N_IDS), out)
    return out


def trained_together(
    made: Cluster, spec: TableSpec, steps: int, at_step: Callable[[int], None] | None = None
) -> npt.NDArray[np.float32]:
    clients = [Client(made.map, TOKEN, BUCKETS, staleness=0, timeout_s=60) for _ in SAMPLES]
    try:
        for client in clients:
            client.define(spec)
        assert [client.join() for client in clients] == [0] * len(clients)
        with ThreadPoolExecutor(len(clients)) as pool:
            running = [
                pool.submit(train, client, number, spec, steps, at_step if number == 0 else None)
                for number, client in enumerate(clients)
            ]
            for one in running:
                one.result()
        return clients[0].pull({spec.name: np.arange(N_IDS)})[spec.name]
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("kind", [OptimizerKind.ADAGRAD, OptimizerKind.ADAM])
def test_synchronous_training_equals_one_process(kind: OptimizerKind) -> None:
    with cluster(BUCKETS, owners=2) as made:
        together = trained_together(made, table(kind), 60)
    assert np.abs(together - trained_alone(table(kind), 60)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_synchronous_training_equals_one_process_after_500_steps(kind: OptimizerKind) -> None:
    with cluster(BUCKETS, owners=2) as made:
        together = trained_together(made, table(kind), 500)
    assert np.abs(together - trained_alone(table(kind), 500)).max() < 1e-5


@pytest.mark.parametrize("backups", [False, True])
def test_synchronous_training_stays_equal_while_buckets_move(backups: bool) -> None:
    """Held pushes move with their buckets, and are applied where they are when the step is whole."""
    kind = OptimizerKind.MOMENTUM
    with cluster(BUCKETS, owners=2, spare=1) as made:
        if backups:
            made.back_up_all()

        def move(step: int) -> None:
            made.hear()
            bucket, to = step % BUCKETS, ServerId((step // 3) % 3)
            made.hand_over(bucket, to)

        together = trained_together(made, table(kind), 100, move)
    assert np.abs(together - trained_alone(table(kind), 100)).max() < 1e-5


def test_a_pull_waits_for_the_slowest_within_the_bound_and_not_longer() -> None:
    spec = table(OptimizerKind.SGD)
    ids = np.arange(N_IDS)
    zeros = np.zeros((N_IDS, 8), np.float32)
    with cluster(BUCKETS, owners=2) as made:
        fast, slow = (Client(made.map, TOKEN, BUCKETS, staleness=1, timeout_s=60) for _ in range(2))
        for client in (fast, slow):
            client.define(spec)
            assert client.join() == 0
        for step in range(2):
            fast.pull({spec.name: ids}, step)
            fast.push({spec.name: (ids, zeros)}, {}, step)
        reached = threading.Event()

        def third() -> None:
            fast.pull({spec.name: ids}, 2)
            reached.set()

        waiting = threading.Thread(target=third)
        waiting.start()
        fast_alone = not reached.wait(0.3)
        slow.push({spec.name: (ids, zeros)}, {}, 0)
        waiting.join(20)
        assert fast_alone
        assert reached.is_set()
        slow.leave()
        begin = time.monotonic()
        for step in range(2, 6):
            fast.push({spec.name: (ids, zeros)}, {}, step)
            fast.pull({spec.name: ids}, step + 1)
        assert time.monotonic() - begin < 10
        assert slow.join() == 6
        for client in (fast, slow):
            client.close()


def test_a_dead_client_is_not_waited_for_once_the_master_says_so() -> None:
    spec = table(OptimizerKind.SGD)
    ids = np.arange(N_IDS)
    ones = np.full((N_IDS, 8), -1, np.float32)
    with cluster(BUCKETS, owners=2) as made:
        living, dead = (Client(made.map, TOKEN, BUCKETS, staleness=0, timeout_s=60) for _ in range(2))
        for client in (living, dead):
            client.define(spec)
            client.join()
        before = living.pull({spec.name: ids}, 0)[spec.name]
        living.push({spec.name: (ids, ones)}, {spec.name: 1.0}, 0)
        dead.close()
        for server in made.servers.values():
            server.ask("remove_client", dead.number)
        after = living.pull({spec.name: ids}, 1)[spec.name]
        assert np.array_equal(after, before + 1)
        living.close()


def test_a_client_that_is_behind_changes_less() -> None:
    spec = TableSpec("behind", 2, OptimizerSpec(OptimizerKind.SGD, 1.0), Initializer(InitializerKind.ZEROS))
    one = (np.zeros(1, np.int64), np.full((1, 2), -1, np.float32))
    with cluster(BUCKETS, owners=1) as made:
        ahead = Client(made.map, TOKEN, BUCKETS, slow_down_when_behind=True)
        behind = Client(made.map, TOKEN, BUCKETS, slow_down_when_behind=True)
        for client in (ahead, behind):
            client.define(spec)
            client.join()
        empty = (np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
        behind.push({"behind": empty}, {}, 0)
        for step in range(4):
            ahead.push({"behind": empty}, {}, step)
        ahead.push({"behind": (one[0] + 1, one[1])}, {}, 3)  # Answered after all that this client said before.
        behind.push({"behind": one}, {}, 1)
        assert behind.pull({"behind": one[0]})["behind"].tolist() == [[0.25, 0.25]]
        for client in (ahead, behind):
            client.close()
