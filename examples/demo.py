"""The demo of `make demo`: a model is trained while a worker joins, one is drained and one is killed.

It runs `elastane run --workers 2 examples/train.py`, asks for a third worker, drains one, kills one with SIGKILL, and
then reads back from the events what each of that cost the training.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

EPOCHS = 2
ELASTANE = [sys.executable, "-m", "elastane"]
HERE = Path(__file__).parent

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """Something that was done to the job: when, and the size of the world that follows."""

    what: str
    moment: float
    size: int


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="elastane-demo-") as folder:
        os.environ["ELASTANE_STATE_DIR"] = folder
        events = Path(folder) / "events.jsonl"
        words = ["run", "--name", "demo", "--workers", "2", "--check-replicas", "--restarts", "0"]
        print(f"$ elastane {' '.join(words)} examples/train.py --epochs {EPOCHS}\n", flush=True)
        script = [str(HERE / "train.py"), "--epochs", str(EPOCHS)]
        with subprocess.Popen([*ELASTANE, *words, "--events", str(events), *script]) as job:
            changes = change_everything(Job(events, job))
            code = job.wait()
        found = read(events)
    return code or report(found, changes)


class Job:
    """The running job, as its events show it."""

    def __init__(self, events: Path, process: "subprocess.Popen[bytes]") -> None:
        self._events = events
        self._process = process

    def wait(self, for_what: Callable[[Events], bool]) -> Events:
        while not for_what(found := read(self._events)):
            if self._process.poll() is not None:
                raise SystemExit("the job ended before its time")
            time.sleep(0.02)
        return found

    def wait_for_share(self, share: float) -> Events:
        """Wait until so much of the first epochs is done."""
        return self.wait(lambda found: committed(found) > share * EPOCHS * epoch_size(found))

    def wait_for_size(self, size: int) -> None:
        self.wait(lambda found: len(worlds(found)[-1]["members"]) == size)


def change_everything(job: Job) -> list[Change]:
    """Let a worker join, drain one, kill one: each after some undisturbed steps."""
    changes = []
    for share, what, size in ((0.2, "one joins", 3), (0.45, "one is drained", 2), (0.7, "one is killed", 1)):
        found = job.wait_for_share(share)
        moment = time.time()
        if what == "one joins":
            subprocess.run([*ELASTANE, "scale", "demo", "--workers", "3"], check=True)
            moment = seconds(job.wait(lambda found: bool(of(found, "scaled", workers=3))), "scaled", workers=3)
        elif what == "one is drained":
            subprocess.run([*ELASTANE, "drain", "demo", "worker-1"], check=True)
            moment = seconds(job.wait(lambda found: bool(of(found, "node_leaving"))), "node_leaving")
        else:
            os.kill(of(found, "node_running", node="demo-worker-0")[0]["pid"], signal.SIGKILL)
        changes.append(Change(what, moment, size))
        job.wait_for_size(size)
    return changes


def read(events: Path) -> Events:
    """The events so far; a last line that is still being written is left for later."""
    if not events.exists():
        return []
    return [json.loads(line) for line in events.read_text().splitlines(keepends=True) if line.endswith("\n")]


def of(found: Events, kind: str, **fields: object) -> Events:
    return [e for e in found if e["kind"] == kind and all(e[name] == value for name, value in fields.items())]


def time_of(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def seconds(found: Events, kind: str, **fields: object) -> float:
    return time_of(of(found, kind, **fields)[-1])


def worlds(found: Events) -> Events:
    return of(found, "world_settled") or [{"members": []}]


def epoch_size(found: Events) -> int:
    return int(next((event["size"] for event in of(found, "dataset_defined")), 1))


def committed(found: Events) -> int:
    return sum(event["end"] - event["start"] for event in of(found, "samples_committed"))


def counted_once(found: Events) -> bool:
    counts = Counter(
        (event["epoch"], position)
        for event in of(found, "samples_committed")
        for position in range(event["start"], event["end"])
    )
    return counts == Counter((epoch, position) for epoch in range(EPOCHS) for position in range(epoch_size(found)))


def report(found: Events, changes: list[Change]) -> int:
    """Print what it cost; the answer is the exit code."""
    steps = sorted({time_of(event) for event in of(found, "samples_committed")})
    usual = statistics.median(after - before for before, after in pairwise(steps))
    table = Table(title="What each change cost the training", title_justify="left", box=None, pad_edge=False)
    for heading in ("change", "workers", "until the new world", "longest pause"):
        table.add_column(heading, justify="left" if heading == "change" else "right")
    for change in changes:
        settled = next(
            time_of(event)
            for event in of(found, "world_settled")
            if time_of(event) > change.moment and len(event["members"]) == change.size
        )
        near = [(a, b) for a, b in pairwise(steps) if b > change.moment and a < settled + usual]
        pause = max((after - before for before, after in near), default=usual) - usual
        until = f"{1000 * (settled - change.moment):.0f} ms"
        table.add_row(change.what, str(change.size), until, f"{1000 * pause:.0f} ms")
    Console(width=100).print("\n", table)
    once = counted_once(found)
    equal = all(len(set(event["checksums"].values())) <= 1 for event in of(found, "world_settled"))
    print(f"\n{committed(found):,} samples in {EPOCHS} epochs, {'each' if once else 'NOT each'} in exactly one step")
    print(f"replicas after each of {len(worlds(found))} world changes: {'bit-equal' if equal else 'NOT equal'}")
    return 0 if once and equal else 1


if __name__ == "__main__":
    sys.exit(main())
