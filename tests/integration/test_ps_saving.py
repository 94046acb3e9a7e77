"""A server that died comes back with its buckets as the last checkpoint has them, and goes on from there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elastane.core.owners import Entry, ServerId, next_term
from elastane.model.errors import RequestRefused
from elastane.ps import files, frames
from elastane.ps.client import Client
from elastane.ps.frames import Flag, Hello, Keys, Op, Peer, Push
from elastane.ps.sockets import connect
from elastane.ps.store import Store
from tests.integration.ps_driver import COUNTING, TOKEN, Cluster, cluster, pulled

BUCKETS = 16
N_IDS = 500
IDS = np.arange(N_IDS)
ONES = np.full((N_IDS, COUNTING.dim), -1, np.float32)


def save(made: Cluster, folder: Path, steps: int) -> int:
    path = files.begin(folder)
    for number, server in made.living.items():
        server.ask("save", path, f"server-{number}")
    files.commit(path, BUCKETS, steps)
    return int(path.name)


def bring_back(made: Cluster, number: ServerId, folder: Path, checkpoint: int) -> None:
    """What a master does without backups: a new life, with what the checkpoint has."""
    lost = made.recover(number)
    server = made.add(number, life=1)
    epoch = next_term(max(made.map.entries[bucket].epoch for bucket in lost))
    restored = server.ask("restore", lost, folder, epoch, checkpoint)
    assert restored.number == checkpoint
    made.map = made.map.with_entries({bucket: Entry(epoch, number) for bucket in lost})
    made.spread_the_word()


def test_the_state_is_the_checkpoint_and_what_came_after_the_restore(tmp_path: Path) -> None:
    with cluster(BUCKETS, owners=2) as made:
        client = Client(made.map, TOKEN, BUCKETS, timeout_s=60)
        client.define(COUNTING)
        for step in range(3):
            client.push({"counting": (IDS, ONES)}, {}, step)
        checkpoint = save(made, tmp_path, steps=3)
        client.push({"counting": (IDS, ONES)}, {}, 3)
        dead = ServerId(0)
        lost_ids = np.isin(made_buckets(), made.map.owned_by(dead))
        made.servers[dead].kill()
        waiting = client.push_ahead({"counting": (IDS, ONES)}, {}, 4)
        bring_back(made, dead, tmp_path, checkpoint)
        client.learn(made.map)
        waiting.result()
        counts = pulled(made.map, N_IDS)
        assert set(counts[lost_ids].tolist()) == {4}
        assert set(counts[~lost_ids].tolist()) == {5}
        client.close()


def test_a_push_that_the_checkpoint_has_is_not_applied_again(tmp_path: Path) -> None:
    """Its client may not have heard of it, and sends it again to the next life of the server."""
    with cluster(BUCKETS, owners=1) as made:
        client = Client(made.map, TOKEN, BUCKETS, timeout_s=60)
        client.define(COUNTING)
        send_as_client_7(made, sequence=1)
        checkpoint = save(made, tmp_path, steps=1)
        made.servers[ServerId(0)].kill()
        bring_back(made, ServerId(0), tmp_path, checkpoint)
        send_as_client_7(made, sequence=1)
        assert set(pulled(made.map, N_IDS).tolist()) == {1}
        send_as_client_7(made, sequence=2)
        assert set(pulled(made.map, N_IDS).tolist()) == {2}
        client.close()


def test_held_pushes_are_in_a_checkpoint(tmp_path: Path) -> None:
    with cluster(BUCKETS, owners=1) as made:
        first, second = (Client(made.map, TOKEN, BUCKETS, staleness=0, timeout_s=60) for _ in range(2))
        for client in (first, second):
            client.define(COUNTING)
            client.join()
        first.push({"counting": (IDS, ONES)}, {}, 0)
        assert set(pulled(made.map, N_IDS).tolist()) == {0}
        checkpoint = save(made, tmp_path, steps=0)
        made.servers[ServerId(0)].kill()
        bring_back(made, ServerId(0), tmp_path, checkpoint)
        for client in (first, second):
            client.learn(made.map)
        second.push({"counting": (IDS, 3 * ONES)}, {}, 0)
        assert set(first.pull({"counting": IDS}, 1)["counting"][:, 0].tolist()) == {2.0}
        for client in (first, second):
            client.close()


def test_a_stale_order_to_restore_changes_nothing(tmp_path: Path) -> None:
    with cluster(BUCKETS, owners=2) as made:
        client = Client(made.map, TOKEN, BUCKETS, timeout_s=60)
        client.define(COUNTING)
        client.push({"counting": (IDS, ONES)}, {}, 0)
        checkpoint = save(made, tmp_path, steps=1)
        client.push({"counting": (IDS, ONES)}, {}, 1)
        owned = made.map.owned_by(ServerId(0))
        with pytest.raises(RequestRefused, match="is not above"):
            made.servers[ServerId(0)].ask("restore", owned, tmp_path, made.map.entries[owned[0]].epoch, checkpoint)
        assert set(pulled(made.map, N_IDS).tolist()) == {2}
        client.close()


def made_buckets() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    tables, counts = np.array([COUNTING.number], np.uint32), np.array([N_IDS], np.uint32)
    return Store(BUCKETS).buckets_of(tables, counts, IDS).reshape(-1)


def send_as_client_7(made: Cluster, sequence: int) -> None:
    """One push, by hand."""
    server = made.servers[ServerId(0)]
    connection = connect(server.id, server.address, Hello(Peer.CLIENT, 7, 0, BUCKETS), TOKEN, 10)
    keys = Keys(np.array([COUNTING.number], np.uint32), np.array([N_IDS], np.uint32), IDS)
    push = Push(7, sequence, 0, 1.0, keys, np.ones(1, np.float32), ONES.reshape(-1))
    connection.send(Op.PUSH, 0, frames.write_push(push))
    header, _ = connection.receive(frames.MAX_BODY)
    assert (header.op, header.flags) == (Op.DONE, Flag.NONE)
    connection.close()
