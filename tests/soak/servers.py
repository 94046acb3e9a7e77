"""Parameter servers are killed in the middle of moves, at random moments: no acknowledged push may be lost.

python -m tests.soak.servers --kills 40 --seed 7
"""

from __future__ import annotations

import argparse
import time

from tests.integration.test_ps_moving import killed_while_moving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kills", type=int, default=20, help="how many clusters to start, each of which loses a server"
    )
    parser.add_argument("--seed", type=int, default=100, help="of the first; each next one has the next seed")
    options = parser.parse_args()
    begin = time.monotonic()
    for seed in range(options.seed, options.seed + options.kills):
        killed_while_moving(seed)
        print(f"seed {seed}: every acknowledged push is there, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
