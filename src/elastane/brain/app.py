"""The Brain's service: checks what comes over the wire, has it committed, and answers what a run should do next."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from elastane.brain import advisor
from elastane.brain.runs import KnownRun
from elastane.brain.store import Rows, Store, window_values
from elastane.brain.writer import GroupCommit
from elastane.model.brain import Advice, Likeness, LikeRuns
from elastane.model.errors import DatabaseUnavailable, RequestRefused
from elastane.model.sizing import NO_HISTORY, Budget, Decision, History, NoDecision, Window
from elastane.rpc import brain_wire
from elastane.rpc.protos import brain_pb2 as pb
from elastane.rpc.server import OnAnswered, RpcServer

MOST_PLANS_WAITING = 100
MANY_PLANS_WAITING = 4
"""From so many on, a run that was told to stay as it is in the last minute is told so again."""
_STAYS_S = 60.0
_MOST_REMEMBERED = 50_000
_HISTORY_STAYS_S = 300.0

StartPlanners = Callable[[], Executor]
T = TypeVar("T")
_log = structlog.get_logger("elastane.brain")


class BrainService:
    """The `Brain` service over one database. It keeps nothing in memory that the database does not have.

    Plans are made by what `planners` starts: fitting is work, and reports must not wait for it.
    """

    def __init__(self, store: Store, planners: StartPlanners, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._start_planners = planners
        self._planners = planners()
        self._now = now
        self._writer = GroupCommit(store)
        self._readers = ThreadPoolExecutor(2, "brain-reader")
        self._runs: _Remembered[KnownRun] = _Remembered()
        self._histories: _Remembered[_Learned] = _Remembered()
        self._stays: _Remembered[_Stays] = _Remembered()
        self._plans_waiting = 0
        self.counts = BrainCounts()

    @property
    def plans_waiting(self) -> int:
        """Runs that wait for a plan."""
        return self._plans_waiting

    @property
    def writes_waiting(self) -> int:
        """Writes that wait for the database."""
        return self._writer.waiting

    async def close(self) -> None:
        """Finish what was begun."""
        await self._writer.close()
        self._readers.shutdown()
        self._planners.shutdown(cancel_futures=True)

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
            self.counts.reports["not_stored"] += 1
            return pb.Reported(stored=False)
        self.counts.reports["stored"] += 1
        self.counts.rows += len(rows)
        return pb.Reported(stored=True)

    async def plan(self, request: pb.PlanRequest) -> pb.Planned:
        try:
            told, answer = await self._plan(request)
        except RequestRefused:
            self.counts.plans["refused"] += 1
            raise
        self.counts.plans[told] += 1
        return answer

    async def _plan(self, request: pb.PlanRequest) -> tuple[str, pb.Planned]:
        """What a run is told, in a word and in full. Raises RequestRefused."""
        budget, remaining = brain_wire.checked_plan_request(request)
        cost_s = brain_wire.checked_cost(request)
        if self._plans_waiting >= MOST_PLANS_WAITING:
            raise RequestRefused(f"{self._plans_waiting} runs wait for a plan already; decide without the Brain")
        stays = self._stays.get(request.run)
        if self._plans_waiting >= MANY_PLANS_WAITING and stays is not None and stays.holds(budget, self._now()):
            return "stays_again", stays.answer
        self._plans_waiting += 1
        try:
            run = await self._known(request.run)
            learned = await self._learned(run)
            windows, changes = await self._read(
                lambda: (advisor.own_windows(self._store.windows_of(run.id)), self._store.changes_of(run.id))
            )
            history = learned.history
            decision = await self._planned(
                advisor.advise, run.identity.kind, windows, changes, budget, remaining, history, request.now_s, cost_s
            )
        except DatabaseUnavailable as error:
            raise RequestRefused(str(error)) from None
        finally:
            self._plans_waiting -= 1
        plan = 0
        if isinstance(decision, Decision):
            plan = await self._written(self._store.add_plan(run.id, decision, self._now()))
            _log.info("planned", run=request.run, plan=plan, reason=decision.reason)
            await self._keep_fit(run, windows, history)
        answer = brain_wire.advice_to_wire(
            Advice(decision, plan, learned.like, history if request.with_history else NO_HISTORY)
        )
        if isinstance(decision, NoDecision):
            self._stays.put(request.run, _Stays(answer, budget, self._now()))
        return "stays" if isinstance(decision, NoDecision) else "changes", answer

    async def outcome(self, request: pb.OutcomeRequest) -> pb.OutcomeStored:
        run = await self._known(request.run)
        change = brain_wire.change_from_wire(request, self._now() - run.started_at)
        self._stays.forget(request.run)
        await self._written(self._store.put_outcome(run.id, request.number, request.plan, change, self._now()))
        return pb.OutcomeStored()

    async def finish(self, request: pb.FinishRequest) -> pb.Finished:
        brain_wire.check_text("exit_reason", request.exit_reason, brain_wire.MOST_NAME)
        run = await self._known(request.run)
        await self._written(self._store.finish(run.id, request.exit_reason, self._now()))
        windows = await self._read(lambda: advisor.own_windows(self._store.windows_of(run.id)))
        await self._keep_fit(run, windows, (await self._learned(run)).history)
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

    async def _keep_fit(self, run: KnownRun, windows: Sequence[Window], history: History) -> None:
        """Keep the model's parameters, if there is something to fit them to."""
        if windows:
            parameters = await self._planned(advisor.fitted, run.identity.kind, windows, history)
            await self._written(self._store.put_fit(run.id, len(windows), parameters, self._now()))

    async def _written(self, write: Any) -> Any:
        """Raises RequestRefused if it was not committed: the caller may come again."""
        try:
            return await self._writer.write(write)
        except DatabaseUnavailable as error:
            raise RequestRefused(str(error)) from None

    async def _planned(self, function: Callable[..., T], *arguments: Any) -> T:
        """Raises RequestRefused if a planner died; there are new ones then."""
        planners = self._planners
        try:
            return await asyncio.get_running_loop().run_in_executor(planners, function, *arguments)
        except BrokenExecutor as error:
            if planners is self._planners:
                _log.error("planner_died", reason=str(error))
                self.counts.planners_died += 1
                self._planners = self._start_planners()
            raise RequestRefused("a planner of the Brain died; ask again") from None

    async def _read(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)


@dataclass
class BrainCounts:
    """What a Brain has done since it was started."""

    reports: Counter[str] = field(default_factory=Counter)
    """`stored` and `not_stored`."""
    rows: int = 0
    plans: Counter[str] = field(default_factory=Counter)
    """`changes`, `stays`, `stays_again` and `refused`."""
    planners_died: int = 0


@dataclass(frozen=True)
class _Learned:
    """What like runs teach one run, and when it was read."""

    history: History
    like: LikeRuns | None
    at: float


@dataclass(frozen=True)
class _Stays:
    """The answer to a run that was told to stay as it is."""

    answer: pb.Planned
    budget: Budget
    at: float

    def holds(self, budget: Budget, now: float) -> bool:
        """Whether that may be said again, where it would take long to think about it anew."""
        return budget == self.budget and now < self.at + _STAYS_S


class _Remembered(OrderedDict[str, T]):
    """What is known of runs, at most of so many; those that came first are forgotten first."""

    def put(self, key: str, value: T) -> None:
        self[key] = value
        if len(self) > _MOST_REMEMBERED:
            self.popitem(last=False)

    def forget(self, key: str) -> None:
        self.pop(key, None)


class BrainServer:
    """The service on a port of loopback, for holders of the token."""

    def __init__(
        self,
        store: Store,
        token: str,
        planners: StartPlanners,
        now: Callable[[], float] = time.time,
        on_answered: OnAnswered = lambda _method, _outcome, _seconds: None,
    ) -> None:
        self.service = BrainService(store, planners, now)
        self._server = RpcServer(token, _refused, on_answered=on_answered)
        self._server.add(pb.DESCRIPTOR.services_by_name["Brain"], self.service)

    async def start(self, address: str = "") -> str:
        """Listen at this address, or on a free port; the answer is the address. Raises PlatformError."""
        return await self._server.start(address)

    async def stop(self, grace_s: float = 2.0) -> None:
        await self._server.stop(grace_s)
        await self.service.close()


def _refused(peer: str, method: str, reason: str) -> None:
    _log.warning("message_refused", peer=peer, method=method, reason=reason)
