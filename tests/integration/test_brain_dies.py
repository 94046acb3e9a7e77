"""A Brain that is killed, stopped, absent or emptied: no acknowledged row is lost, none stored twice, no job waits."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from elastane.brain.store import Store
from elastane.master.brain_client import BrainClient
from elastane.model.brain import Advice
from elastane.model.errors import BrainUnreachable
from elastane.model.sizing import Budget, Change, JobSize, Prediction
from tests.integration.brains import BrainProcess, make_report, make_run, until
from tests.integration.harness import Jobs
from tests.postgres import Postgres, postgres

pytestmark = pytest.mark.slow

BUDGET = Budget(max_workers=8)
AT_ONCE_S = 0.5
"""Nothing is waited for; the rest is a busy machine."""


class Job:
    """A job that tells of a window as often as it can, and notices how long that took at most."""

    def __init__(self, address: str, token: str, **more: int) -> None:
        self.said: list[bool] = []
        self.told = 0
        self.slowest_s = 0.0
        self.client = BrainClient(
            address, token, make_run("a"), lambda: 1e6, lambda reachable, _: self.said.append(reachable), **more
        )
        self.client.start()

    def tell(self, count: int = 1) -> None:
        for _ in range(count):
            self.told += 1
            started = time.perf_counter()
            self.client.report(make_report(float(self.told)))
            self.slowest_s = max(self.slowest_s, time.perf_counter() - started)

    async def tell_until_acknowledged(self, more: int) -> None:
        wanted = self.client.acknowledged + more
        async with asyncio.timeout(60):
            while self.client.acknowledged < wanted:
                self.tell(5 if self.client.waiting < 500 else 0)
                await asyncio.sleep(0.001)

    async def plan_within(self, timeout_s: float) -> Advice:
        """Ask for a plan; however that ends, it ends in time."""
        started = time.perf_counter()
        try:
            return await self.client.plan(BUDGET, None, timeout_s=timeout_s)
        finally:
            assert time.perf_counter() - started < timeout_s + AT_ONCE_S


@asynccontextmanager
async def a_job(address: str, token: str, **more: int) -> AsyncIterator[Job]:
    job = Job(address, token, **more)
    try:
        yield job
    finally:
        await job.client.close()


def stored(database: str) -> list[float]:
    """When the windows in the database ended, which in these tests is also the number of each."""
    store = Store(database)
    try:
        run = store.find("a")
        return [] if run is None else [row.window.at_s for row in store.windows_of(run.id)]
    finally:
        store.close()


def count(database: str) -> int:
    store = Store(database)
    try:
        return store.count("windows")
    finally:
        store.close()


async def test_a_brain_that_is_killed_again_and_again_loses_nothing_that_it_acknowledged(
    database: str, brain_process: BrainProcess
) -> None:
    async with a_job(brain_process.address, brain_process.token) as job:
        for _ in range(3):
            await job.tell_until_acknowledged(100)
            job.tell(20)
            await asyncio.sleep(0)  # Some are on their way.
            brain_process.kill()
            acknowledged = job.client.acknowledged
            assert count(database) >= acknowledged
            job.tell(50)
            with pytest.raises(BrainUnreachable):
                await job.plan_within(0.3)
            brain_process.start()
        await until(lambda: job.client.waiting == 0)
        assert count(database) == job.told == job.client.acknowledged
        assert job.slowest_s < AT_ONCE_S
        assert job.said == [False, True] * (len(job.said) // 2)
        assert job.said
        assert (await job.plan_within(10.0)).decision.reason


async def test_a_brain_that_hangs_is_not_waited_for_and_hears_all_afterwards(
    database: str, brain_process: BrainProcess
) -> None:
    async with a_job(brain_process.address, brain_process.token) as job:
        await job.tell_until_acknowledged(10)
        await until(lambda: job.client.waiting == 0)
        brain_process.freeze()
        job.tell(100)
        with pytest.raises(BrainUnreachable, match=r"within 0\.5 seconds"):
            await job.plan_within(0.5)
        started = time.perf_counter()
        assert not await job.client.finish("succeeded", timeout_s=0.5)
        assert time.perf_counter() - started < 0.5 + AT_ONCE_S
        brain_process.thaw()
        await until(lambda: job.client.waiting == 0)
        assert job.slowest_s < AT_ONCE_S
        assert await job.client.finish("succeeded", timeout_s=10.0)
    assert count(database) == job.told


async def test_a_planner_that_is_killed_is_replaced(tmp_path: Path) -> None:
    process = BrainProcess(None, tmp_path)
    process.start()
    try:
        async with a_job(process.address, process.token) as job:
            job.tell(10)
            before = await job.plan_within(20.0)
            dead = process.planners()
            for planner in dead:
                planner.kill()
            with pytest.raises(BrainUnreachable, match="a planner of the Brain died"):
                await job.plan_within(20.0)
            assert (await job.plan_within(20.0)).decision == before.decision
            living = process.planners()
            assert living
            assert not set(living) & set(dead)
            process.kill()
            psutil.wait_procs(living, timeout=20)
            assert not any(planner.is_running() for planner in living)
    finally:
        process.close()


async def test_without_a_brain_a_job_goes_on_and_keeps_the_newest_for_one_that_comes() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # Bound and not listening: nobody answers there, nor comes.
        async with a_job(f"127.0.0.1:{nobody.getsockname()[1]}", "a-token-of-nobody", most_buffered=50) as job:
            job.tell(60)
            with pytest.raises(BrainUnreachable):
                await job.plan_within(1.0)
            with pytest.raises(BrainUnreachable):
                await job.plan_within(1.0)
            assert (job.client.waiting, job.client.dropped, job.client.acknowledged) == (50, 10, 0)
            assert not await job.client.finish("succeeded", timeout_s=0.3)
            assert job.slowest_s < AT_ONCE_S
            assert job.said == [False]


async def test_a_brain_with_another_database_learns_of_the_run_anew(
    database: str, brain_process: BrainProcess, tmp_path: Path
) -> None:
    async with a_job(brain_process.address, brain_process.token) as job:
        await job.tell_until_acknowledged(5)
        await until(lambda: job.client.waiting == 0)
        brain_process.kill()
        told_before, other = job.told, str(tmp_path / "other.sqlite")
        brain_process.start(other)
        job.tell(5)
        job.client.outcome(1, Change(5.0, JobSize(2), JobSize(4), Prediction(1.0, 1.0, 1.0), 1.0), plan=77)
        await until(lambda: job.client.waiting == 0)
        assert await job.client.finish("succeeded", timeout_s=10.0)
    assert count(database) == told_before
    assert stored(other) == list(range(told_before + 1, told_before + 6))
    store = Store(other)
    assert store.count("plans") == 1
    store.close()


async def test_a_brain_that_is_asked_to_end_finishes_what_was_begun(database: str, brain_process: BrainProcess) -> None:
    async with a_job(brain_process.address, brain_process.token) as job:
        await job.tell_until_acknowledged(50)
        code = await asyncio.to_thread(brain_process.stop)
        assert code == 0
        assert count(database) >= job.client.acknowledged


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


async def test_a_database_that_crashes_under_the_brain_costs_no_acknowledged_row(
    own_server: Postgres, tmp_path: Path
) -> None:
    database = own_server.database()
    process = BrainProcess(database, tmp_path)
    process.start()
    try:
        async with a_job(process.address, process.token) as job:
            await job.tell_until_acknowledged(50)
            await asyncio.to_thread(own_server.stop)
            acknowledged = job.client.acknowledged
            job.tell(20)
            with pytest.raises(BrainUnreachable):
                await job.plan_within(2.0)
            await asyncio.to_thread(own_server.start)
            assert count(database) >= acknowledged
            await until(lambda: job.client.waiting == 0)
            assert count(database) == job.told
            assert job.slowest_s < AT_ONCE_S
    finally:
        process.close()


def test_the_token_and_the_database_are_the_users_alone(tmp_path: Path) -> None:
    process = BrainProcess(None, tmp_path)
    process.start()
    try:
        files = [tmp_path / "brain" / name for name in ("token", "brain.sqlite")]
        assert [stat.S_IMODE(os.stat(path).st_mode) for path in files] == [0o600] * 2
        token = process.token
        process.kill()
        process.start()
        assert process.token == token
    finally:
        process.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--database", "mysql://x/y"), 'database: "mysql" is not supported'),
        (("--database", "/proc/none/x"), 'database: "/proc/none/x" cannot be written'),
        (("--database", "postgresql://ada:secret@127.0.0.1:1/x"), "the database cannot be used"),
        (("--token-file", "/dev/null"), "does not hold a token"),
    ],
)
def test_what_cannot_be_served_is_one_line(jobs: Jobs, words: tuple[str, ...], said: str) -> None:
    done = jobs.command("brain", *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
