"""Submits a training job from a program, lets a worker join and one leave, waits for it, and prints what that cost.

python examples/client.py
"""

import json
import secrets
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import elastane
from elastane.client import JobState, JobView
from elastane.model.event import Event

TRAIN = Path(__file__).with_name("train.py")


def document() -> dict[str, Any]:
    """An ElasticJob: what the workers run, and how many of them there are."""
    command = [sys.executable, str(TRAIN), "--epochs", "1"]
    worker = {"replicas": 1, "maxReplicas": 2, "template": {"spec": {"containers": [{"command": command}]}}}
    return {"metadata": {"name": f"client-{secrets.token_hex(2)}"}, "spec": {"worker": worker}}


def main() -> int:
    client = elastane.Client()
    with tempfile.TemporaryDirectory(prefix="elastane-client-") as folder:
        events_file = Path(folder) / "events.jsonl"
        name = client.submit(document(), events_file=events_file).name
        print(f"submitted {name}")
        try:
            change_size(client, name)
            job = client.wait_for_job(name, timeout_s=120)
            print(f"{job.state} after {job.elapsed_s:.1f} s: {job.steps} steps, {job.committed:,} samples")
            for line in (*client.get_job_logs(name, tail=1), *costs(list(client.get_job_events(name)), events_file)):
                print(line)
        finally:
            client.delete(name)
    return 0 if job.state is JobState.SUCCEEDED else 1


def change_size(client: elastane.Client, name: str) -> None:
    """Let a worker join after a fifth of the data, and one leave after six tenths."""
    for share, workers in ((0.2, 2), (0.6, 1)):

        def is_there(job: JobView, share: float = share) -> bool:
            return any(data.committed > share * data.epoch_size for data in job.datasets)

        def has_size(job: JobView, workers: int = workers) -> bool:
            return job.world_size == workers

        client.wait_for_job(name, until=is_there)
        client.scale(name, workers=workers)
        job = client.wait_for_job(name, until=has_size)
        print(f"step {job.steps}: the world has {job.world_size} workers")


def costs(events: list[Event], events_file: Path) -> Iterator[str]:
    """What each change of the size cost: until the world had it, and the longest pause of the steps meanwhile."""
    lines = map(json.loads, events_file.read_text().splitlines())
    steps = sorted({seconds(line["time"]) for line in lines if line["kind"] == "samples_committed"})
    usual = statistics.median(after - before for before, after in pairwise(steps))
    for scaled in events:
        if scaled.kind != "scaled" or not scaled.fields["before"]:
            continue
        asked, size = scaled.time.timestamp(), scaled.fields["workers"]
        worlds = (event for event in events if event.kind == "world_settled" and event.time > scaled.time)
        settled = next((event.time.timestamp() for event in worlds if len(members(event)) == size), None)
        if settled is None:
            continue  # The job ended first.
        near = [after - before for before, after in pairwise(steps) if after > asked and before < settled + usual]
        yield (
            f"{scaled.fields['before']} -> {size} workers: in the world after {settled - asked:.2f} s, "
            f"and the steps paused for {1000 * max(0.0, max(near, default=usual) - usual):.0f} ms "
            f"(a step takes {1000 * usual:.0f} ms)"
        )


def members(world: Event) -> list[object]:
    found = world.fields["members"]
    return found if isinstance(found, list) else []


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    sys.exit(main())
