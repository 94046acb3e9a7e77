"""Faults inside the training step: `fail_at_phase(rank=1, step=7, phase="sums", how="kill")`.

A phase is a place in elastane's own code. The worker of that rank gets there by itself, and fails there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import elastane
from elastane.checkpoint import files, memory
from elastane.torch import handover, trainer, worlds
from elastane.torch.buckets import GradientBuckets
from elastane.torch.groups import Group, WorldBroken
from tests.faults import kill_master, lose_journal


@dataclass(frozen=True)
class TrainingFault:
    rank: int
    size: int
    step: int
    phase: str
    how: str

    @property
    def argument(self) -> str:
        return f"--fault={self.rank},{self.size}@{self.step}/{self.phase}:{self.how}"

    def mark(self, job: elastane.Job) -> Path:
        """A file that is there once the fault has happened."""
        name = f"{job.node.rsplit('-', 2)[0]}{self.argument}".replace("/", "-")
        return Path(os.environ["ELASTANE_STATE_DIR"]) / name

    @classmethod
    def parse(cls, text: str) -> TrainingFault:
        place, _, how = text.partition(":")
        at, _, phase = place.partition("/")
        who, _, step = at.partition("@")
        rank, _, size = who.partition(",")
        return cls(int(rank), int(size), int(step), phase, how)


PHASES: dict[str, tuple[Any, str, bool]] = {
    "step": (trainer.Trainer, "step", False),
    "begin": (trainer.Trainer, "_begin", False),
    "backward": (GradientBuckets, "_copy", False),
    "sums": (GradientBuckets, "_send", True),
    "finish": (trainer.Trainer, "_wait_for_sums", False),
    "summed": (trainer.Trainer, "_wait_for_sums", True),
    "finished": (trainer.Trainer, "_advance", False),
    "advanced": (trainer.Trainer, "_advance", True),
    "move": (worlds.Worlds, "move", False),
    "moved": (worlds.Worlds, "move", True),
    "compare": (trainer.Trainer, "_compare", False),
    "snapshot": (handover, "_payload", True),
    "follow": (handover.Follower, "_apply", False),
    "copied": (memory, "commit", True),
    "saved": (files, "write", True),
    "follow-state": (handover, "receive_units", True),
}
"""Where each phase is, and whether the fault strikes before or after it."""


def fail_at_phase(*, rank: int, size: int, phase: str, step: int = 15, how: str = "kill") -> str:
    """The argument that makes the worker of this rank, in a world of that size, fail in that phase.

    It does so `step` steps after it first came there. Rank -1 is whoever has no rank yet: a worker that joins.
    """
    return TrainingFault(rank, size, step, phase, how).argument


def add_training_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fault", action="append", default=[], type=TrainingFault.parse)


def arm(job: elastane.Job, its_trainer: trainer.Trainer, faults: list[TrainingFault]) -> None:
    """Make this worker fail where the faults say."""
    for fault in faults:
        owner, name, after = PHASES[fault.phase]
        original = getattr(owner, name)
        setattr(owner, name, _wrapped(original, _Trap(job, its_trainer, fault), after=after))


class _Trap:
    def __init__(self, job: elastane.Job, its_trainer: trainer.Trainer, fault: TrainingFault) -> None:
        self._job = job
        self._trainer = its_trainer
        self._fault = fault
        self._first_step: int | None = None
        self._mark = fault.mark(job)

    def _first(self) -> bool:
        """Whether nobody has failed so before: another worker may have the rank by now."""
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _command(self, *words: str) -> None:
        job = self._job.node.rsplit("-", 2)[0]
        subprocess.Popen([sys.executable, "-m", "elastane", *(job if word == "JOB" else word for word in words)])

    def spring(self) -> None:
        group = self._trainer._worlds.current
        rank = -1 if group is None else group.place.rank
        size = 0 if group is None else group.place.size
        if (rank, size) != (self._fault.rank, self._fault.size):
            self._first_step = None
            return
        if self._first_step is None:
            self._first_step = self._trainer.steps
        at_the_start = self._fault.phase in ("compare", "snapshot") and not self._trainer.steps
        due = self._trainer.steps >= self._first_step + self._fault.step and not at_the_start
        if not due or not self._first():
            return
        print(f"fault {self._fault.how} at {time.time()}", flush=True)
        action, _, argument = self._fault.how.partition("=")
        match action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill-master":
                kill_master()
            case "lose-journal":
                lose_journal(self._job.node.rsplit("-", 2)[0])
            case "kill-master-and-self":
                kill_master()
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill-all":
                for other in psutil.Process(os.getppid()).children():
                    if other.pid != os.getpid():
                        other.kill()
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill-job":
                os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise ValueError("planted")
            case "command":
                self._command(*argument.split())
            case "join":
                # The others wait for this worker's part of the step: so the newcomer is ready before the next.
                self._command("scale", "JOB", "--workers", argument)
                while not self._trainer._worlds.votes:
                    self._trainer._worlds.wait_for_news(0.1)
            case "break" if isinstance(group, Group):
                group.abort()
                raise WorldBroken("planted")


def _wrapped(original: Callable[..., Any], trap: _Trap, *, after: bool) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not after:
            trap.spring()
        result = original(*args, **kwargs)
        if after:
            trap.spring()
        return result

    return wrapper
