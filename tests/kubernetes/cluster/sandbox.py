"""Namespaces of processes, mounts and network, so that what runs in them ends with them and meets nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kubernetes.cluster.errors import ClusterError
from tests.kubernetes.waiting import eventually

# The first process of a namespace inherits its orphans: it ignores their end, so that the kernel forgets them.
_INIT = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"

# Writes its own process id, as its namespace sees it, and becomes the command.
_WRITE_PID = 'echo $$ > "$0"; exec "$@"'


class Sandbox:
    """One set of namespaces, whose process ids and logs are files of `folder`.

    It lives on when the Python that started it ends.
    """

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder = folder
        self._logs = logs

    @property
    def is_up(self) -> bool:
        """Whether it was started and lives."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """The process id of the sandbox on the machine."""
        try:
            pid = int(self._pid_file("sandbox").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        # The number may long belong to another process: the folder in the command tells.
        return pid if command.endswith(os.fsencode(self._folder) + b"\0") else None

    def start(self) -> None:
        """Make the namespaces; mounts of the machine are seen in them, theirs are not seen outside."""
        command = ["unshare", "--net", "--mount", "--propagation", "slave", "--pid", "--fork", "--mount-proc"]
        command += ["--kill-child", sys.executable, "-c", _INIT, str(self._folder)]
        self._launch("sandbox", ["sh", "-c", _WRITE_PID, str(self._pid_file("sandbox")), *command])
        pid = eventually(lambda: self.pid, 10, "the start of the sandbox")
        # The namespaces are there once /proc in them is the new one's.
        outside = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{pid}/ns/net") != outside, 10, "the sandbox's namespaces")
        eventually(lambda: self._try(["test", "!", "-e", f"/proc/{pid}/ns"]), 10, "the sandbox's /proc")

    def end(self) -> None:
        """End every process in it, at once; the kernel takes its mounts and links away."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not Path(f"/proc/{pid}").exists(), 10, "the end of the sandbox")

    def call(self, *command: str) -> None:
        """Run a command in it; raises `ClusterError` with what it said where it fails."""
        done = subprocess.run([*self._enter(), *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(command[:4])} failed: {done.stderr.strip()}")

    def start_process(self, name: str, command: Sequence[str]) -> None:
        """Start a command in it that runs on; its output goes to the log `name`."""
        self._pid_file(name).unlink(missing_ok=True)
        inside = ["sh", "-c", _WRITE_PID, str(self._pid_file(name)), *command]
        self._launch(name, [*self._enter(), *inside])
        eventually(lambda: self._pid_text(name).endswith("\n"), 10, f"the start of {name}")

    def is_running(self, name: str) -> bool:
        """Whether the process that was started as `name` lives."""
        return self._try(["kill", "-0", self._pid_text(name).strip()])

    def end_process(self, name: str, patience_s: float) -> None:
        """Ask the process `name` to end, and after `patience_s` make it."""
        pid = self._pid_text(name).strip()
        self._try(["kill", "-TERM", pid])
        try:
            eventually(lambda: not self.is_running(name), patience_s, f"the end of {name}")
        except AssertionError:
            self._try(["kill", "-KILL", pid])
            eventually(lambda: not self.is_running(name), 10, f"the end of {name}")

    def _try(self, command: Sequence[str]) -> bool:
        return subprocess.run([*self._enter(), *command], capture_output=True, check=False).returncode == 0

    def _enter(self) -> list[str]:
        pid = self.pid
        if pid is None:
            raise ClusterError("the cluster is not up")
        spaces = {"net": "net", "mount": "mnt", "pid": "pid_for_children"}
        return ["nsenter", *(f"--{option}=/proc/{pid}/ns/{file}" for option, file in spaces.items())]

    def _launch(self, name: str, command: Sequence[str]) -> None:
        """Start a command that belongs to no terminal and to no Python."""
        with (self._logs / name).open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                check=True,
            )

    def _pid_file(self, name: str) -> Path:
        return self._folder / f"{name}.pid"

    def _pid_text(self, name: str) -> str:
        try:
            return self._pid_file(name).read_text()
        except FileNotFoundError:
            return ""
