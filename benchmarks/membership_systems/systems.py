"""How each system is started, and how a worker is asked for, let go and killed in it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.membership_systems.processes import LOOPBACK, Family, free_port
from elastane.client.local_place import control_of
from elastane.model.errors import MasterUnreachable, RequestRefused
from elastane.platform.local.registry import STATE_ENV, JobFolder
from elastane.rpc.control_client import ControlClient

START_TIMEOUT_S = 30.0
_SCRIPTS = "benchmarks.membership_systems"
WORKERS = 3
_VICTIM = WORKERS - 1


class System(Protocol):
    """One system in one run. Each event answers the time at which it was asked for."""

    victim: str
    """The worker that comes last, and the one to be drained or killed: the name of its file of steps."""

    def start(self, workers: int) -> None:
        """Start two or three workers."""

    def join(self) -> float:
        """Ask for a third worker."""

    def drain(self) -> float:
        """Ask the third to leave."""

    def crash(self, pid: int) -> float:
        """Kill the third, whose process this is."""

    def end(self) -> None:
        """End what is not in the family of the run's processes."""


class _OwnLauncher:
    """Workers that the driver starts one by one, as the user of torchrun and torchft does."""

    def __init__(self, family: Family) -> None:
        self.victim = f"worker-{_VICTIM}"
        self._family = family
        self._env: dict[str, str] = {}
        self._started: list[psutil.Popen] = []

    def start(self, workers: int) -> None:
        self._prepare()
        for _ in range(workers):
            self.join()

    def join(self) -> float:
        number = len(self._started)
        moment = time.time()
        self._started.append(self._family.start(f"worker-{number}", self._command(number), **self._env))
        return moment

    def drain(self) -> float:
        moment = time.time()
        self._started[_VICTIM].send_signal(signal.SIGTERM)
        return moment

    def crash(self, pid: int) -> float:
        del pid  # What watches the worker ends with it.
        moment = time.time()
        self._family.kill(self._started[_VICTIM])
        return moment

    def end(self) -> None:
        """All are in the family."""

    def _prepare(self) -> None:
        pass

    def _command(self, number: int) -> Sequence[str | Path]:
        raise NotImplementedError


class Torchrun(_OwnLauncher):
    """torchrun with an elastic agent for each worker, as on machines of their own."""

    def __init__(self, family: Family, commands: Path, folder: Path, parameters: int, *, settings: str) -> None:
        super().__init__(family)
        self._commands = commands
        self._folder = folder
        self._parameters = parameters
        self._settings = ["--rdzv-conf", settings] if settings else []
        # With a store that the agents share, which is the default, workers hang when another agent becomes the first:
        # the others keep the address of the store before.
        self._env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self._port = free_port()

    def _command(self, number: int) -> Sequence[str | Path]:
        # The first agent keeps the rendezvous for all; it is never the one that leaves.
        return [
            self._commands / "torchrun",
            *("--nnodes", f"2:{WORKERS}", "--nproc-per-node", "1", "--max-restarts", "100"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:{self._port}", "--rdzv-id", "membership"),
            *self._settings,
            *("--local-addr", LOOPBACK, "--log-dir", self._folder / f"agent-{number}"),
            *("-m", f"{_SCRIPTS}.train_torchrun", "--worker", f"worker-{number}"),
            *("--parameters", str(self._parameters), "--steps-folder", self._folder),
            *("--checkpoint", self._folder / "checkpoint.pt"),
        ]


class Torchft(_OwnLauncher):
    """torchft with a lighthouse and a replica group for each worker."""

    def __init__(
        self,
        family: Family,
        commands: Path,
        folder: Path,
        parameters: int,
        *,
        lighthouse: Sequence[str],
        manager: Sequence[str] = (),
    ) -> None:
        super().__init__(family)
        self._commands = commands
        self._folder = folder
        self._parameters = parameters
        self._lighthouse = lighthouse
        self._manager = manager
        self._port = free_port()

    def _prepare(self) -> None:
        bind = ("--bind", f"{LOOPBACK}:{self._port}", "--min_replicas", "2")
        self._family.start("lighthouse", [self._commands / "torchft_lighthouse", *bind, *self._lighthouse])
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(ConnectionRefusedError), socket.create_connection((LOOPBACK, self._port)):
                return
            time.sleep(0.05)
        raise TimeoutError("the lighthouse does not listen")

    def _command(self, number: int) -> Sequence[str | Path]:
        return [
            *(self._commands / "python", "-m", f"{_SCRIPTS}.train_torchft"),
            *("--worker", f"worker-{number}", "--seed", str(number)),
            *("--lighthouse", f"http://{LOOPBACK}:{self._port}"),
            *("--parameters", str(self._parameters), "--steps-folder", self._folder),
            *self._manager,
        ]


class Elastane:
    """elastane with its own launcher and its own control requests."""

    def __init__(self, family: Family, folder: Path, parameters: int, *, warm_start: bool = True) -> None:
        self._options = () if warm_start else ("--no-warm-start",)
        self._name = f"membership-{secrets.token_hex(2)}"
        self.victim = f"{self._name}-worker-{_VICTIM}"
        self._family = family
        self._folder = folder
        self._parameters = parameters

    def start(self, workers: int) -> None:
        options = (
            "--workers",
            f"2:{WORKERS}",
            "--name",
            self._name,
            "--restarts",
            "0",
            "--no-progress",
            *self._options,
        )
        script = (str(Path(__file__).with_name("train_elastane.py")), "--parameters", str(self._parameters))
        command = [sys.executable, "-m", "elastane", "run", *options, *script, "--steps-folder", str(self._folder)]
        self._family.start("launcher", command, **{STATE_ENV: str(self._folder)})
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError, MasterUnreachable, RequestRefused):
                self._ask(lambda client: client.scale(workers))
                return
            time.sleep(0.05)
        raise TimeoutError("the master does not answer")

    def join(self) -> float:
        return self._ask(lambda client: client.scale(WORKERS))

    def drain(self) -> float:
        return self._ask(lambda client: client.drain(self.victim))

    def crash(self, pid: int) -> float:
        moment = time.time()
        os.kill(pid, signal.SIGKILL)
        return moment

    def end(self) -> None:
        """All are in the family."""

    def _ask(self, request: Callable[[ControlClient], Awaitable[None]]) -> float:
        """Send a request as the command does, without the time that Python takes to start."""

        async def send() -> float:
            async with control_of(JobFolder(self._folder / "jobs" / self._name)) as client:
                await client.status()
                moment = time.time()
                await request(client)
                return moment

        return asyncio.run(send())
