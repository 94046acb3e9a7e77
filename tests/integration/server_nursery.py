"""Servers for tests, forked by one process that has imported what they need: a new one is there in milliseconds.

The process reads a line of arguments for each server from its input, and answers with the server's process id and its
address once it is ready. Every server ends with that process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self


def free_address() -> str:
    """An address of this machine at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass(frozen=True)
class ForkedServer:
    """A server in a process of its own."""

    address: str
    pid: int

    def kill(self) -> None:
        """Kill it, and wait until nobody listens at its address."""
        os.kill(self.pid, signal.SIGKILL)
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + 10
        while True:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, int(port)))
                except OSError:
                    assert time.monotonic() < deadline, f"{self.address} is still taken"
                else:
                    return


class Nursery:
    """Starts servers of one kind, and ends them all in the end."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def start(self, *arguments: str) -> ForkedServer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(arguments) + "\n")
        self._process.stdin.flush()
        pid, address = self._process.stdout.readline().split()
        return ForkedServer(address, int(pid))


def _say(pipe: int, address: str) -> None:
    os.write(pipe, address.encode())


def fork_servers(serve: Callable[[list[str], Callable[[str], None]], None]) -> None:
    """Fork a server for each line of input; it calls its second argument with its address when it is ready."""
    children = []
    for line in sys.stdin:
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no server outlives the test
            os.dup2(2, 1)  # What it logs is no answer.
            serve(line.split(), partial(_say, writable))
            os._exit(0)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            address = os.read(pipe.fileno(), 100).decode()
        children.append(child)
        print(child, address, flush=True)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
        os.waitpid(child, 0)
