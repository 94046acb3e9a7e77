"""Starts a local job: the agent that owns the nodes, and the master. Both end when the launcher does.

A master that dies is started again, and goes on from its journal; the nodes work on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastane.model.errors import PlatformError
from elastane.model.job_spec import ElasticJob
from elastane.platform.local.registry import JobFolder, JobRecord

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0

SHORT_LIFE_S = 2.0
SHORT_LIVES = 5
"""A master that ends by itself so often in a row, each time so soon, or is not up by then, is not started again."""


class LocalJob:
    """A job that this process launched: its folder, its master and its agent."""

    def __init__(
        self,
        job: ElasticJob,
        events_file: Path | None,
        *,
        warm_start: bool = True,
        address: str = "",
        token: str | None = None,
        metrics_port: int | None = None,
        tensorboard: Path | None = None,
    ) -> None:
        self._job = job
        self._events_file = events_file
        self._warm_start = warm_start
        self._listen_at = address
        self._tensorboard = "" if tensorboard is None else str(tensorboard)
        self._metrics_at = "" if metrics_port is None else f"127.0.0.1:{metrics_port}"
        self._token = token or secrets.token_urlsafe(32)

    async def start(self) -> JobRecord:
        """Start agent and master; return once the master serves. Raises JobExists, PlatformError."""
        self.folder = JobFolder.create(self._job.name)
        self._lock = self.folder.hold()
        record = JobRecord(
            name=self._job.name,
            token=self._token,
            job=self._job.document(),
            started_at=datetime.now(UTC).isoformat(),
            address=self._listen_at,
            metrics=self._metrics_at,
            tensorboard=self._tensorboard,
        )
        self.folder.write(record)
        # This process keeps the master's end of the socket, and so what the agent says while there is no master.
        agent_side, self._master_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._life_read, self._life_write = os.pipe()
        self._agent = None
        if self._job.spec.launches_nodes:
            self._agent = self._spawn(
                "elastane.platform.local.agent",
                [agent_side.fileno(), self._life_read],
                [] if self._warm_start else ["--no-warm-start"],
                self.folder.logs / "agent.log",
            )
        agent_side.close()
        addresses = await self._start_master()
        if not addresses:
            await self.close()
            raise PlatformError(f"the master did not start\n{self._last_words()}")
        record = replace(record, address=addresses["address"], metrics=addresses["metrics"])
        self.folder.write(record)
        return record

    async def wait(self) -> dict[str, Any]:
        """Wait until the master has ended; the answer is how the job ended."""
        short_lives, serves = 0, True
        while True:
            started = time.monotonic()
            await asyncio.to_thread(self._master.wait)
            end = self.folder.read_end()
            if end is not None:
                return end
            by_itself = self._master.returncode >= 0 and time.monotonic() < started + SHORT_LIFE_S
            short_lives = short_lives + 1 if by_itself or not serves else 0
            if short_lives == SHORT_LIVES:
                return self._failed()
            serves = bool(await self._start_master())

    def _failed(self) -> dict[str, Any]:
        reason = f"the master ended with exit code {self._master.returncode}, {SHORT_LIVES} times in a row"
        status = {"job": self.folder.name, "state": "failed", "reason": reason}
        end = {"end": "failed", "reason": reason, "error": self._last_words(), "status": status}
        self.folder.write_end(end)
        return end

    async def close(self) -> None:
        """End whatever is left of the job."""
        os.close(self._life_write)
        for process in (self._agent, self._master):
            if process is None:
                continue
            try:
                await asyncio.to_thread(process.wait, END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._master_side.close()
        os.close(self._life_read)
        os.close(self._lock)

    async def _start_master(self) -> dict[str, str]:
        """Start the master, or another in its place; the answer are its addresses, or nothing if it did not start."""
        ready_read, ready_write = os.pipe()
        self._master = self._spawn(
            "elastane.master",
            [self._master_side.fileno(), self._life_read, ready_write],
            [str(self.folder.path), *([str(self._events_file)] if self._events_file else [])],
            self.folder.logs / "master.log",
        )
        os.close(ready_write)
        return await self._addresses(ready_read)

    def _last_words(self) -> str:
        return (self.folder.logs / "master.log").read_text()[-2000:]

    def _spawn(self, module: str, fds: list[int], arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603  # our own modules
                # -P: a file of the user's that is called like a module of ours must not take its place.
                [sys.executable, "-P", "-m", module, *map(str, fds), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                # A Ctrl-C in the terminal is for the launcher alone, which then drains the job.
                start_new_session=True,
            )

    async def _addresses(self, ready: int) -> dict[str, str]:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ready, "rb")
        )
        try:
            line = await asyncio.wait_for(reader.readline(), START_TIMEOUT_S)
        except TimeoutError:
            line = b""
        finally:
            transport.close()
        found: dict[str, str] = json.loads(line) if line else {}
        return found
