"""Trains alone, is killed at a named phase of saving, starts again from what it finds, and so on.

`python -m tests.integration.saving_driver FOLDER SEED KILLS` prints a line for each start after a kill: the phase, the
newest step whose copy or file was finished by then, the step that training goes on from, and whether its state is that
of a training without kills. Each start is a fork of this process, which has PyTorch loaded and has never used it.
"""

from __future__ import annotations

import functools
import os
import pathlib
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer of a process imports it, which takes a second
from torch import nn

import elastane
from elastane.checkpoint import files, memory
from elastane.model.environment import ENV_MEMORY
from elastane.torch import snapshot

PHASES: dict[str, tuple[Any, str, bool]] = {
    "in the middle of the copy": (snapshot, "_copy_bytes", False),
    "before the checksum": (files, "describe", False),
    "before the copy is sealed": (memory, "commit", False),
    "between the copy and the write": (memory, "commit", True),
    "in the middle of the write": (files, "_write_piece", True),
    "before the rename": (pathlib.Path, "rename", False),
    "after the rename": (files, "_sync_folder", False),
    "while an old one is removed": (shutil, "rmtree", False),
}
"""Where each phase is, and whether the worker is killed before or after it."""

MOST_STEPS = 300


class Endless:
    """Sample `i` is made of its number."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


class Trap:
    """Kills this process when it comes to a phase for the `times`-th time."""

    def __init__(self, phase: str, times: int) -> None:
        owner, name, after = PHASES[phase]
        self._left = times
        wrap(owner, name, **{"after" if after else "before": self._spring})

    def _spring(self, *_: Any) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def wrap(
    owner: Any,
    name: str,
    before: Callable[..., object] = lambda *_: None,
    after: Callable[..., object] = lambda *_: None,
) -> None:
    """Have something done before or after a function, with its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **settings: Any) -> Any:
        before(*arguments)
        answer = original(*arguments, **settings)
        after(*arguments)
        return answer

    setattr(owner, name, wrapper)


def train(folder: Path | None, seen: Callable[[int, str], object]) -> None:
    """Train; `seen` gets the number of steps with a checksum over the state, at the start and after each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    every = None if folder is None else 1
    with elastane.join() as job:
        trainer = job.trainer(model, optimizer, checkpoint=folder, save_every_steps=every, keep=2)
        trainer.sync()
        seen(job.step, trainer._replica.checksum(between_rounds=True))
        for batch in job.batches(Endless(), 4):
            trainer.step(model(batch).square().mean())
            seen(job.step, trainer._replica.checksum(between_rounds=True))
            if folder is not None and job.step % 2 and trainer._saving._last is not None:
                trainer._saving._last.result()  # At every other step the copy is made beside the next one.
            if job.step == MOST_STEPS:
                return


def in_fork(work: Callable[[], None]) -> int:
    """Do something in a process of its own; the answer is how that ended."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def note(path: Path, *words: object) -> None:
    with path.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def live(folder: Path, phase: str, times: int) -> None:
    """One life of a worker: note where it starts, and what it finishes, until it is killed."""
    os.environ[ENV_MEMORY] = str(folder / "memory")
    started: list[int] = []

    def seen(step: int, checksum: str) -> None:
        if not started:
            note(folder / "starts", step, checksum)
        started.append(step)

    for owner, name in ((memory, "commit"), (files, "write")):
        wrap(owner, name, after=lambda _, manifest, *__: note(folder / "finished", manifest.steps))
    Trap(phase, times)
    train(folder / "checkpoints", seen)


def main(folder: Path, seed: int, kills: int) -> None:
    reference, finished = folder / "reference", folder / "finished"
    if code := in_fork(lambda: train(None, functools.partial(note, reference))):
        raise SystemExit(code)
    expected = dict(line.split() for line in reference.read_text().splitlines())
    draw = random.Random(seed)
    phases = [list(PHASES)[number % len(PHASES)] for number in range(kills)]
    draw.shuffle(phases)
    killed = "never"
    for phase in [*phases, phases[0]]:
        newest = max(map(int, finished.read_text().split())) if finished.exists() else 0
        code = in_fork(functools.partial(live, folder, phase, draw.randint(1, 3)))
        if code != -signal.SIGKILL:
            raise SystemExit(f"a worker to be killed {phase} ended with {code}")
        step, checksum = (folder / "starts").read_text().splitlines()[-1].split()
        print(killed, newest, step, expected[step] == checksum, sep="|")
        killed = phase


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
