"""The per-user folder of local jobs: where a job's address and token are found, and what is left when it has ended.

JOBS/NAME/job.json      address, token and job document, mode 0600
JOBS/NAME/journal       what a master that comes after another must know
JOBS/NAME/end.json      how it ended, and its last status
JOBS/NAME/history.json  its speed, size and loss over its life, once it has ended
JOBS/NAME/token         the token alone, for guests of a master that was started for them, mode 0600
JOBS/NAME/lock          held by the launcher as long as it lives
JOBS/NAME/logs/         one file a node, and the master's
JOBS/NAME/versions/     weights that are being evaluated, and the best
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastane.model.errors import JobExists, JobNotFound

STATE_ENV = "ELASTANE_STATE_DIR"


@dataclass(frozen=True)
class JobRecord:
    """What is written down of a running job. The token lets its holder do anything to the job."""

    name: str
    token: str
    job: dict[str, Any]
    started_at: str
    address: str = ""
    metrics: str = ""
    """Where the master serves its metrics; empty if nobody wants them."""
    tensorboard: str = ""
    """The folder into which it writes scalars; empty if nobody wants them."""


def jobs_folder() -> Path:
    """Where this user's jobs are: ELASTANE_STATE_DIR, or the user's state folder."""
    if given := os.environ.get(STATE_ENV):
        return Path(given) / "jobs"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "elastane" / "jobs"


class JobFolder:
    """One job's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.logs = path / "logs"
        self.versions = path / "versions"
        self.journal = path / "journal"

    @classmethod
    def create(cls, name: str) -> JobFolder:
        """Make a new job's folder; raise JobExists if there is one of that name, running or ended."""
        folder = cls(jobs_folder() / name)
        folder.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            folder.path.mkdir(mode=0o700)
        except FileExistsError:
            state = "is running" if folder.launcher_lives() else "has ended; `elastane delete` removes its record"
            raise JobExists(f'job "{name}" {state}') from None
        folder.logs.mkdir(mode=0o700)
        return folder

    @classmethod
    def find(cls, name: str) -> JobFolder:
        """The folder of a known job; raise JobNotFound."""
        folder = cls(jobs_folder() / name)
        if "/" in name or name in ("", ".", "..") or not folder.path.exists():
            known = ", ".join(other.name for other in cls.all()) or "none"
            raise JobNotFound(f'job "{name}" is not known here; known: {known}')
        return folder

    @classmethod
    def all(cls) -> Iterator[JobFolder]:
        """Every known job, in the order of their start."""
        folders = [cls(path) for path in jobs_folder().glob("*") if path.is_dir()]
        yield from sorted(folders, key=lambda folder: folder.started_at)

    def hold(self) -> int:
        """Mark the job as living as long as this process keeps the answered file descriptor."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def launcher_lives(self) -> bool:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def started_at(self) -> str:
        """When it started; empty if its launcher was killed before it wrote that down."""
        try:
            return self.read().started_at
        except FileNotFoundError:
            return ""

    @property
    def metrics(self) -> str:
        """Where the metrics of a running job are served; empty if they are not."""
        return self.read().metrics if self.started_at and self.launcher_lives() else ""

    def read(self) -> JobRecord:
        return JobRecord(**json.loads((self.path / "job.json").read_text()))

    def write(self, record: JobRecord) -> None:
        self._replace("job.json", asdict(record))

    def read_end(self) -> dict[str, Any] | None:
        """How the job ended; None if it has not, or ended without a word."""
        try:
            end: dict[str, Any] = json.loads((self.path / "end.json").read_text())
        except FileNotFoundError:
            return None
        return end

    def write_end(self, end: dict[str, Any]) -> None:
        self._replace("end.json", end)

    def read_history(self) -> dict[str, Any]:
        """The job's speed, size and loss over its life; empty if it has not ended, or ended without a word."""
        try:
            history: dict[str, Any] = json.loads((self.path / "history.json").read_text())
        except FileNotFoundError:
            return {}
        return history

    def write_history(self, history: dict[str, Any]) -> None:
        self._replace("history.json", history)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _replace(self, name: str, content: dict[str, Any]) -> None:
        """Write beside and rename, so that a reader sees the old file or the new one; only this user may read it."""
        beside = self.path / f".{name}.{os.getpid()}"
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file)
        beside.rename(self.path / name)
