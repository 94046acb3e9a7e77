"""Attendant: the thread that keeps a worker's stream to the master, and brings its tasks.

It opens the stream anew whenever it breaks. After the death of a master it goes on with the next one as if nothing had
happened; if only the connection broke, what was leased by then is void, and is asked for again. The training thread
hands it messages and goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc

from elastane.core.backoff import delays
from elastane.core.lockstep import Position
from elastane.model.dataset import DatasetSpec
from elastane.model.errors import DatasetMismatch, MasterUnreachable, RequestRefused
from elastane.model.evaluation import EvaluationSpec, Work
from elastane.model.ids import DatasetName, TaskId
from elastane.rpc import evaluation_wire, wire
from elastane.rpc.channel import MasterChannel
from elastane.rpc.messages import parse
from elastane.rpc.protos import node_pb2 as pb
from elastane.worker.closures import Closures
from elastane.worker.door import Door, data_token
from elastane.worker.followers import pass_to_evaluation, pass_to_world
from elastane.worker.journal_copy import JournalCopy
from elastane.worker.link import EvaluationFollower, TaskSink, WorldFollower
from elastane.worker.said_before import SaidBefore
from elastane.worker.servers import Servers
from elastane.worker.step_meter import StepFigures, StepMeter

LISTEN_EVERY_S = 0.02
"""How often the training thread's words are taken over. It does not wake this thread for each: that would make it wait
for the interpreter's lock, right when its next batch is due."""

FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 5.0
"""Between two tries to find the master again."""

ANSWER_TIMEOUT_S = 60.0
GOODBYE_TIMEOUT_S = 10.0

_FINAL = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
)
"""Answers that a new stream would get again."""

_SAID_ANEW = frozenset({"define_dataset", "define_evaluation", "task_done", "training_done", "step_figures"})
"""Messages that are said again, or mean nothing, to a master that came after another."""

_SERVICE = pb.DESCRIPTOR.services_by_name["Nodes"]
_log = logging.getLogger("elastane.worker")


class _Commit(NamedTuple):
    """A commit as the training thread says it: making the message is left to the other thread."""

    dataset: DatasetName
    progress: Sequence[tuple[TaskId, int]]


class _Report(NamedTuple):
    """How far a data set in lockstep is; the last word on it is all that counts."""

    dataset: DatasetName
    position: Position
    step: int
    world: int
    restored: bool


class Attendant:
    """A Link over the stream to a master."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = asyncio.new_event_loop()
        self._said: deque[pb.NodeMessage | _Commit | _Report | StepFigures] = deque()
        self.meter = StepMeter(self._said.append)
        self._outbox: asyncio.Queue[pb.NodeMessage] = asyncio.Queue()
        self._datasets: dict[DatasetName, tuple[DatasetSpec, TaskSink]] = {}
        self._defining: dict[DatasetName, tuple[DatasetSpec, TaskSink, concurrent.futures.Future[None]]] = {}
        self._failure: Exception | None = None
        self._heartbeat_interval_s = MOST_PAUSE_S
        self._pauses = self._new_pauses()
        self._goodbye: pb.NodeMessage | None = None
        self._follower: WorldFollower | None = None
        self._join = pb.NodeMessage(join_world=pb.JoinWorld())
        self._wanted: dict[tuple[int, str], concurrent.futures.Future[bytes]] = {}
        self._evaluation: tuple[EvaluationSpec, EvaluationFollower] | None = None
        self._check_replicas = False
        self._is_evaluator = self._has_evaluators = False
        self._said_before = SaidBefore()
        self._journal = JournalCopy()
        self.servers = Servers(self._say_now, data_token(door.token))
        self.closures = Closures(self._say_now)
        self._welcomed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._farewell: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="elastane-attendant", daemon=True)

    def start(self) -> None:
        """Open the stream. Raises RequestRefused if the master does not want this node, MasterUnreachable."""
        self._thread.start()
        try:
            self._welcomed.result(ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise self._no_answer() from None

    def _no_answer(self) -> MasterUnreachable:
        return MasterUnreachable(f"the master at {self._door.address} did not answer in {ANSWER_TIMEOUT_S:g} s")

    @property
    def host(self) -> str:
        return self._door.host

    @property
    def check_replicas(self) -> bool:
        return self._check_replicas

    def join_world(self, follower: WorldFollower, *, min_size: int = 0, max_size: int = 0) -> None:
        self._join = pb.NodeMessage(join_world=pb.JoinWorld(min_size=min_size, max_size=max_size))

        def on_loop() -> None:
            self._follower = follower
            if self._failure is not None:
                follower.failed(self._failure)
            self._tell(self._join)

        if not self._on_loop(on_loop):
            raise self._ended()

    def world_ready(self, version: int) -> None:
        self._say_now(pb.NodeMessage(world_ready=pb.WorldReady(version=version)))

    def world_moved(self, version: int, rounds: int, checksum: str) -> None:
        moved = pb.WorldMoved(version=version, rounds=rounds, checksum=checksum)
        self._say_now(pb.NodeMessage(world_moved=moved))

    def world_broken(self, version: int) -> None:
        self._say_now(pb.NodeMessage(world_broken=pb.WorldBroken(version=version)))

    def store_set(self, version: int, key: str, value: bytes) -> None:
        self._say_now(pb.NodeMessage(store_set=pb.StoreSet(version=version, key=key, value=value)))

    def store_get(self, version: int, key: str, timeout_s: float) -> bytes:
        answer: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        # What an earlier stream did not answer will not come; who waited for it gives up by itself.
        self._wanted[version, key] = answer

        def on_loop() -> None:
            self._tell(pb.NodeMessage(store_get=pb.StoreGet(version=version, key=key)))

        if not self._on_loop(on_loop):
            raise self._ended()
        return answer.result(timeout_s)

    @property
    def is_evaluator(self) -> bool:
        return self._is_evaluator

    @property
    def has_evaluators(self) -> bool:
        return self._has_evaluators

    def join_evaluation(self, spec: EvaluationSpec, follower: EvaluationFollower) -> None:
        def on_loop() -> None:
            self._evaluation = (spec, follower)
            if self._failure is not None:
                follower.failed(self._failure)
            self._tell(pb.NodeMessage(define_evaluation=evaluation_wire.evaluation_to_wire(spec)))

        if not self._on_loop(on_loop):
            raise self._ended()

    def version_written(self, step: int, error: str) -> None:
        written = pb.VersionWritten(step=step, error=error[: wire.MOST_TEXT])
        self._say_now(pb.NodeMessage(version_written=written))

    def task_done(self, work: Work, state: str, metrics: Mapping[str, float]) -> None:
        done = pb.TaskDone(dataset=work.dataset, task=work.task, state=state, metrics=metrics)
        self._say_now(pb.NodeMessage(task_done=done))

    def training_done(self, step: int) -> None:
        self._say_now(pb.NodeMessage(training_done=pb.TrainingDone(step=step)))

    def define(self, spec: DatasetSpec, sink: TaskSink) -> None:
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        message = pb.NodeMessage(define_dataset=wire.define_dataset_to_wire(spec))

        def on_loop() -> None:
            self._pass_on()
            self._defining[spec.name] = (spec, sink, answer)
            self._outbox.put_nowait(message)

        if not self._on_loop(on_loop):
            raise self._ended()
        try:
            answer.result(ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise self._no_answer() from None

    def request(self, dataset: DatasetName, count: int) -> None:
        self._said.append(pb.NodeMessage(lease_request=pb.LeaseRequest(dataset=dataset, count=count)))

    def commit(self, dataset: DatasetName, progress: Sequence[tuple[TaskId, int]]) -> None:
        self._said.append(_Commit(dataset, progress))

    def give_back(self, dataset: DatasetName, tasks: Sequence[TaskId], error: str | None) -> None:
        text = (error or "")[: wire.MOST_TEXT]
        self._said.append(pb.NodeMessage(give_back=pb.GiveBack(dataset=dataset, task=tasks, error=text)))

    def give_notice(self) -> None:
        self._said.append(pb.NodeMessage(leave_world=pb.LeaveWorld()))

    def report(
        self, dataset: DatasetName, position: Position, step: int, world: int, *, restored: bool = False
    ) -> None:
        self._said.append(_Report(dataset, position, step, world, restored))

    def flush(self) -> None:
        self._on_loop(self._pass_on)

    def close(self, *, preempted: bool, over: bool = False) -> None:
        self._goodbye = pb.NodeMessage(goodbye=pb.Goodbye(preempted=preempted, over=over))
        self._said.append(self._goodbye)
        self.flush()
        try:
            self._farewell.result(GOODBYE_TIMEOUT_S)
        except Exception:  # noqa: BLE001  # the stream is gone; why has been said elsewhere
            _log.warning("the master at %s did not hear this worker's goodbye", self._door.address)
        self._thread.join(GOODBYE_TIMEOUT_S)
        for answer in list(self._wanted.values()):
            answer.cancel()  # A thread that builds a world may wait for it.

    def _on_loop(self, work: Callable[[], None]) -> bool:
        """Have the other thread do something; False if it has ended."""
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return False
        return True

    def _ended(self) -> Exception:
        return self._failure or MasterUnreachable(f"the stream to {self._door.address} has ended")

    def _say_now(self, message: pb.NodeMessage) -> None:
        """From any thread: say something at once, after all that was said before."""

        def on_loop() -> None:
            self._pass_on()
            self._tell(message)

        self._on_loop(on_loop)

    def _tell(self, message: pb.NodeMessage) -> None:
        self._outbox.put_nowait(message)  # On the loop.

    def _pass_on(self) -> None:
        """On the loop: take over what the training thread said, commits in a row as one message."""
        progress: dict[TaskId, int] = {}
        while self._said:
            said = self._said.popleft()
            following = self._said[0] if self._said else None
            if isinstance(said, pb.NodeMessage):
                self._outbox.put_nowait(said)
                continue
            if isinstance(said, StepFigures):
                self._outbox.put_nowait(pb.NodeMessage(step_figures=pb.StepFigures(**said._asdict())))
                continue
            if isinstance(said, _Report):
                if said.restored or not isinstance(following, _Report) or following.dataset != said.dataset:
                    self._outbox.put_nowait(pb.NodeMessage(data_position=wire.position_to_wire(*said)))
                continue
            progress.update(said.progress)
            if not isinstance(following, _Commit) or following.dataset != said.dataset:
                entries = [pb.Progress(task=task, upto=upto) for task, upto in progress.items()]
                self._outbox.put_nowait(pb.NodeMessage(commit=pb.Commit(dataset=said.dataset, progress=entries)))
                progress.clear()

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(LISTEN_EVERY_S)
            self._pass_on()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._attend())
        except Exception as error:  # noqa: BLE001  # whatever ends this thread, the training thread must hear of it
            self._give_up(error)
        finally:
            self._loop.close()

    async def _attend(self) -> None:
        """Keep a stream open until the farewell, or until the master's answer is final."""
        channel = MasterChannel(self._door.address, self._door.token, self._door.certificate)
        try:
            while not self._farewell.done():
                stream = channel.open_stream(_SERVICE, "Attend")
                # However the stream broke, its code says why.
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._one_stream(stream)
                code = await stream.code()
                if self._farewell.done():
                    return
                if code in _FINAL:
                    self._give_up(RequestRefused(await stream.details()))
                    return
                _log.warning("lost the master at %s (%s); trying again", self._door.address, code.name)
                await asyncio.sleep(next(self._pauses))
        finally:
            await channel.close()

    def _new_pauses(self) -> Iterator[float]:
        """A master that comes after another gives up whom it does not hear: no pause is longer than a heartbeat's."""
        most_s = min(MOST_PAUSE_S, self._heartbeat_interval_s)
        return delays(min(FIRST_PAUSE_S, most_s), most_s, random.Random())  # noqa: S311  # jitter, not a secret

    async def _one_stream(self, stream: Any) -> None:
        resumes = self._welcomed.done()
        hello = pb.Hello(protocol=wire.PROTOCOL, node=self._door.node, resumes=resumes)
        await stream.write(pb.NodeMessage(hello=hello))
        welcome = await _read(stream)
        if welcome is not None and welcome.WhichOneof("body") == "give_journal":
            for part in self._journal.parts():
                await stream.write(part)
        if welcome is None or welcome.WhichOneof("body") != "welcome":
            return
        self._heartbeat_interval_s = welcome.welcome.heartbeat_interval_s
        self._pauses = self._new_pauses()
        self._check_replicas = welcome.welcome.check_replicas
        self._is_evaluator = welcome.welcome.evaluator
        self._has_evaluators = welcome.welcome.has_evaluators
        self.servers.welcomed(welcome.welcome)
        self.closures.welcomed(welcome.welcome)
        if welcome.welcome.resumed:
            self._resume()
        elif resumes:
            self._start_over()
        else:
            self._welcomed.set_result(None)
        helpers = [
            asyncio.create_task(self._write(stream)),
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._beat(welcome.welcome.heartbeat_interval_s)),
        ]
        try:
            while (message := await _read(stream)) is not None:
                self._take(message)
                if self._farewell.done():
                    return
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    def _resume(self) -> None:
        """With the master that came after the one that died: all stands, but what was said last may not be heard."""
        unsaid, self._outbox = self._outbox, asyncio.Queue()
        for spec, _, _ in self._defining.values():
            self._outbox.put_nowait(pb.NodeMessage(define_dataset=wire.define_dataset_to_wire(spec)))
        for message in self._said_before.again():
            self._outbox.put_nowait(message)
        while not unsaid.empty():
            message = unsaid.get_nowait()
            if message.WhichOneof("body") not in _SAID_ANEW:
                self._outbox.put_nowait(message)
        self._rejoin_others()

    def _start_over(self) -> None:
        """On a new stream: nothing that was said or leased on the old one stands."""
        self._outbox = asyncio.Queue()
        self._said.clear()
        self._said_before = SaidBefore()
        pending = [(spec, sink) for spec, sink, _ in self._defining.values()]
        for dataset, _ in [*self._datasets.values(), *pending]:
            self._outbox.put_nowait(pb.NodeMessage(define_dataset=wire.define_dataset_to_wire(dataset)))
        for _, sink in self._datasets.values():
            sink.voided()
        if self._follower is not None:
            self._follower.rejoin()
            self._tell(self._join)
        self.servers.rejoin()
        self._rejoin_others()
        if self._goodbye is not None:
            self._outbox.put_nowait(self._goodbye)

    def _rejoin_others(self) -> None:
        """Whichever master this is, it hears again who runs closures, and tasks of evaluation are leased anew."""
        self.closures.rejoin()
        if self._evaluation is not None:
            spec, evaluates = self._evaluation
            self._tell(pb.NodeMessage(define_evaluation=evaluation_wire.evaluation_to_wire(spec)))
            evaluates.rejoin()

    async def _write(self, stream: Any) -> None:
        while True:
            message = await self._outbox.get()
            self._said_before.note(message)
            await stream.write(message)

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._outbox.put_nowait(pb.NodeMessage(heartbeat=pb.Heartbeat()))

    def _take(self, message: pb.MasterMessage) -> None:
        match message.WhichOneof("body"):
            case "leases":
                leases = message.leases
                self._said_before.answered(leases)
                _, sink = self._datasets[DatasetName(leases.dataset)]
                deliver: dict[int, Callable[[], None]] = {
                    pb.Leases.GRANTED: lambda: sink.granted(wire.tasks_from_wire(leases)),
                    pb.Leases.WAIT: sink.wait,
                    pb.Leases.FINISHED: sink.finished,
                }
                deliver[leases.state]()
            case "dataset_defined":
                self._defined(DatasetName(message.dataset_defined.name), None)
            case "refused":
                name = DatasetName(message.refused.dataset)
                if message.refused.servers or message.refused.handover:
                    self.servers.refused(message.refused)
                elif message.refused.world and self._follower is not None:
                    self._follower.failed(RequestRefused(message.refused.reason))
                elif message.refused.evaluation and self._evaluation is not None:
                    self._evaluation[1].failed(RequestRefused(message.refused.reason))
                elif not self._defined(name, DatasetMismatch(message.refused.reason)):
                    _log.warning("the master refused: %s", message.refused.reason)
            case "next_world" | "go_to_world" | "world_settled":
                if self._follower is not None:
                    pass_to_world(self._follower, message)
            case "take_version" | "run_task" | "stop_training" | "evaluation_over":
                if self._evaluation is not None:
                    pass_to_evaluation(self._evaluation[1], message)
            case "server_map" | "handover_state":
                self.servers.take(message)
            case "closure_workers" | "closures_over":
                self.closures.take(message)
            case "store_value":
                stored = message.store_value
                if answer := self._wanted.pop((stored.version, stored.key), None):
                    answer.set_result(stored.value)
            case "keep_journal":
                self._journal.keep(message.keep_journal)
            case "farewell":
                self._farewell.set_result(None)
            case other:
                _log.warning("the master sent %s, which has no meaning here", other)

    def _defined(self, name: DatasetName, error: Exception | None) -> bool:
        if name not in self._defining:
            return False
        spec, sink, answer = self._defining.pop(name)
        if error is None:
            self._datasets[name] = (spec, sink)
            answer.set_result(None)
        else:
            answer.set_exception(error)
        return True

    def _give_up(self, error: Exception) -> None:
        self._failure = error
        for answer in (self._welcomed, self._farewell, *(answer for _, _, answer in self._defining.values())):
            if not answer.done():
                answer.set_exception(error)
        for _, sink in self._datasets.values():
            sink.failed(error)
        if self._follower is not None:
            self._follower.failed(error)
        if self._evaluation is not None:
            self._evaluation[1].failed(error)
        self.servers.failed(error)
        self.closures.failed()


async def _read(stream: Any) -> pb.MasterMessage | None:
    data = await stream.read()
    return None if data is grpc.aio.EOF else parse(pb.MasterMessage, data)
