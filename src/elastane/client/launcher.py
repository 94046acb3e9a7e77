"""The launcher of a submitted job: `python -m elastane.client.launcher READY_FD`, with the job on standard input.

It is what `elastane run` is to a job, without a terminal: it starts the master and the agent, and ends when the job
does. It belongs to nobody: the job goes on when the program that submitted it has ended. SIGTERM drains the nodes, a
second one kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from elastane.model import errors
from elastane.model.errors import ElastaneError, MasterUnreachable, PlatformError, RequestRefused
from elastane.model.job_spec import ElasticJob, load_job
from elastane.platform.local.launcher import LocalJob
from elastane.platform.local.registry import JobRecord
from elastane.rpc.control_client import ControlClient

ASK_AGAIN_S = 0.25


def launch(job: ElasticJob, events_file: Path | None) -> None:
    """Start a job's launcher; returns once its master serves. Raises JobExists, PlatformError."""
    ready, writable = os.pipe()
    order = {"job": job.document(), "events_file": None if events_file is None else str(events_file)}
    with open(ready, "rb") as answer:
        try:
            started = subprocess.run(  # noqa: S603  # our own module
                # -P: a file of the user's that is called like a module of ours must not take its place.
                [sys.executable, "-P", "-m", "elastane.client.launcher", str(writable)],
                input=json.dumps(order).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[writable],
                check=False,
            )
        finally:
            os.close(writable)
        said = answer.read()
    if not said:
        words = started.stderr.decode(errors="replace").strip() or "it said nothing"
        raise PlatformError(f"the job's launcher did not start: {words.splitlines()[-1]}")
    told: dict[str, str] = json.loads(said)
    if told:
        kind: type[ElastaneError] = getattr(errors, told["error"])
        raise kind(told["text"])


async def _run(order: dict[str, Any], ready: int) -> None:
    events_file = order["events_file"]
    local = LocalJob(load_job(order["job"]), None if events_file is None else Path(events_file))
    try:
        record = await local.start()
    except (ElastaneError, OSError) as error:
        told = error if isinstance(error, ElastaneError) else PlatformError(f"the job cannot be started: {error}")
        os.write(ready, json.dumps({"error": type(told).__name__, "text": str(told)}).encode())
        return
    log = os.open(local.folder.logs / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.write(ready, b"{}")
    os.close(ready)
    try:
        _stop_by_signals(record)
        await local.wait()
    finally:
        await local.close()


def _stop_by_signals(record: JobRecord) -> None:
    loop = asyncio.get_running_loop()
    stops: set[asyncio.Task[None]] = set()

    def received() -> None:
        stops.add(asyncio.create_task(_stop(record, at_once=bool(stops))))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received)


async def _stop(record: JobRecord, *, at_once: bool) -> None:
    async with ControlClient(record.address, record.token) as client:
        while True:
            with contextlib.suppress(MasterUnreachable):
                with contextlib.suppress(RequestRefused):  # It is ending.
                    await client.stop(at_once=at_once)
                return
            await asyncio.sleep(ASK_AGAIN_S)  # Another master takes its place, unless the job has ended.


def main(ready: int) -> None:
    order = json.load(sys.stdin)
    if os.fork():
        os._exit(0)  # Whoever submitted the job has no child to wait for.
    os.setsid()
    # What was the submitter's is not held open; what goes wrong from here on is said over READY_FD, or in a log.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    asyncio.run(_run(order, ready))


if __name__ == "__main__":
    main(int(sys.argv[1]))
