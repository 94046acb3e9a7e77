"""Parameter servers die in the middle of moves, at random moments: no acknowledged push may be lost.

First real processes, killed; then the model of the rules, in many interleavings.

    python -m tests.soak.servers --examples 3000 --kills 40 --seed 7
"""

from __future__ import annotations

import argparse
import time

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.test_ps_moving import killed_while_moving
from tests.property.ps_machine import PSMachine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1500, help="how many interleavings of the model")
    parser.add_argument(
        "--kills", type=int, default=20, help="how many clusters to start, each of which loses a server"
    )
    parser.add_argument("--seed", type=int, default=100, help="of the first; each next one has the next seed")
    options = parser.parse_args()
    begin = time.monotonic()
    for seed in range(options.seed, options.seed + options.kills):
        killed_while_moving(seed)
        print(f"seed {seed}: every acknowledged push is there, {time.monotonic() - begin:.0f} s", flush=True)
    longer = settings(max_examples=options.examples, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(PSMachine, settings=longer)
    print(f"{options.examples} interleavings of the model end well, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
