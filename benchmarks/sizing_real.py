"""Real jobs that size themselves, beside the same jobs at fixed sizes; `python -m benchmarks.sizing --real` runs it.

The fixed sizes are within what a job without sizes may choose here: 8 workers, and 4 parameter servers.

Three jobs, each limited by something else: the time that its input takes to arrive, the cores of this machine, its
parameter servers (which wait for each row, as slow ones would). Each is run at fixed sizes one after the other, then
without any size given, then at the best of the fixed sizes again, so that whatever else the machine does meanwhile
falls on both. Speeds are counted from the events: samples that were committed in a stretch of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from benchmarks.report import Report
from elastane.client.local_place import control_of
from elastane.platform.local.registry import STATE_ENV, JobFolder
from elastane.rpc.protos import control_pb2 as pb

ROOT = Path(__file__).parents[1]
SCRIPT = str(ROOT / "examples" / "sized.py")
TIMEOUT_S = 90.0
SETTLE_S = 1.5
"""After a change, before a speed is measured."""
LOOK_EVERY_S = 0.2
WINDOW_S = 2.0
BUSY_PERCENT = 15.0
PATIENCE_S = 30.0
"""How long others' work is waited for, before each job."""

Size = tuple[int, int]
"""Workers, and parameter servers."""


@dataclass(frozen=True)
class Example:
    """A job to be sized."""

    name: str
    arguments: tuple[str, ...]
    sweep: tuple[Size, ...]
    options: tuple[str, ...] = ()
    server_us_a_row: float | None = None


EXAMPLES = (
    Example("input-bound", ("--bound=input", "--wait-ms=100"), ((1, 0), (2, 0), (4, 0), (8, 0))),
    Example("compute-bound", ("--bound=compute", "--wait-ms=0", "--busy-ms=60"), ((1, 0), (2, 0), (4, 0))),
    Example(
        "server-bound",
        ("--bound=servers", "--wait-ms=20"),
        ((2, 1), (4, 1), (4, 2), (8, 2), (8, 4)),
        ("--strategy=parameter_server",),
        20.0,
    ),
)


@dataclass(frozen=True)
class Speed:
    """Samples per second, and the cores that others than the job took of this machine meanwhile."""

    samples_per_s: float
    others_cpu: float


class RealJob:
    """A job that runs, its master, and its events."""

    def __init__(self, launcher: int, events: Path) -> None:
        self._launcher = psutil.Process(launcher)
        self._events = events
        self._folder = JobFolder.find("job")

    def events(self) -> list[dict[str, Any]]:
        lines = self._events.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def status(self) -> pb.JobStatus:
        async def ask() -> pb.JobStatus:
            async with control_of(self._folder) as client:
                return await client.status()

        return asyncio.run(ask())

    def scale(self, size: Size) -> None:
        async def ask() -> None:
            async with control_of(self._folder) as client:
                await client.scale(size[0], size[1] or None)

        asyncio.run(ask())

    def wait_for(self, size: Size) -> None:
        """Until the job works at this size."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            began = time.time()
            if _size(self.status()) == size and self._all_work(size, began):
                time.sleep(SETTLE_S)
                return
            time.sleep(LOOK_EVERY_S)
        raise TimeoutError(f"no {size}: {self.status()}")

    def _all_work(self, size: Size, since: float) -> bool:
        """Whether all workers commit samples; of those that share each step, one speaks for all."""
        time.sleep(SETTLE_S)
        found = [event for event in self.events() if event["kind"] == "samples_committed" and _at(event) > since]
        speakers = size[0] if size[1] else 1
        return len({event["node"] for event in found}) == speakers and len(found) >= 3

    def speed(self, seconds: float) -> Speed:
        """Over the time to come."""
        began, busy_s, own_s = time.time(), _busy_s(), _cpu_s(self._launcher)
        time.sleep(seconds)
        ended, busy_s, own_s = time.time(), _busy_s() - busy_s, _cpu_s(self._launcher) - own_s
        samples = sum(count for at, count in self.commits() if began <= at < ended)
        return Speed(samples / (ended - began), max(0.0, busy_s - own_s) / (ended - began))

    def commits(self) -> list[tuple[float, int]]:
        """When samples were committed, and how many."""
        found = [event for event in self.events() if event["kind"] == "samples_committed"]
        return [(_at(event), event["end"] - event["start"]) for event in found]


def _size(status: pb.JobStatus) -> Size | None:
    """The size at which the job works; None while it changes."""
    workers = sum(node.type == "worker" and node.attending and not node.leaving for node in status.node)
    if status.HasField("servers"):
        servers = [server for server in status.servers.server if server.buckets]
        return (workers, len(servers)) if status.servers.settled else None
    return (workers, 0) if status.world_size == workers else None


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _cpu_s(root: psutil.Process) -> float:
    found = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found += sum(process.cpu_times()[:2])
    return found


def wait_for_quiet() -> None:
    """Until nobody else has much to do here, but not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while psutil.cpu_percent(interval=2.0) > BUSY_PERCENT and time.monotonic() < deadline:
        pass


def _at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


@contextmanager
def running(example: Example, *options: str) -> Iterator[RealJob]:
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        os.environ[STATE_ENV] = str(Path(folder) / "state")
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{ROOT / 'benchmarks' / 'slow_servers'}"}
        if example.server_us_a_row is not None:
            env["SLOW_SERVERS_US_A_ROW"] = str(example.server_us_a_row)
        words = ["run", "--name", "job", "--events", str(events), "--grace", "1", *example.options, *options]
        launcher = subprocess.Popen(
            [sys.executable, "-m", "elastane", *words, SCRIPT, "--samples=10000000", *example.arguments],
            env=env,
            stdout=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline and not (events.exists() and "node_attended" in events.read_text()):
                time.sleep(LOOK_EVERY_S)
            yield RealJob(launcher.pid, events)
        finally:
            launcher.send_signal(signal.SIGTERM)
            time.sleep(LOOK_EVERY_S)
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(TIMEOUT_S)


def fixed(job: RealJob, size: Size, seconds: float) -> Speed:
    job.scale(size)
    job.wait_for(size)
    return job.speed(seconds)


def sweep(example: Example, sizes: tuple[Size, ...], seconds: float) -> dict[Size, Speed]:
    """The speed at each of these sizes, in one job that is scaled by hand."""
    workers, servers = example.sweep[0]  # Small, for the others are then forked from a process that is warm.
    given = (f"--workers={workers}", *((f"--ps={servers}",) if servers else ()))
    wait_for_quiet()
    with running(example, *given) as job:
        return {size: fixed(job, size, seconds) for size in sizes}


@dataclass(frozen=True)
class Sized:
    """What became of a job that sized itself."""

    speed: Speed
    size: Size
    plans: int
    longest_gap_s: float
    """The longest time without a sample, from the first to the last."""
    lines: list[str]


def sized(example: Example, seconds: float, patience_s: float) -> Sized:
    """Let a job size itself until it has not changed for a while, and measure it there."""
    wait_for_quiet()
    with running(example, "--autoscale", f"--autoscale-window={WINDOW_S:g}") as job:
        # A size is settled when the rules have looked at it twice, and left it: a change comes after three windows.
        quiet_s, began = 7 * WINDOW_S, time.monotonic()
        changed, plans = began, 0
        while time.monotonic() < min(changed + quiet_s, began + patience_s) or not job.commits():
            time.sleep(LOOK_EVERY_S)
            decided = [event["line"] for event in job.events() if event["kind"] == "sizing_decided"]
            if len(decided) != plans or not job.commits():
                plans, changed = len(decided), time.monotonic()
        speed = job.speed(seconds)
        size = _size(job.status()) or (0, 0)
        times = [at for at, _ in job.commits()]
        lines = [event["line"] for event in job.events() if event["kind"] == "sizing_decided"]
    gap_s = max(after - before for before, after in pairwise(times))
    return Sized(speed, size, len(lines), gap_s, lines)


def measure_real(report: Report, *, quick: bool) -> None:
    """Each example in turn: fixed sizes, no size given, the best fixed size again."""
    seconds = 3.0 if quick else 5.0
    for example in EXAMPLES:
        speeds = {size: [speed] for size, speed in sweep(example, example.sweep, seconds).items()}
        best = max(speeds, key=lambda size: speeds[size][0].samples_per_s)
        found = sized(example, seconds, patience_s=75.0)
        speeds[best].append(sweep(example, (best,), seconds)[best])
        for (workers, servers), measured in speeds.items():
            row = report.row(example.name, workers=workers, ps=servers)
            for speed in measured:
                row.add(samples_per_s=speed.samples_per_s, others_cpu=speed.others_cpu)
        row = report.row(example.name, workers=found.size[0], ps=found.size[1], sized="by itself")
        row.add(
            samples_per_s=found.speed.samples_per_s,
            others_cpu=found.speed.others_cpu,
            of_the_best_fixed=found.speed.samples_per_s / mean(speed.samples_per_s for speed in speeds[best]),
            plans=found.plans,
            longest_gap_s=found.longest_gap_s,
        )
        for line in found.lines:
            print(f"{example.name}: {line}")
