"""The operator as a process of the tests, which they can kill and start again."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.kubernetes.host_pods import REPOSITORY
from tests.kubernetes.waiting import NotYet, eventually

_LEADS = "elastane operator leads"


class OperatorProcess:
    """`elastane operator`, outside the cluster, with the administrator's rights; each start has a log of its own."""

    def __init__(self, kubeconfig: Path, folder: Path, arguments: Sequence[str] = ()) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def log(self) -> str:
        """What it has logged since its last start."""
        return self._log_file.read_text() if self._starts else ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the operator was not started"
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start it and wait until it leads; it must not run."""
        assert self._process is None, "the operator runs already"
        self._starts += 1
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [REPOSITORY / ".venv/bin/elastane", "operator", *self._arguments],
                env={**os.environ, "KUBECONFIG": str(self._kubeconfig), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if wait:
            self.wait_until_it_leads()

    def ensure_started(self) -> None:
        """Start it unless it runs."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._process is None:
            self.start()

    def wait_until_it_leads(self, timeout_s: float = 40) -> None:
        """Wait until its log says that it leads; raises where it ends instead."""
        eventually(self._leads, timeout_s, "the operator leads")

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """Ask it to end; returns its exit code, or None if it did not run."""
        return self._end(signal.SIGTERM)

    def _leads(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the operator exited with {self._process.returncode}: {self.log[-2000:]}")
        if _LEADS not in self.log:
            raise NotYet(self.log[-2000:])
        return True

    def _end(self, number: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    @property
    def _log_file(self) -> Path:
        return self._folder / f"operator-{self._starts}.log"
