"""Parameter servers and workers in processes of their own, and a cluster of them whose master is the test."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastane.core.owners import Entry, OwnerMap, ServerAddress, ServerId, next_term, recovery
from elastane.model.errors import ElastaneError
from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps.client import Client
from elastane.ps.server import ParameterServer
from elastane.ps.server_events import HandedOver, Replicated, ReplicationFailed, ServerEvent, Took
from elastane.ps.store import Store

TOKEN = "the token of the test"
ZEROS = Initializer(InitializerKind.ZEROS)
COUNTING = TableSpec("counting", 32, OptimizerSpec(OptimizerKind.SGD, 1.0), ZEROS)
"""A push of -1 with rate 1 adds exactly 1."""

_ROOT = Path(__file__).parents[2]


def processes() -> Any:
    """Where processes come from: forked from one that has all kernels loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.integration.ps_preload"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{_ROOT / 'src'}{os.pathsep}{_ROOT}{os.pathsep}{before or ''}"
    try:
        from multiprocessing.forkserver import ensure_running

        ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def serve(pipe: Connection, server: int, n_buckets: int, life: int) -> None:
    """A server's process: does what comes on the pipe, and tells what happens."""
    lock = threading.Lock()

    def say(kind: str, content: object) -> None:
        with lock:
            pipe.send((kind, content))

    running = ParameterServer(
        Store(n_buckets), ServerId(server), TOKEN, n_buckets, lambda event: say("event", event), life=life
    )
    say("answer", running.start())
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            break
        try:
            target = running.store if name in {"digest", "rows_of", "tables"} else running
            say("answer", getattr(target, name)(*arguments))
        except (ElastaneError, OSError) as error:
            say("answer", error)
        if name == "stop":
            break


class ServerProcess:
    """One server's process, and what it has told."""

    def __init__(self, number: int, n_buckets: int, life: int = 0) -> None:
        context = processes()
        self.id = ServerId(number)
        self.events: list[ServerEvent] = []
        self.told = threading.Condition()
        self._answers: list[Any] = []
        self._asking = threading.Lock()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, number, n_buckets, life), daemon=True)
        self.process.start()
        theirs.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        host, port, unix_path = self._answer()
        self.address = ServerAddress(host, port, unix_path, life)

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def ask(self, name: str, *arguments: object) -> Any:
        """Call a method there. Raises what it raises, and EOFError if the process is dead."""
        with self._asking:
            try:
                self._pipe.send((name, arguments))
            except OSError:
                raise EOFError(f"server {self.id} is dead") from None
            return self._answer()

    def wait_for(self, condition: Callable[[list[ServerEvent]], bool], timeout_s: float = 30.0) -> None:
        """Wait until what it has told meets a condition."""
        with self.told:
            if not self.told.wait_for(lambda: condition(self.events) or not self.alive, timeout_s):
                raise TimeoutError(f"server {self.id} told only {self.events[-5:]}")

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        if self.alive:
            self.kill()
        self._reader.join()
        self._pipe.close()

    def _answer(self) -> Any:
        with self.told:
            if not self.told.wait_for(lambda: self._answers or not self._reader.is_alive(), 60):
                raise TimeoutError(f"server {self.id} does not answer")
            if not self._answers:
                raise EOFError(f"server {self.id} is dead")
            answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _read(self) -> None:
        while True:
            try:
                kind, content = self._pipe.recv()
            except (EOFError, OSError):
                break
            with self.told:
                (self.events if kind == "event" else self._answers).append(content)
                self.told.notify_all()
        with self.told:
            self.told.notify_all()


@dataclass
class Cluster:
    """Servers, and what a master does with them."""

    n_buckets: int
    servers: dict[ServerId, ServerProcess] = field(default_factory=dict)
    map: OwnerMap = field(init=False)

    def __post_init__(self) -> None:
        self.map = OwnerMap.empty(self.n_buckets)

    @property
    def living(self) -> dict[ServerId, ServerProcess]:
        return {number: server for number, server in self.servers.items() if server.alive}

    def add(self, number: int, life: int = 0) -> ServerProcess:
        """Start a server, which owns nothing, and tell all of it."""
        server = ServerProcess(number, self.n_buckets, life)
        self.servers[server.id] = server
        self.map = self.map.with_server(server.id, server.address)
        self.spread_the_word()
        return server

    def place(self, owners: Iterable[int]) -> None:
        """The first placement."""
        owner_map = OwnerMap.spread(
            self.n_buckets, {ServerId(one): self.servers[ServerId(one)].address for one in owners}, next_term(0)
        )
        self.map = self.map.merge(owner_map)
        for number, server in self.servers.items():
            if owned := owner_map.owned_by(number):
                server.ask("own", owned, next_term(0))
        self.spread_the_word()

    def spread_the_word(self) -> None:
        for server in self.living.values():
            server.ask("learn", self.map)

    def hear(self) -> None:
        """Take over what the servers have told."""
        changes: dict[int, Entry] = {}
        for number, server in self.servers.items():
            with server.told:
                events = list(server.events)
            for event in events:
                if isinstance(event, Replicated):
                    entry = Entry(event.epoch, number, event.to)
                elif isinstance(event, Took):
                    entry = Entry(event.epoch, number, event.backup)
                else:
                    continue
                if entry.epoch > changes.get(event.bucket, self.map.entries[event.bucket]).epoch:
                    changes[event.bucket] = entry
        self.map = self.map.with_entries(changes)

    def merge_all(self) -> None:
        """Ask everybody what it has."""
        for server in self.living.values():
            self.map = self.map.merge(server.ask("owned"))

    def hand_over(self, bucket: int, to: ServerId) -> ServerProcess | None:
        """Tell the owner of a bucket to hand it over; the answer is the owner, if there was something to do."""
        owner = self.servers[self.owner(bucket)]
        if owner.id == to or not owner.alive:
            return None
        owner.ask("hand_over", bucket, to)
        return owner

    def wait_for_end(self, moves: Iterable[tuple[int, ServerProcess, int]]) -> None:
        """Wait until moves, given with what their source had told before, are done, given up, or their source dead."""
        for bucket, source, seen in moves:
            source.wait_for(
                lambda events, bucket=bucket, seen=seen: any(  # type: ignore[misc]
                    isinstance(event, HandedOver | Replicated | ReplicationFailed) and event.bucket == bucket
                    for event in events[seen:]
                )
            )

    def owner(self, bucket: int) -> ServerId:
        found = self.map.entries[bucket].owner
        assert found is not None
        return found

    def back_up_all(self) -> None:
        """Give every bucket without a backup one on another living server."""
        deadline = time.monotonic() + 60
        while wanted := self._ask_for_backups():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no backups of {[bucket for bucket, _, _ in wanted]}")
            self.wait_for_end(wanted)
        self.spread_the_word()

    def _ask_for_backups(self) -> list[tuple[int, ServerProcess, int]]:
        self.merge_all()
        living = sorted(self.living)
        wanted = []
        for bucket, entry in enumerate(self.map.entries):
            if entry.backup is None and entry.owner in living and len(living) > 1:
                owner = self.servers[entry.owner]
                wanted.append((bucket, owner, len(owner.events)))
                owner.ask("replicate", bucket, living[(living.index(entry.owner) + 1) % len(living)])
        return wanted

    def recover(self, dead: ServerId) -> list[int]:
        """What a master does after a death; the answer are the buckets that are lost."""
        for server in self.living.values():
            self.map = self.map.merge(server.ask("bury", dead))
        promoted, lost, alone = recovery(self.map, self.living, dead)
        for bucket, entry in promoted.items():
            assert entry.owner is not None
            self.servers[entry.owner].ask("promote", bucket, entry.epoch)
        self.map = self.map.with_entries({**promoted, **alone})
        self.spread_the_word()
        return lost

    def end(self) -> None:
        for server in self.servers.values():
            server.end()


@contextmanager
def cluster(n_buckets: int, owners: int, spare: int = 0) -> Iterator[Cluster]:
    """Servers 0 to `owners` - 1 with all buckets, and `spare` ones without."""
    made = Cluster(n_buckets)
    try:
        for number in range(owners + spare):
            made.add(number)
        made.place(range(owners))
        yield made
    finally:
        made.end()


@dataclass
class Counted:
    """What a worker has done."""

    pushed: npt.NDArray[np.int64]
    """How often each id was pushed, and acknowledged."""
    worst_s: float
    operations: int
    wrong: list[str]


def count(pipe: Connection, owner_map: OwnerMap, n_ids: int, seed: int) -> None:
    """A worker's process: pushes counting rows and looks at them, until it is told to stop."""
    client = Client(owner_map, TOKEN, owner_map.n_buckets, timeout_s=60)
    client.define(COUNTING)
    random = np.random.default_rng(seed)
    done = Counted(np.zeros(n_ids, np.int64), 0.0, 0, [])
    client.pull({"counting": np.arange(n_ids)})
    pipe.send("ready")
    step = 0
    while not pipe.poll():
        ids = random.choice(n_ids, n_ids // 4, replace=False)
        begin = time.monotonic()
        client.push({"counting": (ids, np.full((len(ids), COUNTING.dim), -1, np.float32))}, {}, step)
        pushed = time.monotonic()
        done.pushed[ids] += 1
        rows = client.pull({"counting": ids})["counting"]
        done.worst_s = max(done.worst_s, pushed - begin, time.monotonic() - pushed)
        done.operations += 2
        if (rows[:, 0] < done.pushed[ids]).any() or (rows != rows[:, :1]).any():
            done.wrong.append(f"step {step}: less than this worker alone has pushed")
        step += 1
    client.close()
    pipe.send(done)


class Worker:
    """A worker's process that counts."""

    def __init__(self, owner_map: OwnerMap, n_ids: int, seed: int) -> None:
        self._pipe, theirs = processes().Pipe()
        self._process = processes().Process(target=count, args=(theirs, owner_map, n_ids, seed), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        assert self._pipe.poll(60)
        assert self._pipe.recv() == "ready"

    def stop(self) -> Counted:
        """Let it end its step; what it has done."""
        self._pipe.send("stop")
        assert self._pipe.poll(60), "the worker hangs"
        done: Counted = self._pipe.recv()
        self._process.join()
        return done

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


@contextmanager
def workers(made: Cluster, number: int, n_ids: int, seed: int) -> Iterator[list[Worker]]:
    """Workers that count, and are at it."""
    started = [Worker(made.map, n_ids, seed * 100 + one) for one in range(number)]
    try:
        for worker in started:
            worker.wait_until_ready()
        yield started
    finally:
        for worker in started:
            worker.end()


def pulled(owner_map: OwnerMap, n_ids: int) -> npt.NDArray[np.int64]:
    """The counts as the servers have them."""
    client = Client(owner_map, TOKEN, owner_map.n_buckets, timeout_s=30)
    client.define(COUNTING)
    rows = client.pull({"counting": np.arange(n_ids)})["counting"][:, 0]
    client.close()
    return rows.astype(np.int64)


def random_of(seed: int) -> random.Random:
    """A seeded source of schedules."""
    return random.Random(seed)
