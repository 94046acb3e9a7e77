"""Attendance: the nodes' streams. It knows who is here, hears the heartbeats, and passes on what the nodes ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import assert_never

from elastane.core.heartbeats import Heartbeats
from elastane.master.event_log import EventLog
from elastane.master.job_manager import JobManager
from elastane.master.rendezvous_server import RendezvousServer
from elastane.master.task_manager import Grant, TaskManager
from elastane.model.errors import DatasetMismatch, InvalidInput, MalformedMessage, RequestRefused
from elastane.model.ids import DatasetName, NodeName, TaskId
from elastane.model.node import ExitReason, Node, NodeExit
from elastane.rpc import wire
from elastane.rpc.protos import node_pb2 as pb
from elastane.rpc.server import Send

EXIT_WORD_S = 1.0
"""After a stream broke, how long the platform has to say why, before the node's leases go to others."""

LAST_WORDS_S = 1.0
"""How long the last messages to a node may take."""

Outbox = asyncio.Queue[pb.MasterMessage | None]
"""What is to be written to a node; None ends it."""

_BLAMED = frozenset({ExitReason.ERROR, ExitReason.OOM, ExitReason.LOST})
"""The ends of a worker that count as a failed try of the shard that it worked on."""


class Attendance:
    """The `Nodes` service."""

    def __init__(
        self,
        job_manager: JobManager,
        task_manager: TaskManager,
        rendezvous: RendezvousServer,
        events: EventLog,
        *,
        heartbeat_timeout_s: float,
        check_replicas: bool,
        clock: Callable[[], float],
    ) -> None:
        self._job_manager = job_manager
        self._task_manager = task_manager
        self._rendezvous = rendezvous
        self._events = events
        self._clock = clock
        self._check_replicas = check_replicas
        self._heartbeats = Heartbeats(heartbeat_timeout_s)
        self._sessions: dict[NodeName, Outbox] = {}
        self._awaiting_word: dict[NodeName, asyncio.TimerHandle] = {}
        job_manager.on_node_end.append(self._on_node_end)

    def tell(self, name: NodeName, message: pb.MasterMessage) -> None:
        """Say something to a node, if its stream is open."""
        if outbox := self._sessions.get(name):
            outbox.put_nowait(message)

    def attends(self, name: NodeName) -> bool:
        return name in self._sessions

    async def watch_heartbeats(self) -> None:
        """Give up the nodes that are silent for too long; never returns."""
        while True:
            await asyncio.sleep(self._heartbeats.look_every_s)
            for name in self._heartbeats.silent(self._clock()):
                self._job_manager.lost(name, f"not heard for {self._heartbeats.limit_s:g} s")

    async def attend(self, messages: AsyncIterator[pb.NodeMessage], send: Send) -> None:
        first = await anext(messages, None)
        if first is None:
            raise MalformedMessage("a stream without a message, or with one over the size limit")
        name = NodeName(wire.checked_hello(first).node)
        if not self._job_manager.expects(name):
            raise RequestRefused(f'node "{name[:100]}" is not expected here: it has ended, or was never launched')
        outbox: Outbox = asyncio.Queue()
        self._arrived(name, outbox)
        writer = asyncio.create_task(_write(outbox, send))
        try:
            async for message in messages:
                if self._sessions.get(name) is not outbox:
                    return  # The node has opened another stream, or was given up.
                self._heartbeats.heard(name, self._clock())
                if message.WhichOneof("body") == "goodbye":
                    self._left(name, preempted=message.goodbye.preempted)
                    outbox.put_nowait(pb.MasterMessage(farewell=pb.Farewell()))
                    return
                self._handle(name, message, outbox)
        finally:
            if self._sessions.get(name) is outbox:
                self._broken(name)
            # Let what is said be written: a write that is cut off would keep the stream from ending.
            outbox.put_nowait(None)
            await asyncio.wait({writer}, timeout=LAST_WORDS_S)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _handle(self, name: NodeName, message: pb.NodeMessage, outbox: Outbox) -> None:
        dataset = DatasetName("")
        refused: list[str] = []
        try:
            body = message.WhichOneof("body")
            match body:
                case "heartbeat":
                    pass
                case "define_dataset":
                    spec = wire.define_dataset_from_wire(message.define_dataset)
                    dataset = spec.name
                    self._task_manager.define(name, spec)
                    outbox.put_nowait(pb.MasterMessage(dataset_defined=pb.DatasetDefined(name=spec.name)))
                case "lease_request":
                    dataset = DatasetName(message.lease_request.dataset)
                    count = wire.checked_count(message.lease_request)
                    self._task_manager.lease(
                        name, dataset, count, lambda grant: outbox.put_nowait(_leases(dataset, grant))
                    )
                case "commit":
                    dataset = DatasetName(message.commit.dataset)
                    progress = [(TaskId(entry.task), entry.upto) for entry in message.commit.progress]
                    refused = self._task_manager.commit(name, dataset, progress)
                case "give_back":
                    dataset = DatasetName(message.give_back.dataset)
                    tasks = [TaskId(task) for task in message.give_back.task]
                    refused = self._task_manager.give_back(name, dataset, tasks, wire.checked_error(message.give_back))
                case "join_world" | "leave_world" | "world_ready" | "world_moved" | "world_broken":
                    self._handle_world(name, message)
                case "store_set":
                    entry = wire.checked_store_set(message.store_set)
                    self._rendezvous.store.set(name, entry.version, entry.key, entry.value)
                case "store_get":
                    asked = message.store_get
                    self._rendezvous.store.get(
                        name, asked.version, asked.key, lambda value: outbox.put_nowait(_stored(asked, value))
                    )
                case "data_position":
                    dataset = DatasetName(message.data_position.dataset)
                    position = wire.position_from_wire(message.data_position)
                    told = message.data_position
                    self._task_manager.report(name, dataset, position, told.step, restored=told.restored)
                case "hello" | "goodbye" | None:
                    raise MalformedMessage(f"{body or 'an empty message'} in the middle of a stream")
                case _:
                    assert_never(body)
        except (DatasetMismatch, InvalidInput, RequestRefused) as error:
            refused = [str(error)]
        if refused:
            outbox.put_nowait(pb.MasterMessage(refused=pb.Refused(reason="; ".join(refused), dataset=dataset)))

    def _handle_world(self, name: NodeName, message: pb.NodeMessage) -> None:
        match message.WhichOneof("body"):
            case "join_world":
                self._rendezvous.join(name)
            case "leave_world":
                self._rendezvous.leave(name)
            case "world_ready":
                self._rendezvous.ready(name, message.world_ready.version)
            case "world_moved":
                moved = message.world_moved
                self._rendezvous.moved(name, moved.version, moved.rounds, wire.checked_checksum(moved))
            case "world_broken":
                self._rendezvous.broken(name, message.world_broken.version)

    def _arrived(self, name: NodeName, outbox: Outbox) -> None:
        # What it had leased on an earlier stream is void: it starts anew, and so do its shards.
        self._return_shards(name, None)
        self._rendezvous.lost(name)
        self._sessions[name] = outbox
        self._heartbeats.heard(name, self._clock())
        self._events.emit("node_attended", node=name)
        welcome = pb.Welcome(heartbeat_interval_s=self._heartbeats.interval_s, check_replicas=self._check_replicas)
        outbox.put_nowait(pb.MasterMessage(welcome=welcome))

    def _left(self, name: NodeName, *, preempted: bool) -> None:
        self._events.emit("node_left", node=name, preempted=preempted)
        if preempted:
            self._job_manager.preempted(name)
        else:
            self._rendezvous.completed()
        self._forget(name)
        self._return_shards(name, None)

    def _broken(self, name: NodeName) -> None:
        """The stream broke: the process died, or only the connection did. The platform will know which."""
        self._events.emit("node_disconnected", node=name)
        del self._sessions[name]
        self._rendezvous.lost(name)
        loop = asyncio.get_running_loop()
        self._awaiting_word[name] = loop.call_later(EXIT_WORD_S, self._return_shards, name, None)

    def _on_node_end(self, node: Node, exit: NodeExit) -> None:
        self._forget(node.name)
        blamed = exit.reason in _BLAMED and not node.is_released
        self._return_shards(node.name, f"{node.short_name} ended ({exit.reason})" if blamed else None)

    def _forget(self, name: NodeName) -> None:
        self._sessions.pop(name, None)
        self._heartbeats.forget(name)
        self._rendezvous.lost(name)

    def _return_shards(self, name: NodeName, error: str | None) -> None:
        if timer := self._awaiting_word.pop(name, None):
            timer.cancel()
        self._task_manager.worker_lost(name, error)


def _leases(dataset: DatasetName, grant: Grant) -> pb.MasterMessage:
    if grant.tasks:
        return wire.leases_to_wire(dataset, pb.Leases.GRANTED, grant.tasks)
    return wire.leases_to_wire(dataset, pb.Leases.FINISHED if grant.finished else pb.Leases.WAIT)


def _stored(asked: pb.StoreGet, value: bytes) -> pb.MasterMessage:
    return pb.MasterMessage(store_value=pb.StoreValue(version=asked.version, key=asked.key, value=value))


async def _write(outbox: Outbox, send: Send) -> None:
    while (message := await outbox.get()) is not None:
        await send(message)
