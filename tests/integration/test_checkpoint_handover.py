"""Guests with parameter servers of their own go to others by a checkpoint, through a real master."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from elastane.master_client import MasterClient, ServerSet
from elastane.model.errors import RequestRefused
from tests.integration.guests import LoneMaster
from tests.integration.harness import Jobs

TIMEOUT_S = 30.0


class Training:
    """What the guests share: the rows on the servers of each version, and the checkpoint."""

    def __init__(self) -> None:
        self.rows: dict[int, Counter[str]] = {}
        self.checkpoint: Counter[str] = Counter()
        self.saves = 0
        self.training = 0
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def restore(self, servers: ServerSet) -> None:
        with self.lock:
            self.rows.setdefault(servers.version, Counter(self.checkpoint))


class Guest(threading.Thread):
    """A worker that counts on the servers it is told of."""

    def __init__(self, client: MasterClient, training: Training) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.training = training
        self.servers: ServerSet | None = None
        self.counted = 0
        self.leaves = threading.Event()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._train()
        except Exception as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    def _train(self) -> None:
        training, client = self.training, self.client
        while self.servers is None:
            servers = client.server_set(TIMEOUT_S)
            training.restore(servers)
            if client.servers_restored(servers):
                self.servers = servers
        while not training.stop.is_set() and not self.leaves.is_set():
            if client.servers_changed:
                self.servers = client.hand_over(self._save, training.restore, TIMEOUT_S)
            with training.lock:
                training.rows[self.servers.version][client.node] += 1
            self.counted += 1
            time.sleep(0.001)
        client.close()

    def _save(self, version: int) -> None:
        assert self.servers is not None
        before = Counter(self.training.rows[self.servers.version])
        time.sleep(0.05)  # Whoever trained now would be noticed.
        assert self.training.rows[self.servers.version] == before, "somebody trains while this one saves"
        self.training.checkpoint = before
        self.training.saves += 1


def until(condition: object, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_guests_go_to_other_servers_by_a_checkpoint_and_lose_nothing(jobs: Jobs) -> None:
    with LoneMaster(jobs, "--strategy=parameter_server") as master:
        token = master.token_file.read_text().strip()
        training = Training()
        chief = MasterClient(master.address, token, "chief")
        assert chief.set_servers(["a:1", "b:1"]) == 1
        guests = [Guest(MasterClient(master.address, token, f"guest-{number}"), training) for number in range(3)]
        until(lambda: all(guest.counted > 20 for guest in guests))

        assert chief.set_servers(["a:1", "c:1"]) == 2
        assert chief.servers_needed == {"a:1", "b:1", "c:1"}, "nothing is dropped before all have restored"
        until(lambda: all(guest.servers is not None and guest.servers.version == 2 for guest in guests))
        until(lambda: bool(master.events("handed_over", version=2)))

        guests[0].leaves.set()
        chief.set_servers(["d:1"])
        late = Guest(MasterClient(master.address, token, "late"), training)
        rest = [*guests[1:], late]
        until(lambda: all(guest.servers is not None and guest.servers.version == 3 for guest in rest))
        training.stop.set()
        for guest in [*guests, late]:
            guest.join(TIMEOUT_S)
            assert guest.error is None, guest.error
        assert guests[1].client.servers_needed == {"d:1"}
        assert training.rows[3] == {guest.client.node: guest.counted for guest in [*guests, late] if guest.counted}
        assert training.saves == 2
        chief.close()


def test_a_job_of_another_strategy_has_no_hand_over(jobs: Jobs) -> None:
    with LoneMaster(jobs, "--strategy=none") as master:
        token = master.token_file.read_text().strip()
        with (
            MasterClient(master.address, token, "guest") as client,
            pytest.raises(
                RequestRefused, match="no hand-over by checkpoint; start it with --strategy parameter_server"
            ),
        ):
            client.set_servers(["a:1"])
