"""Starts masters alone, and the processes that come to them as guests."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.harness import ROOT, TIMEOUT_S, Finished, Jobs, read_events


class Process:
    """A process whose output is read line by line, and that is killed, with all its group, if it is left running."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._popen = subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read on to the first line that matches."""
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.lines.append(line.rstrip("\n"))
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"{pattern!r} was never printed:\n{self.output}")

    def wait(self) -> int:
        """Read to the end; the answer is the exit code."""
        assert self._popen.stdout is not None
        self.lines += self._popen.stdout.read().splitlines()
        return self._popen.wait(TIMEOUT_S)

    def terminate(self) -> int:
        self._popen.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill it and its group at once, if any of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        self._popen.wait(TIMEOUT_S)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


class LoneMaster(Process):
    """`elastane master` with these options."""

    def __init__(self, jobs: Jobs, *options: str) -> None:
        self._events_file = jobs.folder / "master-events.jsonl"
        words = ["master", "--name", "job", "--events", str(self._events_file), *options]
        super().__init__([sys.executable, "-m", "elastane", *words], jobs.env)
        exported = self.read_until(r"^export (.*)")[1]
        settings = dict(word.split("=", 1) for word in shlex.split(exported))
        self.env = {**jobs.env, **settings}
        self.address = settings["ELASTANE_MASTER"]
        self.token_file = Path(settings["ELASTANE_TOKEN_FILE"])

    def guest(self, script: Path, *arguments: str, **env: str) -> Process:
        """A process that finds this master by its environment."""
        return Process([sys.executable, str(script), *arguments], {**self.env, **env})

    def events(self, kind: str, **fields: object) -> list[dict[str, Any]]:
        return self._so_far().of(kind, **fields)

    def committed(self) -> Counter[tuple[int, int]]:
        """How often each (epoch, position) was committed."""
        return self._so_far().committed()

    def _so_far(self) -> Finished:
        return Finished(0, "", "", read_events(self._events_file))
