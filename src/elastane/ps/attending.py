"""The control side of a parameter server: it attends the master, carries out its orders, and says what happens.

It lives on an event loop beside the threads that serve rows, which go on whether or not there is a master. A master
that comes after another, or a stream that is opened anew, first hears all that the server has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import structlog

from elastane.core.backoff import delays
from elastane.core.owners import Entry, OwnerMap, ServerId
from elastane.core.ps_orders import Order, OrderKind
from elastane.model.errors import CheckpointMisfit, ElastaneError, MalformedMessage, RequestRefused, StateLost
from elastane.ps import files
from elastane.ps.server import ParameterServer
from elastane.ps.server_events import (
    HandedOver,
    LinkLost,
    PeerRefused,
    Replicated,
    ReplicationFailed,
    ServerEvent,
    SteppedDown,
    Took,
)
from elastane.ps.store import Store, warm_up
from elastane.rpc import ps_wire, wire
from elastane.rpc.channel import MasterChannel
from elastane.rpc.messages import parse
from elastane.rpc.protos import node_pb2 as pb
from elastane.worker.door import Door, data_token

LOAD_EVERY_S = 1.0
GOODBYE_TIMEOUT_S = 5.0
MOST_PAUSE_S = 2.0
"""Between two tries to find the master again."""

_FINAL = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
)
"""Answers that a new stream would get again."""

_SERVICE = pb.DESCRIPTOR.services_by_name["Nodes"]
_log = structlog.get_logger("elastane.ps")


class ServerAttendant:
    """One parameter server's part in a job."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._server: ParameterServer | None = None
        self._id = ServerId(0)
        self._n_buckets = 0
        self._heartbeat_interval_s = MOST_PAUSE_S
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[pb.NodeMessage] = asyncio.Queue()
        self._changes: dict[int, Entry] = {}
        self._lost_links: dict[ServerId, str] = {}
        self._compiles = False
        self._leaving = asyncio.Event()
        self._failure: BaseException | None = None
        self.attends = False
        """Whether a stream to the master is open."""
        self.rows = 0
        """Rows that were pulled and pushed here."""
        self.happened: Counter[type[ServerEvent]] = Counter()
        """How often each kind of thing has happened by itself, or because it was ordered."""
        self._process = psutil.Process()
        # Orders in their order; what reads and writes files is slow, and must not hold them up.
        self._orders = ThreadPoolExecutor(1, thread_name_prefix="orders")
        self._files = ThreadPoolExecutor(1, thread_name_prefix="files")

    @property
    def server(self) -> ParameterServer | None:
        """The server, once there was a first welcome."""
        return self._server

    def leave(self) -> None:
        """Say goodbye and end: somebody asked this process to."""
        if self._compiles:
            os._exit(0)  # Nobody knows of it yet, and it has nothing; but a compiler cannot be told to stop.
        self._leaving.set()

    async def run(self) -> None:
        """Attend until told to leave, or until the master wants no more of this server. Raises RequestRefused."""
        channel = MasterChannel(self._door.address, self._door.token, self._door.certificate)
        pauses = _pauses(MOST_PAUSE_S)
        first = True
        # Compiling may take longer than a node may be silent.
        self._compiles = True
        await self._loop.run_in_executor(None, warm_up)
        self._compiles = False
        try:
            while not self._leaving.is_set():
                stream = channel.open_stream(_SERVICE, "Attend")
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    if await self._one_stream(stream, resumes=not first):
                        # A master that comes after another gives up whom it does not hear.
                        pauses, first = _pauses(min(MOST_PAUSE_S, self._heartbeat_interval_s)), False
                if self._leaving.is_set():
                    break
                code = await stream.code()
                if code in _FINAL:
                    raise RequestRefused(await stream.details())
                _log.warning("master_lost", address=self._door.address, code=code.name)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._leaving.wait(), next(pauses))
        finally:
            await channel.close()
            if self._server is not None:
                await self._loop.run_in_executor(None, self._server.stop)
            self._orders.shutdown(wait=False, cancel_futures=True)
            self._files.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            raise self._failure

    async def _one_stream(self, stream: Any, *, resumes: bool) -> bool:
        """Attend on one stream until it ends; false if there was no welcome."""
        hello = pb.Hello(protocol=wire.PROTOCOL, node=self._door.node, resumes=resumes)
        await stream.write(pb.NodeMessage(hello=hello))
        welcome = await _read(stream)
        if welcome is None or welcome.WhichOneof("body") != "welcome":
            return False
        self._outbox = asyncio.Queue()
        self._heartbeat_interval_s = welcome.welcome.heartbeat_interval_s
        server = await self._serve(welcome.welcome)
        self._say(pb.NodeMessage(server_holds=pb.ServerHolds(owner_map=server.owned().to_bytes())))
        for peer, reason in self._lost_links.items():
            self._say(pb.NodeMessage(link_lost=pb.LinkLost(peer=peer, reason=reason[: wire.MOST_TEXT])))
        helpers = [
            asyncio.create_task(self._write(stream)),
            asyncio.create_task(self._beat(welcome.welcome.heartbeat_interval_s)),
            asyncio.create_task(self._report_load(server)),
        ]
        reading = asyncio.create_task(self._read_all(stream, server))
        leaving = asyncio.create_task(self._leaving.wait())
        self.attends = True
        try:
            await asyncio.wait({reading, leaving, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            if self._leaving.is_set() and not reading.done():
                self._say(pb.NodeMessage(goodbye=pb.Goodbye(preempted=True)))
                await asyncio.wait({reading}, timeout=GOODBYE_TIMEOUT_S)
            if reading.done():
                reading.result()
        finally:
            self.attends = False
            for task in (reading, leaving, *helpers):
                task.cancel()
            await asyncio.gather(reading, leaving, *helpers, return_exceptions=True)
        return True

    async def _serve(self, welcome: pb.Welcome) -> ParameterServer:
        """The server, started if this is the first welcome."""
        if self._server is None:
            if not welcome.HasField("servers") or not welcome.servers.HasField("server"):
                raise RequestRefused("this node is no parameter server of the job")
            self._id, self._n_buckets = ServerId(welcome.servers.server), welcome.servers.buckets
            store = Store(self._n_buckets)
            server = ParameterServer(store, self._id, data_token(self._door.token), self._n_buckets, self._happened)
            host, port, path = await self._loop.run_in_executor(None, server.start, 0, self._door.host)
            _log.info("serves", server=self._id, host=host, port=port, unix_path=path)
            self._server = server
        return self._server

    async def _read_all(self, stream: Any, server: ParameterServer) -> None:
        while (message := await _read(stream)) is not None:
            if message.WhichOneof("body") == "farewell":
                return
            self._take(server, message)

    def _take(self, server: ParameterServer, message: pb.MasterMessage) -> None:
        match message.WhichOneof("body"):
            case "server_orders":
                told = message.server_orders
                orders = ps_wire.orders_from_wire(told, self._id, self._n_buckets)
                restores = [order for order in orders if order.kind is OrderKind.RESTORE]
                others = [order for order in orders if order.kind is not OrderKind.RESTORE]
                if others:
                    self._do(self._orders, functools.partial(self._obey, server, others))
                if restores:
                    self._do(self._files, functools.partial(self._restore, server, restores, Path(told.checkpoint)))
            case "bury_server":
                self._do(self._orders, functools.partial(self._bury, server, ServerId(message.bury_server.server)))
            case "ask_server":
                self._do(self._orders, functools.partial(self._answer, server))
            case "server_map":
                owner_map = ps_wire.checked_map(message.server_map.owner_map, self._n_buckets)
                self._do(self._orders, functools.partial(server.learn, owner_map))
            case "forget_clients":
                clients = list(message.forget_clients.client)
                self._do(self._orders, functools.partial(_forget, server, clients))
            case "save_part":
                self._do(self._files, functools.partial(self._save, server, Path(message.save_part.folder)))
            case "commit_checkpoint":
                self._do(self._files, functools.partial(self._commit, message.commit_checkpoint))
            case "refused":
                _log.warning("refused", reason=message.refused.reason)
            case other:
                _log.warning("message_without_meaning", message=other)

    def _do(self, executor: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        executor.submit(work).add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        # An error of this program: end, and let the node be replaced, rather than go on without the master knowing.
        if not future.cancelled() and (error := future.exception()) is not None:
            _log.error("failed", error=repr(error))
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._leaving.set()

    # What the master orders; in threads.

    def _obey(self, server: ParameterServer, orders: Iterable[Order]) -> None:
        for order in orders:
            if order.kind.moves:
                move = server.hand_over if order.kind is OrderKind.HAND_OVER else server.replicate
                move(order.bucket, ServerId(order.value))
                continue
            try:
                if not self._is_mine(server.known(), order):
                    if order.kind is OrderKind.PROMOTE:
                        server.promote(order.bucket, order.value)
                    else:
                        server.own([order.bucket], order.value)
            except RequestRefused as error:
                self._failed([order.bucket], str(error))
            else:
                self._changed(server, [order.bucket])

    def _restore(self, server: ParameterServer, orders: list[Order], checkpoint: Path) -> None:
        for epoch in sorted({order.value for order in orders}):
            mine = [order for order in orders if order.value == epoch]
            known = server.known()
            buckets = [order.bucket for order in mine if not self._is_mine(known, order)]
            # What it took while the master looked for it is newer than any checkpoint.
            taken = [bucket for bucket in buckets if known.entries[bucket].owner == self._id]
            buckets = [bucket for bucket in buckets if bucket not in taken]
            try:
                server.own(taken, epoch)
                if buckets:
                    server.restore(buckets, checkpoint.parent, epoch, int(checkpoint.name))
            except (StateLost, CheckpointMisfit) as error:
                self._failed(buckets, str(error), fatal=True)
            except RequestRefused as error:
                self._failed(buckets, str(error))
            else:
                self._changed(server, [order.bucket for order in mine])

    def _is_mine(self, known: OwnerMap, order: Order) -> bool:
        entry = known.entries[order.bucket]
        return entry.owner == self._id and entry.epoch >= order.value

    def _bury(self, server: ParameterServer, dead: ServerId) -> None:
        holds = pb.ServerHolds(owner_map=server.bury(dead).to_bytes(), buried=dead)
        self._lost_links.pop(dead, None)
        self._say_soon(pb.NodeMessage(server_holds=holds))

    def _answer(self, server: ParameterServer) -> None:
        self._say_soon(pb.NodeMessage(server_holds=pb.ServerHolds(owner_map=server.owned().to_bytes())))

    def _save(self, server: ParameterServer, folder: Path) -> None:
        try:
            server.save(folder, f"server-{self._id}")
            error = ""
        except (OSError, ElastaneError) as failure:
            error = str(failure)
        saved = pb.PartSaved(folder=str(folder), error=error[: wire.MOST_TEXT])
        self._say_soon(pb.NodeMessage(part_saved=saved))

    def _commit(self, told: pb.CommitCheckpoint) -> None:
        path = Path(told.folder)
        try:
            files.commit(path, self._n_buckets, told.steps, json.loads(told.position))
            files.prune(path.parent, told.keep)
            error = ""
        except (OSError, ElastaneError, ValueError) as failure:
            error = str(failure)
        saved = pb.PartSaved(folder=told.folder, committed=True, error=error[: wire.MOST_TEXT])
        self._say_soon(pb.NodeMessage(part_saved=saved))

    def _failed(self, buckets: list[int], reason: str, *, fatal: bool = False) -> None:
        failed = pb.OrdersFailed(bucket=buckets, reason=reason[: wire.MOST_TEXT], fatal=fatal)
        self._say_soon(pb.NodeMessage(orders_failed=failed))

    def _changed(self, server: ParameterServer, buckets: list[int]) -> None:
        entries = server.known().entries
        self._loop.call_soon_threadsafe(self._note, {bucket: entries[bucket] for bucket in buckets})

    # What happens by itself; in the server's threads.

    def _happened(self, event: ServerEvent) -> None:
        self._loop.call_soon_threadsafe(self.happened.update, [type(event)])
        match event:
            case Replicated(bucket, to, epoch):
                self._note_soon(bucket, Entry(epoch, self._id, to))
            case HandedOver(bucket, to, epoch, backup):
                self._note_soon(bucket, Entry(epoch, to, backup))
            case Took(bucket, epoch, backup):
                self._note_soon(bucket, Entry(epoch, self._id, backup))
            case ReplicationFailed(bucket, to, reason):
                _log.warning("move_failed", bucket=bucket, to=to, reason=reason)
                self._loop.call_soon_threadsafe(self._move_failed, bucket, reason)
            case LinkLost(peer, reason):
                _log.warning("link_lost", peer=peer, reason=reason)
                self._lost_links[peer] = reason
                lost = pb.LinkLost(peer=peer, reason=reason[: wire.MOST_TEXT])
                self._say_soon(pb.NodeMessage(link_lost=lost))
            case SteppedDown(bucket, epoch):
                _log.info("stepped_down", bucket=bucket, epoch=epoch)
            case PeerRefused(peer, reason):
                _log.warning("peer_refused", peer=peer, reason=reason)

    def _move_failed(self, bucket: int, reason: str) -> None:
        """Say first how it is with the bucket: it was given away before, or it is here and has lost its backup."""
        if self._server is not None:
            self._note({bucket: self._server.known().entries[bucket]})
            self._flush()
        self._failed([bucket], reason)

    def _note_soon(self, bucket: int, entry: Entry) -> None:
        self._loop.call_soon_threadsafe(self._note, {bucket: entry})

    def _note(self, entries: dict[int, Entry]) -> None:
        """On the loop: what changes at one time goes into one message."""
        if not self._changes:
            self._loop.call_soon(self._flush)
        for bucket, entry in entries.items():
            if bucket not in self._changes or self._changes[bucket].epoch < entry.epoch:
                self._changes[bucket] = entry

    def _flush(self) -> None:
        if self._changes:
            changes, self._changes = self._changes, {}
            self._say(pb.NodeMessage(buckets_changed=ps_wire.entries_to_wire(changes.items())))

    def _say_soon(self, message: pb.NodeMessage) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._say, message)

    def _say(self, message: pb.NodeMessage) -> None:
        self._flush()
        self._outbox.put_nowait(message)

    # What goes on beside.

    async def _write(self, stream: Any) -> None:
        while True:
            await stream.write(await self._outbox.get())

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._say(pb.NodeMessage(heartbeat=pb.Heartbeat()))

    async def _report_load(self, server: ParameterServer) -> None:
        said_at, cpu_s = time.monotonic(), time.process_time()
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            before, cpu_before = said_at, cpu_s
            said_at, cpu_s = time.monotonic(), time.process_time()
            loads, tables = await self._loop.run_in_executor(None, server.loads)
            self.rows += int(loads.sum(dtype=np.float64))
            load = pb.ServerLoad(
                bucket=loads.tolist(),
                table=[pb.TableLoad(name=name, rows=table.rows, bytes=table.bytes) for name, table in tables.items()],
                memory_bytes=self._process.memory_info().rss,
                step=server.steps,
                cpu=(cpu_s - cpu_before) / max(0.001, said_at - before),
            )
            self._say(pb.NodeMessage(server_load=load))


def _forget(server: ParameterServer, clients: list[int]) -> None:
    for client in clients:
        server.remove_client(client)


def _pauses(most_s: float) -> Iterator[float]:
    return delays(min(0.05, most_s), most_s, random.Random())  # noqa: S311  # jitter, not a secret


async def _read(stream: Any) -> pb.MasterMessage | None:
    data = await stream.read()
    if data is grpc.aio.EOF:
        return None
    try:
        return parse(pb.MasterMessage, data)
    except MalformedMessage as error:
        _log.warning("message_not_read", reason=str(error))
        return None
