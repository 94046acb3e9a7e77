"""Brains to test: in this process with a clock that the test moves, and as the real command that can be killed."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from elastane.brain.app import BrainServer
from elastane.brain.store import Store
from elastane.master.brain_client import BrainClient
from elastane.model.brain import ReportedWindow, RunIdentity
from elastane.model.environment import ENV_BRAIN, ENV_BRAIN_TOKEN_FILE
from elastane.model.sizing import JobKind, JobSize, Window
from elastane.platform.local.registry import STATE_ENV
from tests.integration.harness import ROOT

TOKEN = "the-right-token-of-the-brain"
TIMEOUT_S = 30.0


def make_run(run: str = "ctr-1", **more: Any) -> RunIdentity:
    fields: dict[str, Any] = {"job": "ctr", "user": "ada", "model": "wide", "code": "c0de", "data": "da7a"}
    return RunIdentity(**{"run": run, "kind": JobKind.ALLREDUCE, **fields, **more})


def make_window(at_s: float = 10.0, workers: int = 2, **more: Any) -> Window:
    """A window of a job of 100 samples a step and worker, whose workers do not slow each other."""
    fields: dict[str, Any] = {"batch_size": 100.0, "samples_per_s": 1000.0 * workers, "step_s": 0.1, "duration_s": 10.0}
    return Window(at_s=at_s, size=JobSize(workers), **{**fields, **more})


def make_report(at_s: float = 10.0, workers: int = 2, **more: Any) -> ReportedWindow:
    return ReportedWindow(make_window(at_s, workers, **more))


async def until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # what is waited for may be in another process
            await asyncio.sleep(0.01)


class Clock:
    """A time of day that the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class BrainHere:
    """A Brain in this process, on a port of its own."""

    def __init__(self, database: str) -> None:
        self.store = Store(database)
        self.clock = Clock()

    async def start(self) -> None:
        self._server = BrainServer(self.store, TOKEN, lambda: ThreadPoolExecutor(1), self.clock)
        self.address = await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)
        self.store.close()

    @asynccontextmanager
    async def client(self, run: RunIdentity, token: str = TOKEN) -> AsyncIterator[BrainClient]:
        """A client of a run that begins now, by the test's clock."""
        began = self.clock.now
        client = BrainClient(self.address, token, run, lambda: self.clock.now - began)
        client.start()
        try:
            yield client
        finally:
            await client.close()

    async def tell(self, run: RunIdentity, sizes: tuple[int, ...], exit_reason: str | None = "succeeded") -> None:
        """A whole run that had these numbers of workers, three windows each, ten seconds a window."""
        async with self.client(run) as client:
            at_s = 0.0
            for workers in sizes:
                for _ in range(3):
                    at_s += 10.0
                    self.clock.now += 10.0
                    client.report(make_report(at_s, workers))
            await until(lambda: client.waiting == 0)
            if exit_reason is not None:
                assert await client.finish(exit_reason)


class BrainProcess:
    """`elastane brain`, to be killed, stopped and started again at the same port."""

    def __init__(self, database: str | None, folder: Path, *options: str) -> None:
        self._database = database
        self._options = options
        self._env = {**os.environ, STATE_ENV: str(folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self._log = folder / "brain.log"
        self._port = 0

    def start(self, database: str | None = None) -> None:
        """Start it, with the same database or this one, and wait until it has said where it is."""
        self._database = database or self._database
        where = [] if self._database is None else ["--database", self._database]
        command = [sys.executable, "-m", "elastane", "brain", *where, "--port", str(self._port), *self._options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=log, text=True)
        said = self.next_line()
        words = dict(word.split("=", 1) for word in shlex.split(said)[1:])
        assert words, self._log.read_text()
        self.address = words[ENV_BRAIN]
        self.token = Path(words[ENV_BRAIN_TOKEN_FILE]).read_text().strip()
        self._port = int(self.address.rsplit(":", 1)[1])

    def next_line(self) -> str:
        """What it says next."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def planners(self) -> list[psutil.Process]:
        """The processes that it has plans made by."""
        children = psutil.Process(self._process.pid).children()
        return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ask it to end; the answer is its exit code."""
        self._process.terminate()
        return self._end()

    def close(self) -> None:
        """Be sure that it is gone."""
        if self._process.poll() is None:
            self.thaw()
            self.kill()

    def log(self) -> str:
        return self._log.read_text()

    def _end(self) -> int:
        code = self._process.wait(TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code
