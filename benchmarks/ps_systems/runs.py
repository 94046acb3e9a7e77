"""One run of one system: its processes are started, watched from the first measured sample to the last, and ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.membership_systems.processes import LOOPBACK, ROOT, Family, free_port
from benchmarks.ps_systems.marks import Marks
from elastane.platform.local.registry import STATE_ENV

TIMEOUT_S = 240.0
_POLL_S = 0.01
_SCRIPTS = "benchmarks.ps_systems"
_PATH = {"PYTHONPATH": ":".join(str(ROOT / folder) for folder in ("src", ".", "examples"))}
"""The data are the example's."""


class RunFailed(Exception):
    """The run came to no end."""


@dataclass(frozen=True)
class Setting:
    """How a system is run: how many of each process, and how many tables the embeddings are in."""

    workers: int
    ps: int
    tables: int
    batches: int
    data: Path
    eager: bool = False


@dataclass(frozen=True)
class Figures:
    samples_per_s: float
    samples_per_cpu_s: float
    pull_ms: float
    push_ms: float
    auc: float


Start = Callable[[Family, Path, Setting], None]


def start_tensorflow(python: Path) -> Start:
    """A starter of TensorFlow's chief, workers and parameter servers."""

    def start(family: Family, folder: Path, setting: Setting) -> None:
        counts = {"worker": setting.workers, "ps": setting.ps, "chief": 1}
        cluster = {role: [f"{LOOPBACK}:{free_port()}" for _ in range(count)] for role, count in counts.items()}
        for role, addresses in cluster.items():
            for index in range(len(addresses)):
                command = [str(python), "-m", f"{_SCRIPTS}.train_tensorflow", *_options(folder, setting)]
                command += ["--cluster", json.dumps(cluster), "--role", role, "--index", str(index)]
                family.start(f"{role}-{index}", command, **_PATH)

    return start


def start_elastane(family: Family, folder: Path, setting: Setting) -> None:
    """The launcher, which starts the master, the parameter servers and the workers."""
    options = ("--workers", str(setting.workers), "--ps", str(setting.ps), "--restarts", "0", "--no-progress")
    script = Path(__file__).with_name("train_elastane.py")
    command = [sys.executable, "-m", "elastane", "run", *options, str(script), *_options(folder, setting)]
    family.start("launcher", command, **_PATH, **{STATE_ENV: str(folder)})


@contextmanager
def data_of(batches: int) -> Iterator[Path]:
    """A folder with the data of all runs."""
    folder = _folder()
    try:
        command = [sys.executable, "-m", f"{_SCRIPTS}.workload", str(folder), str(batches)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **_PATH}, check=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(start: Start, setting: Setting) -> Figures:
    """What one run came to. Raises RunFailed."""
    folder = _folder()
    family = Family(folder)
    marks = Marks(folder)
    try:
        start(family, folder, setting)
        _wait(family, lambda: marks.has("began"))
        before = _cpu_s(family)
        _wait(family, lambda: marks.has("ended"))
        used = _cpu_s(family) - before
        _wait(family, lambda: marks.outcome() is not None)
        outcome = marks.outcome()
        if outcome is None:
            raise RunFailed(family.last_words())
        return Figures(
            samples_per_s=outcome.samples / (outcome.ended - outcome.began),
            samples_per_cpu_s=outcome.samples / used,
            pull_ms=outcome.pull_ms,
            push_ms=outcome.push_ms,
            auc=outcome.auc,
        )
    finally:
        family.end()
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    memory = Path("/dev/shm")  # noqa: S108  # no system is to wait for a disk
    return Path(tempfile.mkdtemp(prefix="ps-", dir=memory if memory.is_dir() else None))


def _options(folder: Path, setting: Setting) -> list[str]:
    sizes = ["--batches", str(setting.batches), "--tables", str(setting.tables)]
    return ["--folder", str(folder), "--data", str(setting.data), *sizes, *(["--eager"] if setting.eager else [])]


def _wait(family: Family, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline or not family.lives():
            if condition():
                return
            raise RunFailed(family.last_words())
        time.sleep(_POLL_S)


def _cpu_s(family: Family) -> float:
    """The CPU time of all processes of the run so far; none of them may end before the last measurement."""
    family.note_children()
    total = 0.0
    for process in family.processes():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
