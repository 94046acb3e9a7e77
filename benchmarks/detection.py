"""How soon the end of a process is known: a killed worker, a stopped worker, a killed launcher.

- killed: from SIGKILL of a worker to the master's own event.
- stopped: from SIGSTOP of a worker to the event that it is lost, beside its heartbeat limit.
- launcher: from SIGKILL of `elastane run` until the last process of its job is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Report, parser

SCRIPT = """
import signal
import elastane

with elastane.join():
    while True:
        signal.pause()
"""
TIMEOUT_S = 60.0


class Job:
    """A running job of idle workers, and its events."""

    def __init__(self, launcher: subprocess.Popen[bytes], events: Path) -> None:
        self.launcher = launcher
        self._events = events

    def attended_pid(self, node: str) -> int:
        """The process of a node, once it has joined."""
        self.wait_for("node_attended", node)
        return int(self.wait_for("node_running", node)["pid"])

    def wait_for(self, kind: str, node: str) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            lines = self._events.read_text().splitlines(keepends=True) if self._events.exists() else []
            for line in lines:
                event: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
                if (event.get("kind"), event.get("node")) == (kind, node):
                    return event
            time.sleep(0.01)
        raise TimeoutError(f"{node}: no {kind}")


@contextmanager
def running(*options: str) -> Iterator[Job]:
    with tempfile.TemporaryDirectory() as folder:
        script, events = Path(folder) / "idle.py", Path(folder) / "events.jsonl"
        script.write_text(SCRIPT)
        words = ["run", "--name", "job", "--events", str(events), "--grace", "0.1", *options, str(script)]
        launcher = subprocess.Popen(
            [sys.executable, "-m", "elastane", *words],
            env={**os.environ, "ELASTANE_STATE_DIR": folder},
            stdout=subprocess.DEVNULL,
        )
        try:
            yield Job(launcher, events)
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(TIMEOUT_S)


def seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def lives(process: psutil.Process) -> bool:
    """Whether a process still runs; one that waits for its new parent to note its end does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def measure_killed(report: Report, repeats: int) -> None:
    with running("--restarts", "1000") as job:
        for number in range(repeats):
            name = f"job-worker-{number}"
            pid = job.attended_pid(name)
            moment = time.time()
            os.kill(pid, signal.SIGKILL)
            report.row("worker killed").add(known_ms=1000 * (seconds(job.wait_for("node_ended", name)) - moment))


def measure_stopped(report: Report, repeats: int, limit_s: float) -> None:
    with running("--restarts", "1000", "--heartbeat-timeout", str(limit_s)) as job:
        for number in range(repeats):
            name = f"job-worker-{number}"
            pid = job.attended_pid(name)
            moment = time.time()
            os.kill(pid, signal.SIGSTOP)
            known_s = seconds(job.wait_for("node_lost", name)) - moment
            report.row("worker stopped", heartbeat_limit_s=limit_s).add(known_s=known_s)


def measure_launcher(report: Report, repeats: int) -> None:
    for _ in range(repeats):
        with running("--workers", "3") as job:
            for number in range(3):
                job.wait_for("node_attended", f"job-worker-{number}")
            family = psutil.Process(job.launcher.pid).children(recursive=True)
            moment = time.monotonic()
            job.launcher.kill()
            while any(lives(process) for process in family):
                if time.monotonic() - moment > TIMEOUT_S:
                    raise RuntimeError(f"left behind: {family}")
                time.sleep(0.005)
            report.row("launcher killed", processes=len(family)).add(all_gone_s=time.monotonic() - moment)


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report()
    measure_killed(report, 3 if options.quick else 20)
    measure_stopped(report, 2 if options.quick else 5, limit_s=1.0)
    if not options.quick:
        measure_stopped(report, 3, limit_s=10.0)
    measure_launcher(report, 2 if options.quick else 10)
    report.show(options.json)


if __name__ == "__main__":
    main()
