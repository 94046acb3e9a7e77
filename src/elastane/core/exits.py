"""Why a process ended, read from its exit code and what the platform saw."""

from __future__ import annotations

import re
import signal

from elastane.model.node import ExitReason

_SHELL_SIGNAL_BASE = 128
_ASKED_TO_LEAVE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_OUT_OF_MEMORY = re.compile(r"(\w+\.)*_?(Array)?MemoryError\b")


def exit_reason(code: int, *, out_of_memory: bool, log_tail: str) -> ExitReason:
    """Classify an exit. `code` is negative for a signal; shells and containers say 128 + signal instead.

    `out_of_memory`: the platform enforced a memory limit, or saw the kernel do so. A Python program that could not
    allocate says so itself, in the last line of its log.
    """
    if out_of_memory:
        return ExitReason.OOM
    if code == 0:
        return ExitReason.DONE
    number = -code if code < 0 else code - _SHELL_SIGNAL_BASE
    if number == signal.SIGKILL:
        return ExitReason.KILLED
    if number in _ASKED_TO_LEAVE:
        return ExitReason.PREEMPTED
    lines = log_tail.strip().splitlines()
    if lines and _OUT_OF_MEMORY.match(lines[-1]):
        return ExitReason.OOM
    return ExitReason.ERROR
