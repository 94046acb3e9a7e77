"""StepMeter: what a worker's steps take, added up by the training thread and said about once a second.

It must cost a step next to nothing: reading a clock and adding floats, no lock, no message. Making the message is left
to the link's thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import psutil

EVERY_S = 1.0
"""How often figures are said. A longer step is said when it is over."""


class StepFigures(NamedTuple):
    """The steps since the last word, all together. The fields are those of the message."""

    span_s: float
    steps: int
    samples: int
    input_wait_s: float
    pull_s: float
    push_s: float
    sync_s: float
    cpu_s: float
    memory_bytes: int
    gpu_memory_bytes: int
    fixed_global_batch: bool
    longest_step_s: float
    loss: float | None


class CountedStream(Protocol):
    """Batches, with the number of samples in the one that was given last."""

    samples_in_hand: int

    def __iter__(self) -> Iterator[Any]: ...


class StepMeter:
    """Adds up; whoever waits in the training thread adds to `pull_s`, `push_s` or `sync_s` for how long."""

    def __init__(self, say: Callable[[StepFigures], object]) -> None:
        self._say = say
        self.fixed_global_batch = False
        """Whether all workers share the samples of a step."""
        self.read_loss: Callable[[], float | None] = lambda: None
        """Set by a trainer: the loss of the last batch, without waiting for it."""
        self._process: psutil.Process | None = None
        self._start(0.0)

    def _start(self, now: float) -> None:
        self.pull_s = self.push_s = self.sync_s = 0.0
        self._input_wait_s = self._longest_step_s = 0.0
        self._steps = self._samples = 0
        self._began = now
        self._cpu_began = time.process_time()

    def measured(self, stream: CountedStream) -> Iterator[Any]:
        """The same batches. From one to the next is a step."""
        clock = time.perf_counter
        source = iter(stream)
        asked = clock()
        self._start(asked)
        while True:
            began = asked
            other_waits = self.pull_s + self.push_s + self.sync_s
            try:
                batch = next(source)
            except StopIteration:
                return
            # While it waits for its batch, a stream may settle what was pushed before, or finish a round.
            other_waits -= self.pull_s + self.push_s + self.sync_s
            self._input_wait_s += clock() - asked + other_waits
            samples = stream.samples_in_hand
            yield batch
            asked = clock()
            self._steps += 1
            self._samples += samples
            self._longest_step_s = max(self._longest_step_s, asked - began)
            if asked - self._began >= EVERY_S:
                self._tell(asked)

    def _tell(self, now: float) -> None:
        if self._process is None:
            self._process = psutil.Process()
        self._say(
            StepFigures(
                now - self._began,
                self._steps,
                self._samples,
                max(0.0, self._input_wait_s),
                self.pull_s,
                self.push_s,
                self.sync_s,
                time.process_time() - self._cpu_began,
                self._process.memory_info().rss,
                _gpu_memory_bytes(),
                self.fixed_global_batch,
                self._longest_step_s,
                self.read_loss(),
            )
        )
        self._start(now)


def _gpu_memory_bytes() -> int:
    """What PyTorch has taken of this process's GPU. A script that does not use PyTorch is not made to import it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_reserved())
