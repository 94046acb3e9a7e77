"""The process that a local job's workers are forked from: it has imported what takes long.

The agent runs it as `python -c BOOT CONTROL_FD SCRIPT [ARGUMENT]...`, with the environment and the number of cores of
a node, because libraries look at both when they are loaded. Once it has its imports it says READY on the control
socket. Then each message is an order for one worker: JSON, with the worker's log and a channel as file descriptors.

The worker becomes the agent's child, says its process id on the channel, and waits for GO. If the channel closes
instead, the agent has started another in its place. From GO on it is what `python SCRIPT [ARGUMENT]...` would be.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path

from elastane.platform.local.forked import Script, become_node, show_as
from elastane.platform.local.prctl import die_with_parent

BOOT = (
    # The working folder is not to be imported from, as with a script.
    "import sys; sys.flags.safe_path or sys.path.pop(0); from elastane.platform.local import nursery; nursery.serve()()"
)
READY = b"ready"
GO = b"go"

_MAX_ORDER_BYTES = 128 * 1024
_IMPORTS = (
    "torch",
    "torch._dynamo",  # which the first optimizer imports
    "elastane.job",
    "elastane.worker.attendant",
    "elastane.torch.collate",
    "elastane.torch.trainer",
)
"""What workers of a script that uses PyTorch need. None of these imports opens a channel or leaves a thread."""


@dataclass(frozen=True)
class Order:
    """What a worker is to be. Without cores it may use all."""

    node: str
    cpus: list[int]


def serve() -> Callable[[], None]:
    """Import, and then fork a worker for each order. It returns in a worker only, and its answer runs the script."""
    control = socket.socket(fileno=int(sys.argv[1]))
    agent = os.getppid()
    command = sys.argv[2:]
    environment = dict(os.environ)
    began = time.monotonic()
    folder = os.path.dirname(os.path.realpath(command[0]))
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)
    gc.disable()
    _import_all()
    if problem := _unfit(folder):
        _say(f"{problem}; workers are started plainly")
        sys.exit()
    # A worker's collections then leave alone what is here now, and its pages stay shared.
    gc.freeze()
    _say(f"ready after {time.monotonic() - began:.2f} s")
    control.send(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MAX_ORDER_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        if _fork_for(agent):
            control.close()
            return _worker(command, environment, Order(**json.loads(message)), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _say(text: str) -> None:
    sys.stdout.write(f"nursery: {text}\n")
    sys.stdout.flush()


def _import_all() -> None:
    # As `elastane.join()` does before it imports gRPC.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    for name in _IMPORTS:
        # What cannot be imported is the script's to complain of.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _unfit(folder: str) -> str | None:
    """Why workers forked from this process would gain nothing, or differ from plainly started ones."""
    if "torch" not in sys.modules:
        return "PyTorch cannot be imported"
    # NumPy's OpenBLAS has threads, which it ends before a fork and starts again when it needs them.
    if probe := os.fork():
        os.waitpid(probe, 0)
    else:
        os._exit(0)
    if len(os.listdir("/proc/self/task")) > 1:
        return "an import has started threads"
    for entry in Path(folder).iterdir():
        name, dot, suffix = entry.name.partition(".")
        is_module = dot + suffix in all_suffixes() or (entry / "__init__.py").exists()
        if is_module and name in sys.modules:
            return f"{entry} has the name of a module that is in use"
    return None


def _fork_for(agent: int) -> bool:
    """Fork a process whose parent is the agent; true in that one."""
    if between := os.fork():
        os.waitpid(between, 0)
        return False
    try:
        # The one between ends at once, and the agent adopts its orphan.
        if os.fork():
            os._exit(0)
        _await_adoption(agent)
    except BaseException:  # noqa: BLE001  # whatever it was, there must not be a second nursery
        traceback.print_exc()
        os._exit(1)
    return True


def _await_adoption(agent: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        parent = os.pidfd_open(os.getppid())
        # Asked again, because the number could be the agent's by now, or anyone's.
        if os.getppid() != agent:
            select.select([parent], [], [])
        os.close(parent)
    die_with_parent()
    if os.getppid() != agent:
        os._exit(1)  # It died before the kernel was asked to tell.


def _worker(
    command: list[str], environment: dict[str, str], order: Order, log: int, channel_fd: int
) -> Callable[[], None]:
    """Make this process a worker, once the agent wants it. The answer runs the script."""
    try:
        script = Script(command)
        os.setsid()
        if order.cpus:
            os.sched_setaffinity(0, order.cpus)
        show_as(order.node, command)
        with socket.socket(fileno=channel_fd) as channel:
            channel.send(str(os.getpid()).encode())
            if channel.recv(len(GO)) != GO:
                os._exit(1)
        become_node(order.node, environment, log)
    except BaseException:  # noqa: BLE001  # as above
        traceback.print_exc()
        os._exit(1)
    return script.run
