"""Starts real jobs with the real command, and reads back what they wrote down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from elastane.platform.local.registry import STATE_ENV

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).with_name("counting_script.py"))
TIMEOUT_S = 90


@dataclass(frozen=True)
class Finished:
    """A job that has ended: its exit code, what it printed, and its events."""

    code: int
    stdout: str
    stderr: str
    events: list[dict[str, Any]]

    def of(self, kind: str, **fields: object) -> list[dict[str, Any]]:
        """The events of a kind whose fields have these values; a node may be given by its short name."""
        return [event for event in self.events if event["kind"] == kind and _matches(event, fields)]

    def committed(self) -> Counter[tuple[int, int]]:
        """How often each (epoch, position) was committed."""
        return Counter(
            (event["epoch"], position)
            for event in self.of("samples_committed")
            for position in range(event["start"], event["end"])
        )

    def fault_time(self, how: str) -> float:
        """When a worker said that it was about to fail so."""
        (line,) = [line for line in self.stdout.splitlines() if f"fault {how} at " in line]
        return float(line.rsplit(" ", 1)[1])


def event_time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


class Jobs:
    """The `elastane` command with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "ELASTANE_STATE_DIR": str(folder / "state"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "elastane", *words],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def start(self, *script_arguments: str) -> subprocess.Popen[str]:
        """Start the counting script, to be read while it runs."""
        return subprocess.Popen(
            [sys.executable, "-m", "elastane", "run", "--name", "job", SCRIPT, *script_arguments],
            env=self.env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *script_arguments: str, options: tuple[str, ...] = (), name: str = "job", script: str = SCRIPT
    ) -> Finished:
        """Run a script, by default the counting one, to its end."""
        events = self.folder / f"{name}-events.jsonl"
        done = self.command("run", "--name", name, "--events", str(events), *options, script, *script_arguments)
        return Finished(done.returncode, done.stdout, done.stderr, read_events(events))


def left_behind(state_folder: Path) -> list[psutil.Process]:
    """Processes of the jobs of a state folder that do not end by themselves, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(STATE_ENV) == str(state_folder) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return psutil.wait_procs(found, timeout=5)[1]


def read_events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def every_sample_once(samples: int, epochs: int = 1) -> Counter[tuple[int, int]]:
    return Counter((epoch, position) for epoch in range(epochs) for position in range(samples))


def _matches(event: dict[str, Any], fields: dict[str, object]) -> bool:
    return all(
        str(event[key]).endswith(f"-{value}") if key == "node" else event[key] == value for key, value in fields.items()
    )
