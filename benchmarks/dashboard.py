"""The dashboard with a large job: 500 nodes, 100,000 steps of history, every join, drain and crash of a long life.

- load: from the navigation to a page with all rows and all charts drawn, in Chromium, as the page's own clock says.
- frame: the longest time between two frames of that page in ten seconds in which every node's figures change all the
  time; pages of nothing have 17 ms.
- memory: of the dashboard's process, before it knew the history and after, and after 20 more browsers looked.
- cpu: the share of one core that the dashboard takes meanwhile, without a browser, with one, and with 20 streams.

The master is a real one, in a process of its own, whose nodes exist only in memory; the history is told to the real
follower of the job as its master would have told it, at one status a second of the job's time. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import structlog
from playwright.sync_api import Page, sync_playwright

from benchmarks.report import Report, parser
from elastane.dashboard.facts import JobFacts
from elastane.dashboard.jobs import Jobs
from elastane.dashboard.serve import serve
from elastane.master.event_log import EventLog
from elastane.master.master import JobMaster
from elastane.master.stats_reporter import NodeUse
from elastane.model.job_spec import load_job
from elastane.platform.local.registry import STATE_ENV, JobFolder, JobRecord
from elastane.rpc.protos import control_pb2 as pb
from elastane.testing import MemoryPlatform

NAME = "bench"
NODES = 500
STEPS = 100_000
CHANGES = 1_000
WATCH_S = 10.0


async def serve_master() -> None:
    """Be the master of a job of 500 workers whose figures change all the time, until standard input ends."""
    with open(os.devnull, "w") as log:  # noqa: ASYNC230  # before anything runs
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=log))
        template = {"spec": {"containers": [{"command": ["train"]}]}}
        worker = {"template": template, "minReplicas": NODES, "maxReplicas": NODES, "resource": {"memory": "2Gi"}}
        job = load_job({"metadata": {"name": NAME}, "spec": {"worker": worker}})
        folder = JobFolder.create(NAME)
        held = folder.hold()
        token = secrets.token_urlsafe(32)
        master = JobMaster(job, token, MemoryPlatform(), EventLog())
        address = await master.serve()
        folder.write(JobRecord(NAME, token, job.document(), datetime.now(UTC).isoformat(), address))
        running = asyncio.create_task(master.run())
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
        print("ready", flush=True)
        stats = master.attendance.stats
        assert stats is not None
        while not over.is_set():
            for node in master.job_manager.nodes:
                use = NodeUse(cpu=random.uniform(0.5, 1.0), memory_bytes=random.randrange(2**29, 2**30))
                stats.use[node.name] = use
            await asyncio.sleep(0.25)
        running.cancel()
        await master.close(grace_s=0)
        os.close(held)


async def serve_dashboard() -> None:
    """Be the dashboard; tell it the history when standard input says so, and what that took; end when it ends."""
    jobs, over = Jobs(), asyncio.Event()
    links: list[str] = []
    serving = asyncio.create_task(serve(jobs, secrets.token_urlsafe(32), "127.0.0.1", 0, over, links.append))
    follower = await jobs.get(NAME)
    while len(follower.facts.status.node) < NODES:
        await asyncio.sleep(0.05)
    print(json.dumps({"link": links[0]}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    status = follower.facts.status
    began = time.perf_counter()
    follower.facts = JobFacts(NAME)  # What came since the dashboard began is later than the history.
    tell_history(follower.facts, status)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    over.set()
    await serving


def tell_history(facts: JobFacts, present: pb.JobStatus) -> None:
    """A status for each of the steps, and a thousand changes of the world among them."""
    status = pb.JobStatus()
    status.CopyFrom(present)
    status.world_version, status.world_size, status.loss = 1, NODES, 2.0
    start = datetime.now(UTC) - timedelta(seconds=1.001 * STEPS + 60)
    members = [f"{NAME}-worker-{number}" for number in range(NODES)]
    for step in range(STEPS):
        at = start + timedelta(seconds=1.001 * step)
        if step % (STEPS // CHANGES) == 0:
            version = 1 + step // (STEPS // CHANGES)
            tell_change(facts, version, at, members)
        status.steps, status.samples_per_s = step + 1, random.uniform(900, 1100)
        status.loss = 2.0 / (1 + step / 1000) + random.uniform(0, 0.1)
        facts.take_status(status, at.timestamp())


def tell_change(facts: JobFacts, version: int, at: datetime, members: list[str]) -> None:
    """A worker is killed in every odd change, and comes back in every even one."""
    moments = (at + timedelta(milliseconds=100 * number) for number in range(9))

    def tell(kind: str, **fields: object) -> None:
        facts.take_event({"kind": kind, "time": next(moments).isoformat(), **fields})

    gone = members[version % NODES - 1]
    if version % 2:
        tell("node_ended", node=gone, status="failed", reason="killed", released=False)
    tell("world_settled", version=version, members=[m for m in members if version % 2 == 0 or m != gone], checksums={})
    tell("world_cost", first=version, version=version, size=NODES, stall_ms=random.uniform(5, 60), step_ms=50.0)


class Process:
    """One of the roles, in a process of its own."""

    def __init__(self, role: str, state: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.dashboard", "--role", role],
            env={**os.environ, STATE_ENV: str(state)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen = psutil.Process(self.process.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def mib(self) -> float:
        return float(self.seen.memory_info().rss) / 2**20

    def cpu_s(self) -> float:
        times = self.seen.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def share(dashboard: Process, seconds: float) -> float:
    """The share of a core that the dashboard takes from now on, for so long."""
    before, began = dashboard.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return 100 * (dashboard.cpu_s() - before) / (time.monotonic() - began)


def load(page: Page, link: str) -> float:
    """Milliseconds to a page with all that it shows."""
    page.goto(link)
    drawn = f"""() => document.querySelectorAll("[data-table=nodes] tr").length >= {NODES}
        && document.querySelectorAll("[data-chart] canvas").length >= 4
        ? performance.now() : 0"""
    return float(page.wait_for_function(drawn, polling="raf").json_value())


def longest_frame(page: Page, seconds: float) -> float:
    """Milliseconds between two frames, at most, in so many seconds."""
    script = """(ms) => new Promise((done) => {
        let last = performance.now(), longest = 0; const until = last + ms;
        const frame = (now) => { longest = Math.max(longest, now - last); last = now;
            if (now < until) requestAnimationFrame(frame); else done(longest); };
        requestAnimationFrame(frame); })"""
    return float(page.evaluate(script, 1000 * seconds))


def streams(link: str, cookie: str, count: int) -> list[http.client.HTTPConnection]:
    """So many more browsers, of which only the streams are there; each reads nothing but its beginning."""
    opened = []
    for _ in range(count):
        connection = http.client.HTTPConnection(urlsplit(link).netloc, timeout=30)
        connection.request("GET", f"/jobs/{NAME}/events", headers={"Cookie": cookie})
        connection.getresponse().readline()
        opened.append(connection)
    return opened


def measure(report: Report, seconds: float, repeats: int) -> None:
    row = report.row("dashboard", nodes=NODES, steps=STEPS, changes=CHANGES)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, contextlib.ExitStack() as stack:
        master = Process("master", Path(folder))
        stack.callback(master.close)
        master.line()
        dashboard = Process("dashboard", Path(folder))
        stack.callback(dashboard.close)
        link = json.loads(dashboard.line())["link"]
        row.add(memory_before_mib=dashboard.mib())
        dashboard.go_on()
        row.add(history_s=json.loads(dashboard.line())["seconds"], memory_after_mib=dashboard.mib())
        row.add(cpu_unwatched_percent=share(dashboard, seconds))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(link)
        for _ in range(repeats):
            row.add(load_ms=load(page, f"{link.split('?')[0]}jobs/{NAME}"))
        before, began = dashboard.cpu_s(), time.monotonic()
        row.add(longest_frame_ms=longest_frame(page, seconds))
        row.add(cpu_one_browser_percent=100 * (dashboard.cpu_s() - before) / (time.monotonic() - began))
        cookie = "; ".join(f"{one['name']}={one['value']}" for one in context.cookies())
        opened = streams(link, cookie, 20)
        row.add(cpu_21_browsers_percent=share(dashboard, seconds), memory_21_browsers_mib=dashboard.mib())
        for connection in opened:
            connection.close()
        browser.close()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--role", choices=["master", "dashboard"], help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.role is not None:
        asyncio.run({"master": serve_master, "dashboard": serve_dashboard}[options.role]())
        return
    report = Report()
    measure(report, 2.0 if options.quick else WATCH_S, 2 if options.quick else 7)
    report.show(options.json)


if __name__ == "__main__":
    main()
