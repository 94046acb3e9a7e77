"""What the wire of the parameter servers costs: pull and push of 512 x 26 ids x 16 floats, and buckets that move.

Servers and workers are processes of this machine. `echo` sends the bytes of a pull's answer, or of a push, over the
same kind of socket to a process that does nothing else, in the same run: that is what there is to gain. While buckets
move to one more server, `worst_ms` is the slowest single pull or push, and `rest` the throughput against that before;
`rest_after` is the throughput with that server when nothing moves any more, for more servers may also be slower, where
they share the cores.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, parser
from elastane.core.owners import OwnerMap, ServerAddress, ServerId, next_term
from elastane.model.ps import OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.client import Client
from elastane.ps.server import ParameterServer
from elastane.ps.store import Store

TOKEN = "benchmark"
BUCKETS = 1024
TABLES = [TableSpec(f"field-{field}", 16, OptimizerSpec(OptimizerKind.ADAGRAD, 0.01)) for field in range(26)]
SAMPLES = 512
ROWS_A_TABLE = 50_000
CONTEXT = multiprocessing.get_context("spawn")


def serve(pipe: Connection, number: int) -> None:
    """A server's process."""
    moved: list[object] = []
    server = ParameterServer(Store(BUCKETS), ServerId(number), TOKEN, BUCKETS, moved.append)
    pipe.send(server.start())
    while True:
        name, arguments = pipe.recv()
        if name == "moved":
            pipe.send(len(moved))
        else:
            pipe.send(getattr(server, name)(*arguments))
        if name == "stop":
            return


class Server:
    """A server's process, from outside."""

    def __init__(self, number: int) -> None:
        self.id = ServerId(number)
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=serve, args=(theirs, number), daemon=True)
        self._process.start()
        host, port, path = self._pipe.recv()
        self.address = ServerAddress(host, port, path)

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        return self._pipe.recv()

    def stop(self) -> None:
        self.ask("stop")
        self._process.join()


def batches(seed: int, count: int) -> list[dict[str, np.ndarray[Any, np.dtype[np.int64]]]]:
    """Different ids a table, as a client has them after it took duplicates out."""
    random = np.random.default_rng(seed)
    return [{spec.name: random.choice(ROWS_A_TABLE, SAMPLES, replace=False) for spec in TABLES} for _ in range(count)]


def work(pipe: Connection, owner_map: OwnerMap, seed: int) -> None:
    """A worker: for as many seconds as it is told, or until the next word, pull and push; how long each took."""
    client = Client(owner_map, TOKEN, BUCKETS)
    for spec in TABLES:
        client.define(spec)
    made = batches(seed, 8)
    grads = np.random.default_rng(seed).standard_normal((SAMPLES, 16)).astype(np.float32)
    step = 0
    while (seconds := pipe.recv()) > 0:
        pulls, pushes, whens = [], [], []
        begin = now = time.perf_counter()
        while now - begin < seconds and not pipe.poll():
            ids = made[step % len(made)]
            start = time.perf_counter()
            client.pull(ids)
            pulled = time.perf_counter()
            client.push({name: (one, grads) for name, one in ids.items()}, {}, step)
            now = time.perf_counter()
            pulls.append(pulled - start)
            pushes.append(now - pulled)
            whens.append(now - begin)
            step += 1
        pipe.send((pulls, pushes, whens))
    client.close()


class Worker:
    """A worker's process, from outside."""

    def __init__(self, owner_map: OwnerMap, seed: int) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=work, args=(theirs, owner_map, seed), daemon=True)
        self._process.start()

    def stop(self) -> None:
        self.pipe.send(0)
        self._process.join()


def echo(path: str, size: int) -> None:
    """A process that takes so many bytes and gives them back."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    sock, _ = listener.accept()
    buffer = bytearray(size)
    while sock.recv_into(buffer, size, socket.MSG_WAITALL) == size:
        sock.sendall(buffer)


def measure_echo(report: Report, repeats: int) -> None:
    """The way there and back of the bytes of one request, by Unix socket and by TCP's equal."""
    size = SAMPLES * 26 * (16 * 4 + 8)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "echo")
        process = CONTEXT.Process(target=echo, args=(path, size), daemon=True)
        process.start()
        while not Path(path).exists():
            time.sleep(0.01)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        out, back = bytes(size), bytearray(size)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            writer = threading.Thread(target=sock.sendall, args=(out,))
            writer.start()
            sock.recv_into(back, size, socket.MSG_WAITALL)
            writer.join()
            times.append(time.perf_counter() - start)
        sock.close()
        process.join()
    add_times(report.row("echo", bytes=2 * size), times, 2 * size)


def add_times(row: Any, times: list[float], size: int) -> None:
    middle = statistics.median(times)
    row.add(
        median_ms=middle * 1e3,
        p99_ms=float(np.percentile(times, 99)) * 1e3,
        rows_per_s=SAMPLES * 26 / middle,
        mb_per_s=size / middle / 1e6,
    )


def run(workers: list[Worker], seconds: float) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    for worker in workers:
        worker.pipe.send(seconds)
    answers = [worker.pipe.recv() for worker in workers]
    pulls, pushes, whens = (list(one) for one in zip(*answers, strict=True))
    return pulls, pushes, whens


def measure_wire(report: Report, n_workers: int, n_servers: int, seconds: float, moves: int) -> None:
    """Pulls and pushes with nothing else going on; while `moves` buckets move to one more server; and after that."""
    servers = [Server(number) for number in range(n_servers + 1)]
    addresses = {server.id: server.address for server in servers}
    owner_map = OwnerMap.spread(BUCKETS, {server.id: server.address for server in servers[:-1]}, next_term(0))
    for server in servers:
        if owned := owner_map.owned_by(server.id):
            server.ask("own", owned, next_term(0))
        server.ask("learn", OwnerMap(OwnerMap.empty(BUCKETS).entries, addresses))
    workers = [Worker(owner_map, seed) for seed in range(n_workers)]
    run(workers, min(seconds, 2))  # Rows are made, and everything is warm.
    pulls, pushes, _ = run(workers, seconds)
    settings = {"workers": n_workers, "servers": n_servers}
    size = SAMPLES * 26 * (16 * 4 + 8)
    add_times(report.row("pull", **settings), [one for some in pulls for one in some], size)
    add_times(report.row("push", **settings), [one for some in pushes for one in some], size)
    before = sum(len(one) for one in pulls) / seconds
    for worker in workers:
        worker.pipe.send(1000.0)
    moving_s = move(servers, moves)
    for worker in workers:
        worker.pipe.send(0.001)  # Ends the long run, and begins one that is not looked at.
    answers = [worker.pipe.recv() for worker in workers]
    for worker in workers:
        worker.pipe.recv()
    operations = [(when, max(pull, push)) for one in answers for pull, push, when in zip(*one, strict=True)]
    during = [slowest for when, slowest in operations if when <= moving_s]
    after, _, _ = run(workers, seconds)
    report.row("moving", buckets=moves, **settings).add(
        worst_ms=max(during) * 1e3,
        p99_ms=float(np.percentile(during, 99)) * 1e3,
        moved_s=moving_s,
        rest=len(during) / moving_s / before,
        rest_after=sum(len(one) for one in after) / seconds / before,
    )
    for worker in workers:
        worker.stop()
    for server in servers:
        server.stop()


def move(servers: list[Server], moves: int) -> float:
    """Hand so many buckets over to the last server; how long it took."""
    spare = servers[-1]
    begin = time.perf_counter()
    seen = spare.ask("moved")
    for bucket in range(moves):
        servers[bucket % (len(servers) - 1)].ask("hand_over", bucket, spare.id)
    while spare.ask("moved") - seen < moves:
        time.sleep(0.01)
    return time.perf_counter() - begin


def main() -> None:
    arguments = parser(__doc__).parse_args()
    report = Report()
    repeats, seconds, moves = (1, 1.5, 64) if arguments.quick else (3, 5.0, 256)
    for _ in range(repeats):
        measure_echo(report, 50 if arguments.quick else 300)
        for n_workers, n_servers in ((1, 1), (2, 2)):
            measure_wire(report, n_workers, n_servers, seconds, moves)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
