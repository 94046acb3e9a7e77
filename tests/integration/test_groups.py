"""A group's last moments."""

from __future__ import annotations

import subprocess
import sys

# What is asked for first is done last: while it lasts, nobody else gets Python's lock, and then there is no Python.
HOLD_THE_LOCK = "import atexit; atexit.register(sum, range(20_000_000))"
RUN = "import runpy; runpy.run_module('tests.integration.half_begun_script', run_name='__main__')"


def test_a_collective_that_ends_while_python_does_harms_nobody() -> None:
    command = [sys.executable, "-c", f"{HOLD_THE_LOCK}; {RUN}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
