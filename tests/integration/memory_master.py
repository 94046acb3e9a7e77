"""A real master on a loopback port, whose nodes exist only in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc

from elastane.master.event_log import EventLog
from elastane.master.master import JobMaster
from elastane.model.job_spec import ElasticJob
from elastane.testing import MemoryPlatform

TOKEN = "the-right-token"


class MemoryMaster:
    """The master, what it wrote down, and raw calls to it."""

    def __init__(self, job: ElasticJob, events_file: Path) -> None:
        self._events_file = events_file
        self._events = EventLog(events_file)
        self._job = job
        self.platform = MemoryPlatform()
        self.master = JobMaster(job, TOKEN, self.platform, self._events)

    async def start(self) -> None:
        """Serve, and wait until all nodes run."""
        self.address = await self.master.serve()
        self.running = asyncio.create_task(self.master.run())
        with self._events.watch() as lines:
            missing = self._job.spec.worker.replicas
            while missing:
                missing -= json.loads(await lines.get())["kind"] == "node_running"
        self.settled = self.state()

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.master.close()

    def state(self) -> tuple[Any, ...]:
        """All that a message could have changed."""
        ledgers = {name: ledger.snapshot() for name, ledger in self.master.task_manager.ledgers.items()}
        return self.master.job_manager.workers.group.nodes, json.dumps(ledgers)

    def all_events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._events_file.read_text().splitlines()]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.all_events() if event["kind"] == kind]

    async def until(self, kind: str, node: str) -> None:
        """Wait until this was written down of a node."""
        with self._events.watch() as lines:
            while not any(event["node"] == node for event in self.events(kind)):
                await lines.get()

    async def call(self, path: str, data: bytes, token: str | None = TOKEN) -> bytes:
        """Send raw bytes as the one message of a call."""
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        async with grpc.aio.insecure_channel(self.address, options=[("grpc.max_send_message_length", -1)]) as channel:
            answer: bytes = await channel.unary_unary(path)(data, metadata=metadata, timeout=10)
            return answer
