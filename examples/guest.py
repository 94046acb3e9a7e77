"""A script of another framework (here: numpy alone) as a guest of a master: shards of the data, and a place in a world.

elastane master            # prints an `export` line; run it in the terminals of the guests
python examples/guest.py   # in as many terminals as you like; stop some, start others
"""

import numpy as np

from elastane.master_client import MasterClient

SAMPLES, FEATURES = 100_000, 8


def main() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(SAMPLES, FEATURES))
    targets = inputs @ np.arange(FEATURES)
    weights = np.zeros(FEATURES)

    with MasterClient.from_env() as master:
        world = master.join_world()
        print(f"{master.node}: rank {world.rank} of {world.size}")
        for shard in master.shards("train", size=SAMPLES, shard_size=1000, epochs=2, shuffle=True):
            if master.world_changed:  # Somebody came or left: here a framework would form its group anew.
                world = master.join_world()
                print(f"{master.node}: rank {world.rank} of {world.size}")
            rows = list(shard)
            error = inputs[rows] @ weights - targets[rows]
            weights -= 0.1 * inputs[rows].T @ error / len(rows)
            master.done(shard)
    print(f"{master.node}: weights {weights.round(2)}")


if __name__ == "__main__":
    main()
