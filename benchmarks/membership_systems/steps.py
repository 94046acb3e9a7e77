"""Reads what the workers wrote at each step, and says what an event cost: the same for every system."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

WARM_UP = 3
STEPS_AFTER = 5
STEPS_WATCHED = 3
"""So many steps in the new size belong to the event: a newcomer may hold the others up in its first ones."""
DEFINITIONS = """\
before        median time between finished steps, on the workers that stay, before the event
after         the same in the world after it
stall         the longest time between two finished steps on a worker that stays, from the event until that worker has
              finished its first three steps in the world of the new size, minus `before`
net stall     the same, but a step that ends in the new size is compared with the slower of `before` and `after`: three
              workers on two cores take longer for a step than two
wobble        what the stall would be had nothing happened: the same over as many steps just before the event
until new     from the event until the first finished step in the world of the new size
redone        finished steps of a worker that stays whose number it had finished already (the most of any)
skipped       batches that a worker that stays computed and gave up, and step numbers it left out (the most of any)
same pids     whether the workers that stay are still the same processes"""


@dataclass(frozen=True)
class Step:
    time: float
    pid: int
    step: int
    world: int
    done: bool


@dataclass
class Worker:
    """The steps of one worker, read as they are written."""

    path: Path
    lines: list[Step] = field(default_factory=list)
    _offset: int = 0

    @property
    def finished(self) -> list[Step]:
        return [line for line in self.lines if line.done]

    def read(self) -> None:
        with self.path.open() as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith("\n"):
                    break  # It is being written.
                self._offset += len(line)
                self.lines.append(Step(**json.loads(line)))

    def last_in(self, world: int) -> int:
        """How many finished steps in a world of this size the file ends with."""
        count = 0
        for line in reversed(self.finished):
            if line.world != world:
                break
            count += 1
        return count


class Workers:
    """All workers that have written a step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[str, Worker] = {}

    def read(self) -> dict[str, Worker]:
        for path in self._folder.glob("*.jsonl"):
            self._workers.setdefault(path.stem, Worker(path))
        for worker in self._workers.values():
            worker.read()
        return self._workers


@dataclass(frozen=True)
class Cost:
    """What one event cost; see DEFINITIONS."""

    before_s: float
    after_s: float
    stall_s: float
    net_stall_s: float
    wobble_s: float
    until_new_s: float
    redone: int
    skipped: int
    same_pids: bool


def cost_of(stayed: Iterable[Worker], event: float, old: int, new: int) -> Cost:
    """The cost of an event at a time, for the workers that stayed, each of which has finished steps in both worlds."""
    workers = list(stayed)
    before_s = statistics.median(gap for worker in workers for gap in _gaps_before(worker, event, old))
    after_s = statistics.median(gap for worker in workers for gap in _gaps_after(worker, event, new))
    stalls, net_stalls, wobbles = [], [], []
    for worker in workers:
        undisturbed = list(_gaps_before(worker, event, old))
        watched = 0
        for first, second in pairwise(worker.finished):
            if second.time < event:
                continue
            gap = second.time - first.time
            stalls.append(gap - before_s)
            net_stalls.append(gap - (max(before_s, after_s) if second.world == new else before_s))
            wobbles.append(undisturbed.pop() - before_s if undisturbed else 0.0)
            watched += second.world == new
            if watched == STEPS_WATCHED:
                break
    return Cost(
        before_s=before_s,
        after_s=after_s,
        stall_s=max(stalls),
        net_stall_s=max(net_stalls),
        wobble_s=max(wobbles),
        until_new_s=min(_first_in(worker, event, new).time for worker in workers) - event,
        redone=max(_redone(worker) for worker in workers),
        skipped=max(_skipped(worker, event) for worker in workers),
        same_pids=all(len({line.pid for line in worker.lines}) == 1 for worker in workers),
    )


def has_settled(worker: Worker, event: float, new: int) -> bool:
    """Whether a worker has done enough steps in the new size to measure them."""
    return sum(line.world == new and line.time >= event for line in worker.finished) >= STEPS_AFTER


def _gaps_before(worker: Worker, event: float, old: int) -> Iterator[float]:
    lines = [line for line in worker.finished if line.time < event and line.world == old][WARM_UP:]
    return (second.time - first.time for first, second in pairwise(lines))


def _gaps_after(worker: Worker, event: float, new: int) -> Iterator[float]:
    lines = [line for line in worker.finished if line.time >= event and line.world == new]
    return (second.time - first.time for first, second in pairwise(lines))


def _first_in(worker: Worker, event: float, new: int) -> Step:
    return next(line for line in worker.finished if line.time >= event and line.world == new)


def _redone(worker: Worker) -> int:
    steps = [line.step for line in worker.finished]
    return len(steps) - len(set(steps))


def _skipped(worker: Worker, event: float) -> int:
    given_up = sum(not line.done and line.time >= event for line in worker.lines)
    jumps = sum(
        max(0, second.step - first.step - 1) for first, second in pairwise(worker.finished) if second.time >= event
    )
    return given_up + jumps
