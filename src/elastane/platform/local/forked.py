"""What makes a process forked from the nursery the same as one that was started as `python SCRIPT [ARGUMENT]...`."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from elastane.model.environment import ENV_NODE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fopen.restype = ctypes.c_void_p


class Script:
    """The script, opened. Raises OSError if it cannot be read."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._path = os.fsencode(os.path.join(os.getcwd(), command[0]))
        self._file = _libc.fopen(self._path, b"rbe")
        if not self._file:
            raise OSError(ctypes.get_errno(), "cannot open", self._path)

    def run(self) -> None:
        """Run it as `__main__`, by the function that the interpreter itself runs scripts with.

        That one handles errors and `sys.exit`: tracebacks begin at the script, as ever.
        """
        main = vars(sys.modules["__main__"])
        for name in [name for name in main if not name.startswith("__")]:
            del main[name]
        sys.argv = list(self._command)
        sys.orig_argv = [sys.executable, *self._command]
        file = ctypes.c_void_p(self._file)
        if ctypes.pythonapi.PyRun_SimpleFileExFlags(file, self._path, 1, None):
            _end_by_the_error_shown()


def _end_by_the_error_shown() -> None:
    """Let the interpreter end as it does after an error, which for a KeyboardInterrupt is by SIGINT."""
    error, traceback, hook = sys.last_value, sys.last_traceback, sys.excepthook

    def shown_already(kind: type[BaseException], again: BaseException, longer: TracebackType | None) -> None:
        del kind, longer
        sys.last_traceback = again.__traceback__ = traceback
        sys.excepthook = hook

    sys.excepthook = shown_already
    raise error or SystemExit(1)


def become_node(node: str, environment: dict[str, str], log: int) -> None:
    """Take on a node's output and environment, and give up what siblings must not have in common."""
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    os.environ.clear()
    os.environ.update({**environment, ENV_NODE: node})
    _reseed()
    importlib.invalidate_caches()
    gc.enable()


def _reseed() -> None:
    """Seed anew what a new process seeds from the system; Python's own generator does so after any fork."""
    loaded: dict[str, Any] = dict(sys.modules)
    if torch := loaded.get("torch"):
        torch.default_generator.seed()
    if random := loaded.get("numpy.random"):
        random.seed()
    if process := loaded.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)


def show_as(node: str, command: list[str]) -> None:
    """Have the kernel show this process by its own command and node, to `ps` and to whoever looks for a node."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    # Counted as in proc(5), whose third field is the first here.
    arguments, arguments_end, variables, variables_end = (int(fields[number - 3]) for number in (48, 49, 50, 51))
    if not (arguments and variables):
        return  # The kernel does not tell.
    # The last byte not zero means that the line was written over, and ends at its first zero.
    size = arguments_end - arguments
    line = os.fsencode(" ".join([sys.executable, *command]))[: size - 2].ljust(size - 1, b"\0") + b"\1"
    ctypes.memmove(arguments, line, size)
    entry = os.fsencode(f"{ENV_NODE}=")
    block = ctypes.string_at(variables, variables_end - variables)
    at = block.rfind(entry)
    room = len(block) - at
    if at >= 0 and len(entry) + len(node) < room:
        ctypes.memmove(variables + at, (entry + node.encode()).ljust(room, b"\0"), room)
