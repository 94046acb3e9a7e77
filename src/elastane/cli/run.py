"""`elastane run`: launch a job here, show it, and end with its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from elastane.cli.dashboard import beside
from elastane.cli.lines import summary_line
from elastane.cli.ports import check_free, say_metrics
from elastane.cli.view import LiveView, PlainView, View, say
from elastane.client.status import last_status
from elastane.client.tail import LogTail
from elastane.model.errors import InvalidInput, MasterUnreachable
from elastane.model.job_spec import DistributionStrategy, ElasticJob
from elastane.platform.local.launcher import LocalJob
from elastane.platform.local.registry import JobRecord
from elastane.rpc.control_client import ControlClient

STATUS_EVERY_S = 0.25
OUTPUT_EVERY_S = 0.1


def default_name(script: str) -> str:
    """A job name made of the script's, with a suffix that makes it new."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:40].strip("-")
    return f"{stem or 'job'}-{secrets.token_hex(2)}"


def worker_range(text: str) -> dict[str, int]:
    """The sizes that `--workers` means: `3` starts with three, `2:4` keeps to two to four and starts with two."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if match is None:
        raise InvalidInput(f'workers: "{text}" is neither a number such as 3 nor a range such as 2:4')
    if match[2] is None:
        return {"replicas": int(match[1])}
    return {"minReplicas": int(match[1]), "maxReplicas": int(match[2])}


def server_role(text: str | None, **settings: Any) -> dict[str, Any]:
    """The part of a job's document for `--ps`; nothing without it."""
    if text is None:
        given = {**settings.pop("resource"), **settings}
        used = [name for name, value in given.items() if name not in ("restartCount", "buckets") and value]
        if used:
            raise InvalidInput(f"ps-{used[0]}: there are no parameter servers without --ps")
        return {}
    try:
        sizes = worker_range(text)
    except InvalidInput:
        raise InvalidInput(f'ps: "{text}" is neither a number such as 2 nor a range such as 1:4') from None
    return {"parameterServer": {**sizes, **{name: value for name, value in settings.items() if value is not None}}}


def default_sizes(workers: str | None, ps: str | None, strategy: DistributionStrategy) -> tuple[str, str | None]:
    """The sizes among which a job chooses that was given none: what a machine like this one could have at most.

    Workers and servers that mostly wait may well be more than there are cores.
    """
    cores = os.cpu_count() or 1
    if ps is None and strategy is DistributionStrategy.PARAMETER_SERVER:
        ps = f"1:{max(4, 2 * cores)}"
    return workers or f"1:{max(8, 4 * cores)}", ps


def autoscale_part(
    wanted: bool, window_s: float, brain: str | None, brain_token_file: Path | None
) -> dict[str, dict[str, Any]]:
    """The part of a job's document for `--autoscale`; nothing without it."""
    if not wanted:
        return {}
    if brain is not None and (brain_token_file is None or not brain_token_file.is_file()):
        raise InvalidInput(
            f'brain-token-file: "{brain_token_file or ""}" is no file; the Brain at {brain} wants its token'
        )
    token_file = None if brain is None or brain_token_file is None else str(brain_token_file.absolute())
    given = {"windowSeconds": window_s, "brain": brain, "brainTokenFile": token_file}
    return {"autoscale": {key: value for key, value in given.items() if value is not None}}


async def run_job(
    job: ElasticJob,
    events: Path | None,
    *,
    progress: bool,
    warm_start: bool,
    dashboard: bool = False,
    metrics_port: int | None = None,
    tensorboard: Path | None = None,
) -> int:
    """Run a job to its end, with a web page of it if there is to be one; the answer is the exit code."""
    check_free(metrics_port, "metrics-port")
    local = LocalJob(job, events, warm_start=warm_start, metrics_port=metrics_port, tensorboard=tensorboard)
    record = await local.start()
    say_metrics(record, metrics_port)
    view: View = LiveView(Console()) if progress and sys.stdout.isatty() else PlainView()
    async with beside(local.folder, view.note) if dashboard else contextlib.nullcontext():
        end, stopped_by = await show_job(local, record, view)
    return conclude(end, stopped_by)


async def show_job(local: LocalJob, record: JobRecord, view: View) -> tuple[dict[str, Any], int | None]:
    """Show a started job to its end; the answer is how it ended, and the signal that stopped it, if one did."""
    try:
        async with ControlClient(record.address, record.token) as client:
            stopped_by = await _attend(local, client, view)
        end = await local.wait()
    finally:
        await local.close()
        view.close()
    return end, stopped_by


async def _attend(local: LocalJob, client: ControlClient, view: View) -> int | None:
    """Show the job until its master has ended. The answer is the signal that stopped it, if one did."""
    stop = _StopBySignal(client, view)
    tail = LogTail(local.folder.logs, view.output)
    helpers = [asyncio.create_task(_follow(client, view)), asyncio.create_task(_show_output(tail))]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.received, number)
    try:
        await local.wait()
        # The stream ends by itself once it has brought the last events.
        await asyncio.wait(helpers[:1], timeout=2)
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    tail.read(last=True)
    return stop.number


async def _follow(client: ControlClient, view: View) -> None:
    while True:
        with contextlib.suppress(MasterUnreachable):
            async for update in client.watch(STATUS_EVERY_S):
                view.update(update)
            return
        await asyncio.sleep(STATUS_EVERY_S)  # Another master takes its place.


async def _show_output(tail: LogTail) -> None:
    while True:
        tail.read()
        await asyncio.sleep(OUTPUT_EVERY_S)


class _StopBySignal:
    """The first signal drains the job, the second kills it."""

    def __init__(self, client: ControlClient, view: View) -> None:
        self.number: int | None = None
        self._client = client
        self._view = view
        self._requests: set[asyncio.Task[None]] = set()

    def received(self, number: int) -> None:
        again = self.number is not None
        self.number = number
        self._view.note("killing the workers" if again else "draining the workers; once more kills them")
        request = asyncio.create_task(self._stop(at_once=again))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _stop(self, *, at_once: bool) -> None:
        while True:
            with contextlib.suppress(MasterUnreachable):
                await self._client.stop(at_once=at_once)
                return
            await asyncio.sleep(STATUS_EVERY_S)  # Another master takes its place, unless the job has ended.


def conclude(end: dict[str, Any], stopped_by: int | None) -> int:
    """Print how a job ended; the answer is the exit code."""
    if "status" in end:
        say(summary_line(last_status(end)))
    if end["end"] == "succeeded":
        return 0
    if end["end"] == "failed":
        for text in (end.get("error"), f"error: {end['reason']}"):
            if text:
                print(text, file=sys.stderr)
        return 1
    return 1 if stopped_by is None else 128 + stopped_by
