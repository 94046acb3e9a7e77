"""How soon a new worker of a script that uses PyTorch is at work, started plainly and started warm, in turn.

- started: from the launch command to the agent until the script's first line, and until its imports are done.
- replaced: from SIGKILL of a worker until its replacement has joined the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.detection import Job, seconds
from benchmarks.report import Report, parser

STARTS = """
import time
first_line = time.time()
import elastane.job
import torch
print(first_line, time.time())
"""
JOINS = """
import signal
import elastane
import torch

with elastane.join():
    while True:
        signal.pause()
"""
KINDS = {"plain": ["--no-warm-start"], "warm": []}
TIMEOUT_S = 60.0


class Agent:
    """An agent without a master; its nodes run one script."""

    def __init__(self, folder: Path, script: Path, options: list[str]) -> None:
        self._folder = folder
        self._script = script
        self._nodes = 0
        self._socket, its_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        its_lifeline, self._lifeline = os.pipe()
        fds = [its_socket.fileno(), its_lifeline]
        with its_socket:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "elastane.platform.local.agent", *map(str, fds), *options],
                pass_fds=fds,
                stdout=subprocess.DEVNULL,
            )
        os.close(its_lifeline)

    def start(self) -> tuple[bool, float, float]:
        """Run a node; whether its start was warm, and after how many seconds it had begun and imported."""
        log = self._folder / f"{self._nodes}.log"
        node = {"node": f"job-worker-{self._nodes}", "log": str(log), "cpu": None, "memory_bytes": None}
        env = {"PYTHONUNBUFFERED": "1", "ELASTANE_NODE": node["node"]}
        command = {"do": "launch", **node, "command": [sys.executable, str(self._script)], "env": env}
        self._nodes += 1
        moment = time.time()
        self._socket.send(json.dumps(command).encode())
        running, _ = (json.loads(self._socket.recv(1 << 20)) for _ in range(2))
        first_line, imported = map(float, log.read_text().split())
        return running["warm"], first_line - moment, imported - moment

    def close(self) -> None:
        os.close(self._lifeline)
        self._socket.close()
        self._popen.wait(TIMEOUT_S)


def measure_started(report: Report, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        script = Path(name) / "starts.py"
        script.write_text(STARTS)
        agents = {}
        for kind, options in KINDS.items():
            folder = Path(name) / kind
            folder.mkdir()
            agents[kind] = Agent(folder, script, options)
            stack.callback(agents[kind].close)
        while not agents["warm"].start()[0]:
            pass  # Its nursery is not ready yet.
        for _ in range(repeats):
            for kind, agent in agents.items():
                warm, first_line_s, imported_s = agent.start()
                assert warm == (kind == "warm")
                report.row("started", start=kind).add(first_line_ms=1000 * first_line_s, imported_ms=1000 * imported_s)


@contextlib.contextmanager
def running(folder: Path, kind: str) -> Iterator[Job]:
    folder.mkdir()
    script, events = folder / "joins.py", folder / "events.jsonl"
    script.write_text(JOINS)
    limits = ["--restarts", "1000", "--grace", "0.1"]
    words = ["run", "--name", "job", "--events", str(events), *limits, *KINDS[kind], str(script)]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "elastane", *words],
        env={**os.environ, "ELASTANE_STATE_DIR": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    job = Job(launcher, events)
    job.attended_pid("job-worker-0")
    if kind == "warm":
        log = folder / "jobs" / "job" / "logs" / "agent.log"
        while "nursery: ready" not in log.read_text():
            time.sleep(0.01)
    try:
        yield job
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(TIMEOUT_S)


def measure_replaced(report: Report, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        jobs: dict[str, Job] = {kind: stack.enter_context(running(Path(name) / kind, kind)) for kind in KINDS}
        for number in range(repeats):
            for kind, job in jobs.items():
                pid = job.attended_pid(f"job-worker-{number}")
                moment = time.time()
                os.kill(pid, signal.SIGKILL)
                joined: dict[str, Any] = job.wait_for("node_attended", f"job-worker-{number + 1}")
                report.row("replaced", start=kind).add(joined_ms=1000 * (seconds(joined) - moment))


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report()
    measure_started(report, 3 if options.quick else 20)
    measure_replaced(report, 3 if options.quick else 20)
    report.show(options.json)


if __name__ == "__main__":
    main()
