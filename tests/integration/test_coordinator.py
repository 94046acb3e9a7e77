"""The coordinator for plain Python, on real worker servers and parameter servers."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count as numbers_from
from pathlib import Path

import numpy as np
import pytest

from elastane.coordinator import ClusterCoordinator, PerWorkerReference, WorkerCluster, current_worker_index
from elastane.model.errors import ClosureCancelled, InvalidInput, RequestRefused, WorkerUnreachable
from tests.integration import closure_functions
from tests.integration.ps_driver import COUNTING, Cluster, cluster
from tests.integration.server_nursery import ForkedServer, free_address
from tests.integration.worker_servers import TOKEN, WorkerServers


@dataclass
class Training:
    """Workers, parameter servers, and a coordinator whose closures count on them."""

    servers: WorkerServers
    rows: Cluster
    coordinator: ClusterCoordinator
    clients: PerWorkerReference
    workers: dict[str, ForkedServer]
    scheduled: int = 0
    row: int = field(default_factory=numbers_from(1).__next__)

    def new_worker(self, address: str = "") -> ForkedServer:
        worker = self.servers.worker(address)
        self.workers[worker.address] = worker
        return worker

    def schedule(self, count: int) -> None:
        for _ in range(count):
            self.coordinator.schedule(closure_functions.count, args=(self.clients, self.row))
        self.scheduled += count

    def counted(self, row: int) -> int:
        client = closure_functions.counting_client(self.rows.map)
        try:
            return int(client.pull({COUNTING.name: np.array([row])})[COUNTING.name][0, 0])
        finally:
            client.close()


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with WorkerServers() as servers, cluster(8, owners=2) as rows:
        workers = {each.address: each for each in (servers.worker(), servers.worker())}
        with ClusterCoordinator(WorkerCluster(tuple(workers), TOKEN)) as coordinator:
            owner_map = rows.map
            clients = coordinator.create_per_worker_value(lambda: closure_functions.counting_client(owner_map))
            yield Training(servers, rows, coordinator, clients, workers)


def test_workers_are_removed_and_added_while_closures_run_and_each_counts_once(training: Training) -> None:
    coordinator = training.coordinator
    _, second = training.workers
    for epoch in range(4):
        if epoch == 1:
            coordinator.remove_worker(second)
            assert coordinator.stopped_workers == {second: 1}
        if epoch == 2:
            coordinator.add_worker(second)
        if epoch == 3:
            assert coordinator.add_worker(training.new_worker().address) == 2
        training.schedule(60)
        coordinator.join()
        assert training.counted(training.row) == training.scheduled
    assert coordinator.done()
    assert coordinator.repeats == 0
    assert set(training.clients) >= {0, 1}


def test_what_a_killed_worker_had_pushed_is_not_pushed_again_when_its_closure_is_run_again(
    training: Training, tmp_path: Path
) -> None:
    coordinator = training.coordinator
    before, repeats = set(coordinator.workers), coordinator.repeats
    for row in (101, 102):
        marker = tmp_path / f"killed-{row}"
        coordinator.schedule(closure_functions.count_and_be_killed_once, args=(training.clients, row, marker))
    if len(before) > 2:
        coordinator.join()
    else:
        training.new_worker()
        coordinator.add_worker(next(reversed(training.workers)))
        coordinator.join()
    assert coordinator.repeats - repeats == 2
    assert [training.counted(row) for row in (101, 102)] == [2, 2]
    lost = before - set(coordinator.workers)
    assert len(lost) == 2
    freed = {index for index in range(3) if index not in coordinator.workers.values()}
    assert coordinator.add_worker(training.new_worker().address) == min(freed)


def test_each_worker_has_its_own_iterator_and_one_that_is_added_later_too(training: Training) -> None:
    coordinator = training.coordinator
    iterator = iter(coordinator.create_per_worker_dataset(lambda: range(current_worker_index() * 1000, 10**6)))
    kept, added = next(iter(coordinator.workers)), training.new_worker().address
    for address in set(coordinator.workers) - {kept}:
        coordinator.remove_worker(address)
    first = [coordinator.schedule(closure_functions.take_next, args=(iterator,)) for _ in range(3)]
    base = coordinator.workers[kept] * 1000
    assert coordinator.fetch(first) == [base, base + 1, base + 2]
    index = coordinator.add_worker(added)
    coordinator.remove_worker(kept)
    later = coordinator.schedule(closure_functions.take_next, args=(iterator,))
    assert later.fetch(30) == index * 1000
    assert set(iterator) == {base // 1000, index}
    with pytest.raises(RequestRefused, match="pass this to `schedule`"):
        next(iterator)
    coordinator.add_worker(kept)


def test_an_error_surfaces_in_join_with_its_traceback_cancels_the_rest_and_leaves_the_coordinator_usable(
    training: Training,
) -> None:
    coordinator = training.coordinator
    kept, *others = coordinator.workers
    for address in others:
        coordinator.remove_worker(address)
    ticket = free_address()
    with socket.create_server(("127.0.0.1", int(ticket.rpartition(":")[2]))) as gate:
        coordinator.schedule(_wait_at, args=(ticket,))
        coordinator.schedule(closure_functions.fail, args=("nothing there",))
        rest = [coordinator.schedule(closure_functions.take_next, args=(iter([]),)) for _ in range(5)]
        gate.accept()[0].close()
        with pytest.raises(LookupError, match="nothing there") as caught:
            coordinator.join()
    assert "closure_functions.py" in str(caught.value.__cause__)
    assert "raise LookupError(text)" in str(caught.value.__cause__)
    for value in rest:
        with pytest.raises(ClosureCancelled, match="schedule it again"):
            value.fetch(30)
    assert coordinator.done()
    assert coordinator.schedule(os.getpid).fetch(30) == training.workers[kept].pid
    for address in others:
        coordinator.add_worker(address)


def _wait_at(address: str) -> None:
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as sock:
        sock.recv(1)


def test_what_cannot_be_done_is_refused_with_the_reason_and_changes_nothing(training: Training) -> None:
    coordinator = training.coordinator
    before = coordinator.workers
    there = next(iter(before))
    with pytest.raises(RequestRefused, match=f"worker {there} is in the cluster already, with index"):
        coordinator.add_worker(there)
    with pytest.raises(RequestRefused, match=r"worker 127\.0\.0\.1:1 is not in the cluster; running: "):
        coordinator.remove_worker("127.0.0.1:1")
    with pytest.raises(WorkerUnreachable, match="does not answer"):
        coordinator.add_worker(free_address())
    with pytest.raises(InvalidInput, match=r"'127\.0\.0\.1:0' is not host:port"):
        coordinator.add_worker("127.0.0.1:0")
    with pytest.raises(InvalidInput, match="cannot be sent to a worker"):
        coordinator.schedule(print, args=(threading.Lock(),))
    value = coordinator.schedule(os.getpid)
    with pytest.raises(InvalidInput, match="RemoteValue cannot be an argument"):
        coordinator.schedule(print, args=(value,))
    coordinator.join()
    assert coordinator.workers == before


def test_who_does_not_hold_the_token_is_refused_before_anything_is_read(training: Training) -> None:
    address = training.new_worker().address
    with pytest.raises(WorkerUnreachable, match="does not accept this token"):
        ClusterCoordinator(WorkerCluster((address,), "another-token-than-theirs"))
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 10) as sock:
        sock.sendall(bytes(64))
        received = b"".join(iter(lambda: sock.recv(1000), b""))
        assert received.startswith(b"elastane closures 1\n")
        assert len(received) == 52
    with ClusterCoordinator(WorkerCluster((address,), TOKEN)) as another:
        assert another.schedule(os.getpid).fetch(30) == training.workers[address].pid


def random_order(training: Training, seed: int) -> None:
    """Eight epochs with a change while each runs: remove, add back, add new, kill and replace."""
    chance = random.Random(seed)
    coordinator = training.coordinator
    start = training.counted(training.row)
    training.scheduled = 0
    for _ in range(8):
        training.schedule(40)
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
        training.schedule(40)
        coordinator.join()
        assert training.counted(training.row) - start == training.scheduled


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_changes_has_every_effect_exactly_once(training: Training, seed: int) -> None:
    random_order(training, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_random_orders_of_changes_have_every_effect_exactly_once(training: Training, seed: int) -> None:
    random_order(training, seed)
