"""One Brain under the reports of thousands of jobs, on SQLite and on PostgreSQL.

Each job is simulated: a connection of its own, some minutes of rows that it brings along, a report of one row every ten
seconds, and every five minutes (or as `--reports-a-plan` says) a question for a plan, which it follows. All jobs are in
one process, beside the Brain's; what is measured is the time from a call to its answer, which comes after the commit.
Databases are durable: SQLite with synchronous=FULL, PostgreSQL with fsync.

- steady: all jobs as above. Latencies of reports and of plans, rows a second, the share of a core that the Brain took.
- most: as many rows as the Brain takes, from 64 callers who never pause, a hundred rows to a report.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import psutil
from google.protobuf.message import Message
from tests.postgres import postgres

from benchmarks.report import Report, parser
from elastane.model.brain import ReportedWindow, RunIdentity
from elastane.model.environment import ENV_BRAIN, ENV_BRAIN_TOKEN_FILE
from elastane.model.sizing import Budget, Change, Decision, JobKind, JobSize, Window
from elastane.platform.local.registry import STATE_ENV
from elastane.rpc import brain_wire
from elastane.rpc.protos import brain_pb2 as pb

PERIOD_S = 10.0
JOBS_A_CODE = 10
EARLIER_ROWS = 4
BUDGET = Budget(max_workers=32)

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Brain:
    address: str
    token: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Of the process that serves, and of those that plan."""
        times = [process.cpu_times() for process in (self.process, *self.process.children())]
        return float(sum(each.user + each.system for each in times))


@contextmanager
def brain(database: str, folder: Path) -> Iterator[Brain]:
    """`elastane brain` in a process of its own."""
    command = [sys.executable, "-m", "elastane", "brain", "--database", database]
    with (folder / "brain.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, STATE_ENV: str(folder)}, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with process:
        assert process.stdout is not None
        words = dict(word.split("=", 1) for word in shlex.split(process.stdout.readline())[1:])
        token = Path(words[ENV_BRAIN_TOKEN_FILE]).read_text().strip()
        try:
            yield Brain(words[ENV_BRAIN], token, psutil.Process(process.pid))
        finally:
            process.terminate()


@dataclass
class Latencies:
    """What the calls of one run took, and how many were refused."""

    report_s: list[float] = field(default_factory=list)
    plan_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    measuring: bool = False


class Caller:
    """Calls over one connection."""

    def __init__(self, served: Brain, latencies: Latencies) -> None:
        # A pool of its own keeps jobs from sharing one connection.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self.channel = grpc.aio.insecure_channel(served.address, options=options)
        self._metadata = (("authorization", f"Bearer {served.token}"),)
        self.latencies = latencies

    async def call(self, method: str, request: Message, answer: type[M], took_s: list[float]) -> M | None:
        """None if it was refused."""
        started = time.perf_counter()
        try:
            data = await self.channel.unary_unary(f"/elastane.v1.Brain/{method}")(
                request.SerializeToString(), metadata=self._metadata, timeout=60
            )
        except grpc.aio.AioRpcError as error:
            self.latencies.refused[f"{method} {error.code().name}: {error.details()}"] += 1
            return None
        if self.latencies.measuring:
            took_s.append(time.perf_counter() - started)
        return answer.FromString(data)


class SimulatedJob:
    """A job whose workers slow each other a little."""

    def __init__(self, number: int, every: int, served: Brain, latencies: Latencies) -> None:
        self._rng = random.Random(number)
        self._caller = Caller(served, latencies)
        self.latencies = latencies
        self._run = RunIdentity(
            run=f"job-{number}",
            job=f"job-{number}",
            user=f"user-{number % 50}",
            kind=JobKind.ALLREDUCE,
            model=f"model-{number // JOBS_A_CODE % 100}",
            code=f"code-{number // JOBS_A_CODE}",
            data="data",
        )
        self._size = JobSize(self._rng.randint(3, 4))
        self._slowing = self._rng.uniform(0.02, 0.2)
        self._began = time.monotonic() - 3 * EARLIER_ROWS * PERIOD_S
        self._rows = self._changes = 0
        self._every = every
        self._asks_at = number % every

    async def live(self, until: float) -> None:
        await asyncio.sleep(self._rng.uniform(0, PERIOD_S))
        register = brain_wire.run_to_wire(self._run, self._age_s())
        await self._caller.call("Register", register, pb.Registered, [])
        await self._tell_what_was()
        due = time.monotonic()
        while due < until:
            await self._tell()
            if self._rows % self._every == self._asks_at:
                await self._ask()
            due += PERIOD_S
            await asyncio.sleep(due - time.monotonic())
        await self._caller.channel.close()

    def _age_s(self) -> float:
        return time.monotonic() - self._began

    async def _tell(self) -> None:
        self._rows += 1
        row = brain_wire.row_to_wire(
            self._rows, ReportedWindow(self._window(self._size, self._age_s()), step=self._rows)
        )
        request = pb.ReportRequest(run=self._run.run, sender=1, row=[row])
        answer = await self._caller.call("Report", request, pb.Reported, self.latencies.report_s)
        if answer is not None and not answer.stored:
            self.latencies.refused["Report not stored"] += 1

    async def _ask(self) -> None:
        request = brain_wire.plan_request(self._run, self._age_s(), BUDGET, 1e9, with_history=False)
        answer = await self._caller.call("Plan", request, pb.Planned, self.latencies.plan_s)
        if answer is None:
            return
        advice = brain_wire.advice_from_wire(answer)
        if isinstance(decision := advice.decision, Decision):
            self._changes += 1
            change = Change(self._age_s(), self._size, decision.size, decision.prediction, 1.0)
            outcome = brain_wire.change_to_wire(self._run, self._changes, change, advice.plan)
            await self._caller.call("Outcome", outcome, pb.OutcomeStored, [])
            self._size = decision.size

    async def _tell_what_was(self) -> None:
        """The windows of the minutes before, at three sizes: a plan has something to fit."""
        rows = []
        for size in (JobSize(1), JobSize(2), self._size):
            for _ in range(EARLIER_ROWS):
                self._rows += 1
                rows.append(
                    brain_wire.row_to_wire(self._rows, ReportedWindow(self._window(size, PERIOD_S * self._rows)))
                )
        await self._caller.call("Report", pb.ReportRequest(run=self._run.run, sender=1, row=rows), pb.Reported, [])

    def _window(self, size: JobSize, at_s: float) -> Window:
        step_s = 0.1 * (1 + self._slowing * size.workers) * self._rng.uniform(0.97, 1.03)
        return Window(at_s, size, 100.0, 100 * size.workers / step_s, step_s, duration_s=PERIOD_S)


async def steady(served: Brain, jobs: int, every: int, seconds: float) -> dict[str, float]:
    """All jobs for some seconds, after all have come."""
    latencies = Latencies()
    until = time.monotonic() + 3 * PERIOD_S + seconds
    living = [asyncio.create_task(SimulatedJob(number, every, served, latencies).live(until)) for number in range(jobs)]
    await asyncio.sleep(3 * PERIOD_S)
    latencies.measuring = True
    cpu_s, began = served.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    latencies.measuring = False
    elapsed_s = time.monotonic() - began
    cpu = (served.cpu_s() - cpu_s) / elapsed_s
    await asyncio.gather(*living)
    for what, times in latencies.refused.most_common(5):
        print(f"{times} times: {what}")
    return {
        "rows_per_s": len(latencies.report_s) / elapsed_s,
        **{f"report_p{p}_ms": 1000 * _quantile(latencies.report_s, p) for p in (50, 99)},
        "report_most_ms": 1000 * max(latencies.report_s),
        "plans_per_s": len(latencies.plan_s) / elapsed_s,
        **{f"plan_p{p}_ms": 1000 * _quantile(latencies.plan_s, p) for p in (50, 99)},
        "refused": latencies.refused.total(),
        "brain_cores": cpu,
        "brain_mib": served.process.memory_info().rss / 2**20,
    }


async def most(served: Brain, seconds: float) -> float:
    """Rows a second from callers who never pause."""
    latencies = Latencies()
    until = time.monotonic() + seconds
    stored = 0

    async def pour(number: int) -> None:
        nonlocal stored
        caller = Caller(served, latencies)
        run = RunIdentity(f"pours-{number}", "pours", "ada", JobKind.ALLREDUCE)
        await caller.call("Register", brain_wire.run_to_wire(run, 1000.0), pb.Registered, [])
        window = ReportedWindow(Window(1.0, JobSize(2), 100.0, 1000.0, 0.2, duration_s=1.0))
        rows = 0
        while time.monotonic() < until:
            told = [brain_wire.row_to_wire(rows + more, window) for more in range(1, 101)]
            request = pb.ReportRequest(run=run.run, sender=1, row=told)
            answer = await caller.call("Report", request, pb.Reported, [])
            assert answer is not None
            if answer.stored:
                rows += 100
                stored += 100
        await caller.channel.close()

    began = time.monotonic()
    await asyncio.gather(*(pour(number) for number in range(64)))
    return stored / (time.monotonic() - began)


def measure(report: Report, name: str, database: str, options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, brain(database, Path(folder)) as served:
        figures = asyncio.run(steady(served, options.jobs, options.reports_a_plan, options.seconds))
        report.row("steady", database=name, jobs=options.jobs, reports_a_plan=options.reports_a_plan).add(**figures)
        rate = asyncio.run(most(served, 5.0 if options.quick else 10.0))
        report.row("most", database=name, callers=64, rows_a_report=100).add(rows_per_s=rate)


def _quantile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--jobs", type=int, default=5000)
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--reports-a-plan", type=int, default=30, metavar="N", help="ask for a plan after N reports")
    options = made.parse_args()
    if options.quick:
        options.jobs, options.seconds = min(options.jobs, 500), min(options.seconds, 12.0)
    # A connection is a file for each side.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        measure(report, "SQLite", str(Path(folder) / "brain.sqlite"), options)
    with postgres() as server:
        measure(report, "PostgreSQL", server.database(), options)
    report.show(options.json)


if __name__ == "__main__":
    main()
