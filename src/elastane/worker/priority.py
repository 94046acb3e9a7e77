"""A newcomer's share of the cores. The local platform starts it with less, for others train on the same cores."""

from __future__ import annotations

import contextlib
from pathlib import Path

from elastane.model.environment import NEWCOMER_NICE

_GROUP = Path("/proc/self/autogroup")


def take_full_share() -> None:
    """This worker works with the others from now on: it takes as much as they do."""
    with contextlib.suppress(OSError):  # A kernel without such groups has not given it less.
        if _GROUP.read_text().split()[-1] == str(NEWCOMER_NICE):
            _GROUP.write_text("0")
