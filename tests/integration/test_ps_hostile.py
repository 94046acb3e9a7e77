"""Whoever speaks wrongly on the data port is cut off; the server lives, and its memory does not grow."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from elastane.model.errors import InvalidInput, ServersUnreachable, TableMismatch, TableUnknown
from elastane.model.ps import OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import frames
from elastane.ps.client import Client
from elastane.ps.frames import Flag, Hello, Keys, Op, Peer, Push
from elastane.ps.server_events import PeerRefused
from tests.integration.ps_driver import COUNTING, TOKEN, Cluster, ServerProcess, cluster

BUCKETS = 16
GOOD_HELLO = b"".join(frames.write_hello(Hello(Peer.CLIENT, 7, 0, BUCKETS), TOKEN))
SERVER_HELLO = b"".join(frames.write_hello(Hello(Peer.SERVER, 5, 0, BUCKETS), TOKEN))


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    with cluster(BUCKETS, owners=1, spare=1) as running:
        yield running


def frame(op: Op, body: bytes = b"", flags: Flag = Flag.NONE) -> bytes:
    return frames.pack_header(op, 1, len(body), flags) + body


def open_to(server: ServerProcess) -> socket.socket:
    return socket.create_connection((server.address.host, server.address.port), 10)


def closed_after(sock: socket.socket, *pieces: bytes, end: bool) -> bool:
    """Whether the server closes the connection after these bytes; with `end`, once nothing more can come."""
    with sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            if end:
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass  # Closed as well, while it was spoken to.
        return True


def still_serves(made: Cluster) -> bool:
    client = Client(made.map, TOKEN, BUCKETS, timeout_s=20)
    client.define(COUNTING)
    ids = np.array([424242])
    before = client.pull({"counting": ids})["counting"]
    client.push({"counting": (ids, np.full((1, COUNTING.dim), -1, np.float32))}, {}, 0)
    after = client.pull({"counting": ids})["counting"]
    client.close()
    return bool((after == before + 1).all())


def push_body(**changes: object) -> bytes:
    keys = Keys(np.array([COUNTING.number], np.uint32), np.array([1], np.uint32), np.array([1], np.int64))
    fields = {"client": 7, "sequence": 1, "step": 0, "weight": 1.0, "keys": keys}
    fields |= {"lrs": np.ones(1, np.float32), "values": np.ones(COUNTING.dim, np.float32)} | changes
    return b"".join(frames.write_push(Push(**fields)))  # type: ignore[arg-type]


UNKNOWN_OP = struct.pack("<HBBII", 0xE1A5, 99, 0, 0, 0)
UNFINISHED = {"nothing at all", "a letter", "half a push"}
BAD_TABLE = b'{"name": "x"}'
HOSTILE = {
    "nothing at all": [],
    "a letter": [b"x"],
    "http": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    "a pull without a hello": [frame(Op.PULL)],
    "a long hello": [frame(Op.HELLO, bytes(5000))],
    "a hello of zeros": [frame(Op.HELLO, bytes(60))],
    "the hello of another token": [
        frame(Op.HELLO, b"".join(frames.write_hello(Hello(Peer.CLIENT, 7, 0, BUCKETS), "another")))
    ],
    "the hello of another job": [
        frame(Op.HELLO, b"".join(frames.write_hello(Hello(Peer.CLIENT, 7, 0, BUCKETS + 1), TOKEN)))
    ],
    "a header with a wrong checksum": [frame(Op.HELLO, GOOD_HELLO), frame(Op.PULL)[:-1] + b"\x00"],
    "an oversized body": [frame(Op.HELLO, GOOD_HELLO), frames.pack_header(Op.PUSH, 1, 2**32 - 1)],
    "an unknown op": [frame(Op.HELLO, GOOD_HELLO), UNKNOWN_OP + zlib.crc32(UNKNOWN_OP).to_bytes(4, "little")],
    "half a push": [frame(Op.HELLO, GOOD_HELLO), frame(Op.PUSH, push_body())[:-3]],
    "a push in another's name": [frame(Op.HELLO, GOOD_HELLO), frame(Op.PUSH, push_body(client=8))],
    "a push of too few numbers": [
        frame(Op.HELLO, GOOD_HELLO),
        frame(Op.PUSH, push_body(values=np.ones(3, np.float32))),
    ],
    "a push of a negative step": [frame(Op.HELLO, GOOD_HELLO), frame(Op.PUSH, push_body(step=-4))],
    "a push that weighs nothing known": [frame(Op.HELLO, GOOD_HELLO), frame(Op.PUSH, push_body(weight=float("nan")))],
    "a table that is none": [frame(Op.HELLO, GOOD_HELLO), frame(Op.DEFINE, BAD_TABLE)],
    "an answer as a question": [frame(Op.HELLO, GOOD_HELLO), frame(Op.ROWS)],
    "a client that hands over": [frame(Op.HELLO, GOOD_HELLO), frame(Op.TAKE, bytes(16))],
    "a server that pulls": [frame(Op.HELLO, SERVER_HELLO), frame(Op.PULL, bytes(24))],
    "a page of garbage": [
        frame(Op.HELLO, SERVER_HELLO),
        frame(Op.BEGIN, b"".join(frames.write_bucket(3, 2**40, frames.write_applied([], [])))),
        frame(Op.PAGE, b"".join(frames.write_bucket(3, 0, b"garbage"))),
    ],
    "a bucket that is none": [frame(Op.HELLO, SERVER_HELLO), frame(Op.BEGIN, b"".join(frames.write_bucket(99, 0)))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_connection_is_closed_and_the_server_lives(made: Cluster, name: str) -> None:
    owner, spare = made.servers.values()
    server = spare if name == "a page of garbage" else owner  # An owner would not even read it.
    assert closed_after(open_to(server), *HOSTILE[name], end=name in UNFINISHED)
    assert still_serves(made)


def test_a_refused_connection_is_told_once_with_its_reason(made: Cluster) -> None:
    server = next(iter(made.servers.values()))
    sock = open_to(server)
    name = "{}:{}".format(*sock.getsockname())
    assert closed_after(sock, *HOSTILE["the hello of another token"], end=False)
    server.wait_for(lambda events: any(event == PeerRefused(name, "wrong token") for event in events))
    assert sum(isinstance(event, PeerRefused) and event.peer == name for event in server.events) == 1


def test_random_bytes_and_random_frames_do_not_make_memory_grow(made: Cluster) -> None:
    source = random.Random(1)
    server = next(iter(made.servers.values()))
    process = psutil.Process(server.process.pid)

    def attack(times: int) -> None:
        for _ in range(times):
            body = source.randbytes(source.randint(0, 300))
            pieces = [source.randbytes(source.randint(1, 2000))]
            if source.random() < 0.8:
                hello = source.choice([GOOD_HELLO, SERVER_HELLO])
                header = frames.pack_header(source.choice(list(Op)), 0, len(body), Flag(source.randint(0, 127)))
                pieces = [frame(Op.HELLO, hello), header, body, *pieces]
            assert closed_after(open_to(server), *pieces, end=True)
            with contextlib.suppress(OSError), open_to(server) as sock:
                sock.sendall(frame(Op.HELLO, GOOD_HELLO) + frames.pack_header(Op.PUSH, 1, 2**32 - 1))

    attack(100)
    before = process.memory_info().rss
    attack(300)
    assert still_serves(made)
    assert process.memory_info().rss - before < 4 << 20
    assert process.num_threads() < 40


def test_what_a_client_asks_wrongly_is_answered_by_an_error_and_the_connection_stays(made: Cluster) -> None:
    client = Client(made.map, TOKEN, BUCKETS, timeout_s=20)
    client.define(COUNTING)
    ids = np.array([1])
    with pytest.raises(TableUnknown, match='"other" was not defined'):
        client.pull({"other": ids})
    with pytest.raises(InvalidInput, match="do not fit 1 ids of 32 numbers"):
        client.push({"counting": (ids, np.zeros((1, 5), np.float32))}, {}, 0)
    with pytest.raises(InvalidInput, match="lrs"):
        client.push({"counting": (ids, np.zeros((1, COUNTING.dim), np.float32))}, {"counting": float("nan")}, 0)
    with pytest.raises(TableMismatch, match="counting"):
        Client(made.map, TOKEN, BUCKETS).define(
            TableSpec("counting", 5, OptimizerSpec(OptimizerKind.SGD, 1.0), COUNTING.initializer)
        )
    assert client.pull({"counting": ids})["counting"].shape == (1, COUNTING.dim)
    client.close()


def test_a_client_says_when_its_servers_stay_away() -> None:
    with cluster(BUCKETS, owners=1) as gone:
        client = Client(gone.map, TOKEN, BUCKETS, timeout_s=0.5)
        client.define(COUNTING)
        next(iter(gone.servers.values())).kill()
        with pytest.raises(ServersUnreachable, match=r"3 rows could not be pulled in 0.5 s"):
            client.pull({"counting": np.arange(3)})
        with pytest.raises(ServersUnreachable, match=r"1 rows could not be pushed in 0.5 s"):
            client.push({"counting": (np.arange(1), np.zeros((1, COUNTING.dim), np.float32))}, {}, 0)
        client.close()
