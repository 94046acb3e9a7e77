"""A script of some other framework: it uses what it is told to of a master, and fails where it is told to.

Its steps count the shards that it was given. It does not know who launched it, or whether anybody did.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from elastane.master_client import JoinedWorld, MasterClient


def join(master: MasterClient) -> JoinedWorld:
    world = master.join_world(address=f"{master.node}:1")
    print(f"world rank={world.rank} size={world.size} peers={','.join(sorted(world.peers))}", flush=True)
    return world


def kill_once(marker: Path) -> None:
    """Die by SIGKILL, the first time that this is called in a job."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=0, help="lease so many samples")
    parser.add_argument("--members", type=int, default=0, help="go on once the world has so many members")
    parser.add_argument("--kill-at", type=int, help="die, once in a job, with this shard in hand")
    parser.add_argument("--marker", type=Path, help="the file that says that somebody has died")
    parser.add_argument("--after", type=Path, help="wait for this file with the first shard in hand")
    parser.add_argument("--raise-at", type=int)
    options = parser.parse_args()

    with MasterClient.from_env() as master:
        if options.members:
            while (world := join(master)).size < options.members:
                while not master.world_changed:
                    signal.sigtimedwait([], 0.01)  # the training step
            print(f"goes on with {world.size}", flush=True)
        if not options.samples:
            return
        for step, shard in enumerate(master.shards("train", size=options.samples, shard_size=10)):
            if step == options.kill_at:
                kill_once(options.marker)
            if step == options.raise_at:
                raise ValueError("planted")
            while options.after and not options.after.exists():
                signal.sigtimedwait([], 0.01)
            print("did", *shard, flush=True)
            assert master.done(shard)


if __name__ == "__main__":
    main()
