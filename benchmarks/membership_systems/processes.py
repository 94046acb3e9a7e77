"""The processes of one run: started together, and ended together whatever happened to them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
_END_TIMEOUT_S = 10.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Family:
    """Everything that one run started, with the children of its children."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._known: dict[int, psutil.Process] = {}

    def start(self, name: str, command: Sequence[str | Path], **env: str) -> psutil.Popen:
        """Start a process in a session of its own, so that Ctrl-C reaches only the benchmark."""
        with (self._logs / f"{name}.log").open("ab") as output:
            process = psutil.Popen(
                [str(word) for word in command],
                cwd=ROOT,
                # Gloo listens where the host's name leads, unless told otherwise.
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._known[process.pid] = process
        return process

    def note_children(self) -> None:
        """Remember the children as long as their parents can be asked."""
        for process in list(self._known.values()):
            with suppress(psutil.NoSuchProcess):
                for child in process.children(recursive=True):
                    self._known.setdefault(child.pid, child)

    def processes(self) -> list[psutil.Process]:
        """All that is known of."""
        return list(self._known.values())

    def lives(self) -> bool:
        return any(_lives(process) for process in self._known.values())

    def kill(self, parent: psutil.Process) -> None:
        """End a process and its children at once, as the loss of their machine would."""
        with suppress(psutil.NoSuchProcess):
            for process in (parent, *parent.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def end(self) -> None:
        """Kill what still lives. psutil tells a process from a later one with the same number."""
        self.note_children()
        for process in self._known.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(list(self._known.values()), timeout=_END_TIMEOUT_S)

    def last_words(self, lines: int = 8) -> str:
        """The ends of what the processes printed."""
        texts = []
        for log in sorted(self._logs.glob("**/*.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            texts.append("\n".join([f"--- {log.stem}", *tail]))
        return "\n".join(texts)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
