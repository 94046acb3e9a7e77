"""Drives an agent without a master, so that a test says itself which node starts when."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

TIMEOUT_S = 60


@dataclass(frozen=True)
class Ended:
    """A node that has ended: how it was started, its exit code, and what it printed."""

    warm: bool
    code: int
    printed: str


class DrivenAgent:
    """A running agent, whose nodes all run one command."""

    def __init__(self, folder: Path, command: list[str], *options: str, cpu: float | None = None) -> None:
        self._folder = folder
        self._command = command
        self._cpu = cpu
        self.log = folder / "agent.log"
        self._socket, its_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(TIMEOUT_S)
        its_lifeline, self._lifeline = os.pipe()
        fds = (its_socket.fileno(), its_lifeline)
        with its_socket, self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "elastane.platform.local.agent", *map(str, fds), *options],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(its_lifeline)
        self.process = psutil.Process(self._popen.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._lifeline)
        self._socket.close()
        self._popen.wait(TIMEOUT_S)

    def launch(self, node: str, **env: str) -> dict[str, Any]:
        """Start a node; the answer is the agent's report that it runs."""
        command = {
            "do": "launch",
            "node": node,
            "command": self._command,
            "env": {"PYTHONUNBUFFERED": "1", "ELASTANE_NODE": node, **env},
            "log": str(self._folder / f"{node}.log"),
            "cpu": self._cpu,
            "memory_bytes": None,
        }
        self._socket.send(json.dumps(command).encode())
        return self.report()

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._socket.recv(1 << 20))
        return report

    def run(self, node: str, **env: str) -> Ended:
        """Start a node, and wait for its end."""
        log = self._folder / f"{node}.log"
        before = log.stat().st_size if log.exists() else 0
        running = self.launch(node, **env)
        ended = self.report()
        return Ended(running["warm"], ended["code"], log.read_bytes()[before:].decode())

    def run_until_warm(self, node: str) -> None:
        """Run nodes one after the other, until one has been started warm."""
        number = 0
        while not self.run(f"{node}-{number}").warm:
            number += 1
            assert number < 50, self.log.read_text()

    def nursery(self) -> psutil.Process:
        """The agent's nursery; any time after its first node has been launched."""
        (found,) = [child for child in self.process.children() if "-c" in child.cmdline()]
        return found
