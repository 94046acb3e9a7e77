"""Jobs whose parameter servers change while somebody is killed: a server, a worker or the master, at random moments.

Each job counts on three servers, with two workers. Then the servers become four or two, or one moves to another with
more memory; and when a random number of buckets has moved, the victim is killed. With backups no acknowledged push is
lost. Without, after the death of a server, the rows are those of the last checkpoint and what came since.

    python -m tests.soak.servers --moments 10 --seed 7
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from pathlib import Path

from tests.integration.harness import Finished, Jobs, left_behind

SCRIPT = str(Path(__file__).parents[1] / "integration" / "ps_script.py")
CHANGES = {
    "3 -> 4": ("run scale JOB --ps 4", "even 4"),
    "3 -> 2": ("run scale JOB --ps 2", "even 2"),
    "more memory": ("run migrate JOB ps-1 --memory 3Gi", "even 3"),
}
VICTIMS = {
    "a server": ("kill-node=ps-0", "kill-node=ps-1", "kill-node=ps-2"),
    "a worker": ("kill-node=worker-1",),
    "the master": ("kill-master",),
}
MOVES = 16
"""So many of the 64 buckets, or more, move in each change."""


def run(folder: Path, name: str, change: str, fault: str, moved: int, *, backups: bool) -> Finished:
    """One job to its end. Raises AssertionError."""
    jobs = Jobs(folder)
    command, even = CHANGES[change]
    plan = ["even 3", "steps 30", command, f"moved {moved}", f"fault {fault}", even, "steps 100"]
    kept = "--ps-backups" if backups else f"--ps-checkpoint={folder}/checkpoints"
    done = jobs.run(
        *("--done", str(folder / "done")),
        *(word for step in plan for word in ("--then", step)),
        options=("--ps=3", "--workers=2", "--ps-buckets=64", "--ps-memory=2Gi", "--ps-save-every=1", kept),
        name=name,
        script=SCRIPT,
    )
    assert done.code == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not left_behind(folder / "state")
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10, help="of each kind of death")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    rng = random.Random(options.seed)
    for backups in (True, False):
        for victim, faults in VICTIMS.items():
            for moment in range(options.moments):
                change, fault, moved = rng.choice(list(CHANGES)), rng.choice(faults), rng.randrange(MOVES)
                begin = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="elastane-servers-") as folder:
                    done = run(Path(folder), f"job-{moment}", change, fault, moved, backups=backups)
                counted = re.findall(r"counted (\d+) lost (\d+) worst (\d+) ms", done.stdout)
                lost = max(int(found[1]) for found in counted)
                print(
                    f"{'with' if backups else 'without'} backups, {change}, {fault} after {moved} moves: "
                    f"{sum(int(found[0]) for found in counted)} pushes, {lost} lost, "
                    f"worst {max(int(found[2]) for found in counted)} ms, {time.monotonic() - begin:.1f} s",
                    flush=True,
                )
                assert len(counted) >= 2
                assert lost == 0 or not (backups or victim != "a server")


if __name__ == "__main__":
    main()
