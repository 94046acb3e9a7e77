"""The demo of `make demo`: a job that loses two workers and lets one go, and still counts every sample once.

It runs `elastane run --workers 3 examples/count.py`, kills two workers with SIGKILL and drains the third while they
work, and then reads back from the events what that cost.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

SAMPLES = 100_000
ELASTANE = [sys.executable, "-m", "elastane"]
HERE = Path(__file__).parent

Events = list[dict[str, Any]]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="elastane-demo-") as folder:
        os.environ["ELASTANE_STATE_DIR"] = folder
        events = Path(folder) / "events.jsonl"
        words = ["run", "--name", "demo", "--workers", "3", "--events", str(events)]
        script = [str(HERE / "count.py"), "--samples", str(SAMPLES), "--step-ms", "5", "--shuffle"]
        print(f"$ elastane {' '.join(words[:-2])} examples/count.py\n", flush=True)
        with subprocess.Popen([*ELASTANE, *words, *script]) as job:
            faults = make_trouble(events, job)
            code = job.wait()
        found = read(events)
    report(found, faults)
    return code or (0 if counted_once(found) else 1)


def make_trouble(events: Path, job: "subprocess.Popen[bytes]") -> dict[str, float]:
    """Kill two workers and drain a third; the answer says when, by the node's name."""
    faults = {}
    for share, name in ((0.2, "demo-worker-0"), (0.4, "demo-worker-1")):
        found = wait_until(events, job, share)
        (pid,) = [event["pid"] for event in found if event["kind"] == "node_running" and event["node"] == name]
        faults[name] = time.time()
        os.kill(pid, signal.SIGKILL)
    wait_until(events, job, 0.6)
    subprocess.run([*ELASTANE, "drain", "demo", "worker-2"], check=True)
    (leaving,) = [event for event in read(events) if event["kind"] == "node_leaving"]
    faults["demo-worker-2"] = seconds(leaving)
    return faults


def wait_until(events: Path, job: "subprocess.Popen[bytes]", share: float) -> Events:
    """Wait until so much of the data is committed."""
    while committed(found := read(events)) < share * SAMPLES:
        if job.poll() is not None:
            raise SystemExit("the job ended before its time")
        time.sleep(0.02)
    return found


def read(events: Path) -> Events:
    """The events so far; a last line that is still being written is left for later."""
    if not events.exists():
        return []
    return [json.loads(line) for line in events.read_text().splitlines(keepends=True) if line.endswith("\n")]


def seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def committed(found: Events) -> int:
    return sum(event["end"] - event["start"] for event in found if event["kind"] == "samples_committed")


def counted_once(found: Events) -> bool:
    counts = Counter(
        position
        for event in found
        if event["kind"] == "samples_committed"
        for position in range(event["start"], event["end"])
    )
    return counts == Counter(range(SAMPLES))


def report(found: Events, faults: dict[str, float]) -> None:
    print("\nWhat happened:")
    for name, moment in faults.items():
        ended = next(event for event in found if event["kind"] == "node_ended" and event["node"] == name)
        known_ms = 1000 * (seconds(ended) - moment)
        back = sum(
            event["end"] - event["start"]
            for event in found
            if event["kind"] == "shard_returned" and event["node"] == name
        )
        if ended["released"]:
            print(f"  {name} was drained: it left after {known_ms:.0f} ms and gave {back:,} samples back")
        else:
            print(f"  {name} was killed: known after {known_ms:.0f} ms, {back:,} samples went to others")
    verdict = "each exactly once" if counted_once(found) else "NOT each exactly once"
    print(f"  {committed(found):,} of {SAMPLES:,} samples are committed, {verdict}")


if __name__ == "__main__":
    sys.exit(main())
