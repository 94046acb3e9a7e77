"""Attendance: the nodes' streams. It knows who is here, hears the heartbeats, and passes on what the nodes ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, assert_never

from elastane.core.heartbeats import Heartbeats
from elastane.core.presence import Presence
from elastane.master.closure_feed import ClosureFeed
from elastane.master.event_log import EventLog
from elastane.master.guest_handover import GuestHandover
from elastane.master.journal import Journal
from elastane.master.node_manager import NodeManager
from elastane.master.ps_manager import PSManager
from elastane.master.rendezvous_server import RendezvousServer
from elastane.master.stats_reporter import StatsReporter
from elastane.master.task_manager import Grant, TaskManager
from elastane.master.training_service import TrainingService
from elastane.model.errors import DatasetMismatch, InvalidInput, MalformedMessage, RequestRefused, StaleLease
from elastane.model.ids import DatasetName, NodeName, TaskId
from elastane.model.node import Node, NodeExit, NodeType
from elastane.rpc import evaluation_wire, wire
from elastane.rpc.protos import node_pb2 as pb
from elastane.rpc.server import Send

LAST_WORDS_S = 1.0
"""How long the last messages to a node may take."""

Outbox = asyncio.Queue[pb.MasterMessage | None]
"""What is to be written to a node; None ends it."""

OnStream = Callable[[NodeName], None]


class Attendance:
    """The `Nodes` service. Components that a job does not have are None; what is asked of them is refused.

    Others follow the streams through the callbacks: `on_attended`, with a node that has opened a stream, so that all it
    had and knew on an earlier one is void; `on_resumed`, with one that goes on with all that it had and knew, after the
    death of a master; `on_disconnected`, when a stream broke; `on_left`, when a node said goodbye.
    """

    def __init__(
        self,
        node_manager: NodeManager,
        task_manager: TaskManager | None,
        rendezvous: RendezvousServer | None,
        training_service: TrainingService | None,
        ps_manager: PSManager | None,
        handover: GuestHandover | None,
        events: EventLog,
        *,
        heartbeat_timeout_s: float,
        check_replicas: bool,
        journal: Journal,
    ) -> None:
        self.on_attended: list[OnStream] = []
        self.on_resumed: list[OnStream] = []
        self.on_disconnected: list[OnStream] = []
        self.on_left: list[Callable[[NodeName, pb.Goodbye], None]] = []
        self._node_manager = node_manager
        self._task_manager_or_none = task_manager
        self._rendezvous_or_none = rendezvous
        self._training_service_or_none = training_service
        self._ps_manager_or_none = ps_manager
        self._handover_or_none = handover
        self._events = events
        self._clock = journal.clock
        self._check_replicas = check_replicas
        self._heartbeats = Heartbeats(heartbeat_timeout_s)
        self._sessions: dict[NodeName, Outbox] = {}
        self._presence = journal.watch("presence", Presence())
        self.awaited = set(self._presence.nodes)
        """Nodes that attended when a master before this one died, and may go on as if it had not."""
        for name in self.awaited:
            self._heartbeats.heard(name, self._clock())
        self._streams: set[asyncio.Task[Any]] = set()
        self._ended_why: str | None = None
        self.stats: StatsReporter | None = None
        """Who hears what the nodes' steps take; without one nobody wants to know."""
        self.closures: ClosureFeed | None = None
        """In a job that may have a coordinator."""
        node_manager.on_node_end.append(self._on_node_end)

    @property
    def _task_manager(self) -> TaskManager:
        if self._task_manager_or_none is None:
            raise RequestRefused("this job has no task manager; it was started with --no-task-manager")
        return self._task_manager_or_none

    @property
    def _rendezvous(self) -> RendezvousServer:
        if self._rendezvous_or_none is None:
            raise RequestRefused("this job has no rendezvous server; start it with --strategy ring-allreduce")
        return self._rendezvous_or_none

    @property
    def _training_service(self) -> TrainingService:
        if self._training_service_or_none is None:
            raise RequestRefused("this job has no training service; start it with --training-service")
        return self._training_service_or_none

    @property
    def _ps_manager(self) -> PSManager:
        if self._ps_manager_or_none is None:
            raise RequestRefused("this job has no parameter servers; start it with --ps")
        return self._ps_manager_or_none

    @property
    def _handover(self) -> GuestHandover:
        if self._handover_or_none is None:
            raise RequestRefused(
                "this job has no hand-over by checkpoint; start it with --strategy parameter_server, and without --ps"
            )
        return self._handover_or_none

    @property
    def _closures(self) -> ClosureFeed:
        if self.closures is None:
            raise RequestRefused("this job has no coordinator; start it with --strategy parameter_server")
        return self.closures

    def tell(self, name: NodeName, message: pb.MasterMessage) -> None:
        """Say something to a node, if its stream is open."""
        if outbox := self._sessions.get(name):
            outbox.put_nowait(message)

    def end(self, why: str) -> None:
        """End all streams, so that those who are still here need not look for a master that is gone."""
        self._ended_why = why
        for stream in self._streams:
            stream.cancel()

    def attends(self, name: NodeName) -> bool:
        return name in self._sessions

    async def watch_heartbeats(self) -> None:
        """Give up the nodes that are silent for too long; never returns."""
        while True:
            await asyncio.sleep(self._heartbeats.look_every_s)
            for name in self._heartbeats.silent(self._clock()):
                self._node_manager.lost(name, f"not heard for {self._heartbeats.limit_s:g} s")
                self._forget(name)

    async def attend(self, messages: AsyncIterator[pb.NodeMessage], send: Send) -> None:
        first = await anext(messages, None)
        if first is None:
            raise MalformedMessage("a stream without a message, or with one over the size limit")
        hello = wire.checked_hello(first)
        name = NodeName(hello.node)
        if self._ended_why is not None:
            raise RequestRefused(self._ended_why)
        if not self._node_manager.expects(name):
            raise RequestRefused(f'node "{name[:100]}" is not expected here: it has ended, or was never launched')
        outbox: Outbox = asyncio.Queue()
        self._arrived(name, outbox, resumes=hello.resumes)
        writer = asyncio.create_task(_write(outbox, send))
        if stream := asyncio.current_task():
            self._streams.add(stream)
        try:
            async for message in messages:
                if self._sessions.get(name) is not outbox:
                    return  # The node has opened another stream, or was given up.
                self._heartbeats.heard(name, self._clock())
                if message.WhichOneof("body") == "goodbye":
                    self._left(name, message.goodbye)
                    outbox.put_nowait(pb.MasterMessage(farewell=pb.Farewell()))
                    return
                self._handle(name, message, outbox)
        except asyncio.CancelledError:
            if stream is None or self._ended_why is None:
                raise
            stream.uncancel()
            raise RequestRefused(self._ended_why) from None
        finally:
            if stream:
                self._streams.discard(stream)
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
        body = message.WhichOneof("body")
        try:
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
                case "resume_leases":
                    dataset = DatasetName(message.resume_leases.dataset)
                    held = {TaskId(task) for task in message.resume_leases.held}
                    progress = [(TaskId(entry.task), entry.upto) for entry in message.resume_leases.progress]
                    self._task_manager.resume(name, dataset, held, progress)
                case "give_back":
                    dataset = DatasetName(message.give_back.dataset)
                    refused = self._give_back(name, message.give_back)
                case "join_world" | "leave_world" | "world_ready" | "world_moved" | "world_broken":
                    self._handle_world(name, message)
                case "store_set" | "store_get":
                    self._handle_store(name, message, outbox)
                case "data_position":
                    dataset = DatasetName(message.data_position.dataset)
                    self._report(name, message.data_position)
                case "define_evaluation" | "version_written" | "task_done" | "training_done":
                    self._handle_evaluation(name, message)
                case "step_figures" | "handover_word":
                    self._handle_word(name, message)
                case (
                    "server_holds"
                    | "buckets_changed"
                    | "orders_failed"
                    | "link_lost"
                    | "server_load"
                    | "part_saved"
                    | "join_servers"
                    | "server_map_learned"
                    | "serve_closures"
                    | "coordinate"
                ):
                    self._handle_servers(name, message)
                case "hello" | "goodbye" | "journal_copy" | None:
                    raise MalformedMessage(f"{body or 'an empty message'} in the middle of a stream")
                case _:
                    assert_never(body)
        except (DatasetMismatch, InvalidInput, RequestRefused, StaleLease) as error:
            refused = [str(error)]
        if refused:
            answer = pb.Refused(
                reason="; ".join(refused),
                dataset=dataset,
                evaluation=body == "define_evaluation",
                world=body == "join_world",
                servers=body == "join_servers",
                handover=body == "handover_word",
            )
            outbox.put_nowait(pb.MasterMessage(refused=answer))

    def _report(self, name: NodeName, told: pb.DataPosition) -> None:
        dataset, position = DatasetName(told.dataset), wire.position_from_wire(told)
        self._task_manager.report(name, dataset, position, told.step, told.world, restored=told.restored)

    def _give_back(self, name: NodeName, given: pb.GiveBack) -> list[str]:
        dataset, tasks = DatasetName(given.dataset), [TaskId(task) for task in given.task]
        refused = self._task_manager.give_back(name, dataset, tasks, wire.checked_error(given))
        if self._training_service_or_none is not None:
            self._training_service_or_none.gave_back(name, dataset, tasks)
        return refused

    def _handle_evaluation(self, name: NodeName, message: pb.NodeMessage) -> None:
        match message.WhichOneof("body"):
            case "define_evaluation":
                spec = evaluation_wire.evaluation_from_wire(message.define_evaluation)
                self._training_service.define(name, spec, evaluator=self._node_manager.is_evaluator(name))
            case "version_written":
                version = evaluation_wire.checked_version(message.version_written)
                self._training_service.version_written(name, version.step, version.error)
            case "task_done":
                self._training_service.task_done(name, evaluation_wire.checked_task_done(message.task_done))
            case "training_done":
                self._training_service.training_done(name, message.training_done.step)

    def _handle_word(self, name: NodeName, message: pb.NodeMessage) -> None:
        if message.WhichOneof("body") == "handover_word":
            self._handover.heard(name, message.handover_word)
        elif self.stats is not None:
            self.stats.heard(name, message.step_figures)

    def _handle_world(self, name: NodeName, message: pb.NodeMessage) -> None:
        match message.WhichOneof("body"):
            case "join_world":
                self._rendezvous.join(name, message.join_world.min_size, message.join_world.max_size)
            case "leave_world":
                self._rendezvous.leave(name)
            case "world_ready":
                self._rendezvous.ready(name, message.world_ready.version)
            case "world_moved":
                moved = message.world_moved
                self._rendezvous.moved(name, moved.version, moved.rounds, wire.checked_checksum(moved))
            case "world_broken":
                self._rendezvous.broken(name, message.world_broken.version)

    def _handle_servers(self, name: NodeName, message: pb.NodeMessage) -> None:
        if message.WhichOneof("body") in {"serve_closures", "coordinate"}:
            self._closures.handle(name, message)
        else:
            self._ps_manager.handle(name, message)

    def _handle_store(self, name: NodeName, message: pb.NodeMessage, outbox: Outbox) -> None:
        store = self._rendezvous.store
        if message.WhichOneof("body") == "store_set":
            entry = wire.checked_store_set(message.store_set)
            store.set(name, entry.version, entry.key, entry.value)
        else:
            asked = message.store_get
            store.get(name, asked.version, asked.key, lambda value: outbox.put_nowait(_stored(asked, value)))

    def _arrived(self, name: NodeName, outbox: Outbox, *, resumes: bool) -> None:
        resumed = resumes and name in self.awaited
        self.awaited.discard(name)
        if not resumed:
            for callback in self.on_attended:
                callback(name)
        self._sessions[name] = outbox
        self._presence.arrived(name)
        self._heartbeats.heard(name, self._clock())
        self._events.emit("node_attended", node=name, resumed=resumed)
        welcome = pb.Welcome(
            heartbeat_interval_s=self._heartbeats.interval_s,
            check_replicas=self._check_replicas,
            resumed=resumed,
            evaluator=self._node_manager.is_evaluator(name),
            has_evaluators=self._node_manager.evaluators_expected,
            servers=None if self._ps_manager_or_none is None else self._ps_manager_or_none.settings_of(name),
            chief=any(
                node.name == name and node.type is NodeType.WORKER and node.slot == 0
                for node in self._node_manager.nodes
            ),
        )
        outbox.put_nowait(pb.MasterMessage(welcome=welcome))
        if resumed:
            for callback in self.on_resumed:
                callback(name)

    def _left(self, name: NodeName, goodbye: pb.Goodbye) -> None:
        self._events.emit("node_left", node=name, preempted=goodbye.preempted)
        self._forget(name)
        for callback in self.on_left:
            callback(name, goodbye)

    def _broken(self, name: NodeName) -> None:
        """The stream broke: the process died, or only the connection did."""
        self._events.emit("node_disconnected", node=name)
        del self._sessions[name]
        self._presence.gone(name)
        for callback in self.on_disconnected:
            callback(name)

    def _on_node_end(self, node: Node, exit: NodeExit) -> None:  # noqa: ARG002  # however it ended
        self._forget(node.name)

    def _forget(self, name: NodeName) -> None:
        self.awaited.discard(name)
        self._sessions.pop(name, None)
        self._presence.gone(name)
        self._heartbeats.forget(name)


def _leases(dataset: DatasetName, grant: Grant) -> pb.MasterMessage:
    if grant.tasks:
        return wire.leases_to_wire(dataset, pb.Leases.GRANTED, grant.tasks)
    return wire.leases_to_wire(dataset, pb.Leases.FINISHED if grant.finished else pb.Leases.WAIT)


def _stored(asked: pb.StoreGet, value: bytes) -> pb.MasterMessage:
    return pb.MasterMessage(store_value=pb.StoreValue(version=asked.version, key=asked.key, value=value))


async def _write(outbox: Outbox, send: Send) -> None:
    while (message := await outbox.get()) is not None:
        await send(message)
