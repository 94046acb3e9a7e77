"""The Brain's service: checks what comes over the wire, has it committed, and answers what a run should do next."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from elastane.brain import advisor
from elastane.brain.runs import KnownRun
from elastane.brain.store import Rows, Store, window_values
from elastane.brain.writer import GroupCommit
from elastane.core.throughput import fit
from elastane.model.brain import Advice, Likeness, LikeRuns
from elastane.model.errors import DatabaseUnavailable, RequestRefused
from elastane.model.sizing import NO_HISTORY, Decision, History
from elastane.rpc import brain_wire
from elastane.rpc.protos import brain_pb2 as pb
from elastane.rpc.server import RpcServer

MOST_PLANS_WAITING = 100
_MOST_REMEMBERED = 50_000
_HISTORY_STAYS_S = 300.0

T = TypeVar("T")
_log = structlog.get_logger("elastane.brain")


class BrainService:
    """The `Brain` service over one database. It keeps nothing in memory that the database does not have."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._writer = GroupCommit(store)
        self._readers = ThreadPoolExecutor(2, "brain-reader")
        self._runs: _Remembered[KnownRun] = _Remembered()
        self._histories: _Remembered[_Learned] = _Remembered()
        self._plans_waiting = 0

    async def close(self) -> None:
        """Finish what was begun."""
        await self._writer.close()
        self._readers.shutdown()

    async def register(self, request: pb.RegisterRequest) -> pb.Registered:
        identity, age_s = brain_wire.run_from_wire(request)
        known = await self._written(self._store.register(identity, self._now() - age_s))
        self._runs.put(identity.run, known)
        return pb.Registered()

    async def report(self, request: pb.ReportRequest) -> pb.Reported:
        try:
            run = await self._known(brain_wire.checked_rows(request).run)
            now_s = self._now() - run.started_at
            rows = tuple(
                window_values(run.id, request.sender, row.number, brain_wire.row_from_wire(row, now_s))
                for row in request.row
            )
            await self._writer.write(Rows(rows))
        except DatabaseUnavailable as error:
            self._runs.forget(request.run)  # Somebody may have deleted it.
            _log.warning("report_not_stored", run=request.run, reason=str(error))
            return pb.Reported(stored=False)
        return pb.Reported(stored=True)

    async def plan(self, request: pb.PlanRequest) -> pb.Planned:
        budget, remaining = brain_wire.checked_plan_request(request)
        cost_s = brain_wire.checked_cost(request)
        if self._plans_waiting >= MOST_PLANS_WAITING:
            raise RequestRefused(f"{self._plans_waiting} runs wait for a plan already; decide without the Brain")
        self._plans_waiting += 1
        try:
            run = await self._known(request.run)
            learned = await self._learned(run)
            own, changes = await self._read(lambda: (self._store.windows_of(run.id), self._store.changes_of(run.id)))
            decision = await self._read(
                lambda: advisor.advise(
                    run.identity.kind, own, changes, budget, remaining, learned.history, request.now_s, cost_s
                )
            )
        except DatabaseUnavailable as error:
            raise RequestRefused(str(error)) from None
        finally:
            self._plans_waiting -= 1
        plan = 0
        if isinstance(decision, Decision):
            plan = await self._written(self._store.add_plan(run.id, decision, self._now()))
            _log.info("planned", run=request.run, plan=plan, reason=decision.reason)
            await self._keep_fit(run, learned.history)
        history = learned.history if request.with_history else NO_HISTORY
        return brain_wire.advice_to_wire(Advice(decision, plan, learned.like, history))

    async def outcome(self, request: pb.OutcomeRequest) -> pb.OutcomeStored:
        run = await self._known(request.run)
        change = brain_wire.change_from_wire(request, self._now() - run.started_at)
        await self._written(self._store.put_outcome(run.id, request.number, request.plan, change, self._now()))
        return pb.OutcomeStored()

    async def finish(self, request: pb.FinishRequest) -> pb.Finished:
        brain_wire.check_text("exit_reason", request.exit_reason, brain_wire.MOST_NAME)
        run = await self._known(request.run)
        await self._written(self._store.finish(run.id, request.exit_reason, self._now()))
        await self._keep_fit(run, (await self._learned(run)).history)
        _log.info("finished", run=request.run, exit_reason=request.exit_reason)
        return pb.Finished()

    async def _known(self, name: str) -> KnownRun:
        """Raises RequestRefused for a run that is not registered, DatabaseUnavailable."""
        run = self._runs.get(name)
        if run is None:
            run = await self._read(lambda: self._store.find(name))
            if run is None:
                raise RequestRefused(f'run "{name[: brain_wire.MOST_NAME]}" is not registered')
            self._runs.put(name, run)
        return run

    async def _learned(self, run: KnownRun) -> _Learned:
        """What like runs teach; read again after some minutes, for it changes slowly."""
        known = self._histories.get(run.identity.run)
        if known is None or known.at + _HISTORY_STAYS_S < self._now():
            known = await self._read(lambda: self._learn(run))
            self._histories.put(run.identity.run, known)
        return known

    def _learn(self, run: KnownRun) -> _Learned:
        now = self._now()
        for likeness in Likeness:
            if pasts := self._store.like(run, likeness, advisor.MOST_LIKE_RUNS):
                history, like = advisor.learn(likeness, pasts, now)
                return _Learned(history, like, now)
        return _Learned(NO_HISTORY, None, now)

    async def _keep_fit(self, run: KnownRun, history: History) -> None:
        """Keep the model's parameters, if there is something to fit them to."""

        def fitted() -> tuple[int, dict[str, float]] | None:
            own = advisor.own_windows(self._store.windows_of(run.id))
            if not own:
                return None
            return len(own), dict(fit(run.identity.kind, own, history).coefficients)

        found = await self._read(fitted)
        if found is not None:
            await self._written(self._store.put_fit(run.id, *found, self._now()))

    async def _written(self, write: Any) -> Any:
        """Raises RequestRefused if it was not committed: the caller may come again."""
        try:
            return await self._writer.write(write)
        except DatabaseUnavailable as error:
            raise RequestRefused(str(error)) from None

    async def _read(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)


@dataclass(frozen=True)
class _Learned:
    """What like runs teach one run, and when it was read."""

    history: History
    like: LikeRuns | None
    at: float


class _Remembered(OrderedDict[str, T]):
    """What was read from the database, of the runs that were heard of last."""

    def put(self, key: str, value: T) -> None:
        self[key] = value
        if len(self) > _MOST_REMEMBERED:
            self.popitem(last=False)

    def forget(self, key: str) -> None:
        self.pop(key, None)


class BrainServer:
    """The service on a port of loopback, for holders of the token."""

    def __init__(self, store: Store, token: str, now: Callable[[], float] = time.time) -> None:
        self.service = BrainService(store, now)
        self._server = RpcServer(token, _refused)
        self._server.add(pb.DESCRIPTOR.services_by_name["Brain"], self.service)

    async def start(self, address: str = "") -> str:
        """Listen at this address, or on a free port; the answer is the address. Raises PlatformError."""
        return await self._server.start(address)

    async def stop(self, grace_s: float = 2.0) -> None:
        await self._server.stop(grace_s)
        await self.service.close()


def _refused(peer: str, method: str, reason: str) -> None:
    _log.warning("message_refused", peer=peer, method=method, reason=reason)
