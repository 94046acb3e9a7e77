"""Warm starts, as the agent sees them: which scripts gain by one, and the nursery that it asks for workers.

A worker of a script that uses PyTorch spends its first second with the import. The nursery is a process that has done
it, and forks. Whatever is amiss with it, the answer is None, and the agent starts the worker plainly.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from elastane.model.environment import ENV_NODE
from elastane.platform.local.nursery import BOOT, GO, READY, Order
from elastane.platform.local.prctl import die_with_parent

ANSWER_TIMEOUT_S = 0.5
"""Less than the import that a warm start saves."""

_ROOM_FOR_A_NAME = 16
"""How much longer than the first node's a later node's name may be, and still be seen in the list of processes."""


@dataclass(frozen=True)
class Launch:
    """How a node's process is to be started. Without cores it may use all."""

    node: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: frozenset[int]

    def is_like(self, other: Launch) -> bool:
        """Whether one process can be forked for either: libraries read cores and variables when they are loaded."""
        return (self.command, self._shared_environment, len(self.cpus)) == (
            other.command,
            other._shared_environment,
            len(other.cpus),
        )

    @property
    def _shared_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name != ENV_NODE}

    @property
    def nursery_environment(self) -> dict[str, str]:
        """The node's environment; its name is the last, and long, so that a worker can write its own over it."""
        return {**self._shared_environment, ENV_NODE: "nursery".ljust(len(self.node) + _ROOM_FOR_A_NAME)}


class WarmStarts:
    """The one nursery of a job, made for launches like the first."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._nursery: _Nursery | None = None

    def prepare(self, launch: Launch) -> None:
        """Start the nursery, if this is the first launch and its script gains by one."""
        if self._wanted and imports_torch(launch.command):
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                self._nursery = _Nursery(launch)
        self._wanted = False

    def start(self, launch: Launch, log: int) -> int | None:
        """The process id of a new worker, which is a child of this process; None if there is none to be had now."""
        if self._nursery is None or not launch.is_like(self._nursery.launch):
            return None
        try:
            return self._nursery.fork(launch, log)
        except BlockingIOError:
            return None  # It has not done its imports yet.
        except OSError:
            self.end()
            return None

    def reaped(self, pid: int, code: int) -> None:
        if self._nursery is not None and self._nursery.popen.pid == pid:
            self._nursery.popen.returncode = code
            self.end()

    def end(self) -> None:
        if self._nursery is not None:
            self._nursery.end()
            self._nursery = None


class _Nursery:
    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._control, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._ready = False

        def in_child() -> None:
            die_with_parent()
            if launch.cpus:
                os.sched_setaffinity(0, launch.cpus)

        with side:
            self.popen = subprocess.Popen(  # noqa: S603  # our own module
                # Not with -P or -m: a worker inherits the interpreter's flags, which are to be those of a plain start.
                [sys.executable, "-c", BOOT, str(side.fileno()), *launch.command[1:]],
                env=launch.nursery_environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[side.fileno()],
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509  # this process has one thread
            )

    def fork(self, launch: Launch, log: int) -> int:
        """Have a worker forked. Raises BlockingIOError if the nursery is not ready, OSError if it is of no use."""
        if not self._ready:
            if self._control.recv(len(READY)) != READY:
                raise ConnectionResetError
            self._ready = True
        order = Order(launch.node, sorted(launch.cpus))
        channel, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channel:
            with side:
                socket.send_fds(self._control, [json.dumps(asdict(order)).encode()], [log, side.fileno()])
            channel.settimeout(ANSWER_TIMEOUT_S)
            answer = channel.recv(32)
            if not answer:
                raise ConnectionResetError
            # Without this word the worker ends, so that a late one and its plainly started substitute are not both.
            channel.send(GO)
        return int(answer)

    def end(self) -> None:
        self._control.close()
        if self.popen.returncode is None:
            self.popen.kill()


def imports_torch(command: tuple[str, ...]) -> bool:
    """Whether a command is a script for this interpreter that imports PyTorch, whatever else it does.

    An import that may not be reached does not count: a worker must not find PyTorch loaded where a plain start would
    not have loaded it.
    """
    if len(command) < 2 or command[0] != sys.executable or not command[1].endswith(".py"):
        return False
    try:
        tree = ast.parse(Path(command[1]).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    return any(name.split(".")[0] == "torch" or name.startswith("elastane.torch") for name in _imported(tree.body))


def _imported(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Try(body=body) | ast.With(body=body):
                yield from _imported(body)
