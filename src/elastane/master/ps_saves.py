"""PSSaves: checkpoints of the parameter servers, made while the training goes on.

Each server writes its own part; then one of them writes the manifest, with the position in the data beside it, and it
is a checkpoint. While the parts are written no bucket moves. The position is that of the moment before: whatever was
committed by then is in the parts.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elastane.checkpoint.manifest import Manifest, NotWhole
from elastane.master.event_log import EventLog
from elastane.master.task_manager import TaskManager
from elastane.model.errors import RequestRefused
from elastane.model.job_spec import SavesSpec
from elastane.rpc.protos import node_pb2 as pb

REST_TIMEOUT_S = 120.0
"""At the job's end, how long the servers have to come to rest before they go without a last checkpoint."""

_MANIFEST = "manifest.json"


class _Servers(Protocol):
    """What a save needs of the PSManager."""

    def tell_server(self, server: int, message: pb.MasterMessage) -> None: ...

    def save(self) -> None: ...

    def saved(self, path: str) -> None: ...

    def not_saved(self) -> None: ...


@dataclass
class _Running:
    path: Path
    servers: set[int]
    waiting: set[int]
    steps: int
    position: str
    committing: bool = False


class PSSaves:
    """When checkpoints are made, and the one that is being made."""

    def __init__(self, spec: SavesSpec | None, task_manager: TaskManager | None, events: EventLog) -> None:
        self._spec = spec
        self._tasks = task_manager
        self._events = events
        self._servers: _Servers | None = None
        self._asked = False
        self._running: _Running | None = None
        self._last_s: float | None = None
        self._last_step = 0
        self._number: int | None = None
        self._final: bool | None = None

    def bind(self, servers: _Servers) -> None:
        """Say whose servers these are."""
        self._servers = servers

    def newest(self) -> str:
        """The newest checkpoint in the folder, whose position is then the job's; empty if there is none."""
        numbers = [] if self._spec is None else _numbers(Path(self._spec.folder))
        for number in reversed(numbers):
            if self._number is not None and number >= self._number:
                continue
            path = self._path(number)
            try:
                manifest = Manifest.from_bytes((path / _MANIFEST).read_bytes())
            except (NotWhole, OSError) as error:
                self._events.emit("checkpoint_not_whole", folder=str(path), reason=str(error))
                continue
            self._number = number
            self._last_step = manifest.steps
            self._restore_position(path, manifest)
            return str(path)
        return ""

    def older(self) -> str | None:
        """The checkpoint before the one that `newest` found, which turned out to be damaged."""
        return None if self._number is None else self.newest() or None

    def _restore_position(self, path: Path, manifest: Manifest) -> None:
        position = manifest.rest.get("position")
        if self._tasks is not None and isinstance(position, dict):
            self._tasks.restore(position)
        self._events.emit("servers_restored", folder=str(path), steps=manifest.steps)

    def due(self, step: int, now: float) -> bool:
        """Whether it is time for the next one."""
        if self._spec is None or self._asked or self._running is not None:
            return False
        if self._last_s is None:
            self._last_s = now
        every_s, every_steps = self._spec.every_seconds, self._spec.every_steps
        by_time = every_s is not None and now >= self._last_s + every_s
        by_steps = every_steps is not None and step >= self._last_step + every_steps
        if by_time or by_steps:
            self._last_s, self._last_step = now, step
            return True
        return False

    def ask(self) -> None:
        """Make one as soon as `begin` is called. Raises RequestRefused if the job has no folder for them."""
        if self._spec is None:
            raise RequestRefused("this job has no folder for checkpoints; start it with --ps-checkpoint")
        self._asked = True

    def begin(self, servers: list[int], steps: int) -> None:
        """No bucket is on its way: have these servers write what they own."""
        if not self._asked or self._running is not None or self._spec is None:
            return
        self._asked = False
        folder = Path(self._spec.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = self._path(max(_all_numbers(folder), default=0) + 1)
            path.mkdir()
        except OSError as error:
            self._give_up(str(folder), str(error))
            return
        position = {} if self._tasks is None else self._tasks.position()
        self._running = _Running(path, set(servers), set(servers), steps, json.dumps(position))
        for server in servers:
            self._tell(server, pb.MasterMessage(save_part=pb.SavePart(folder=str(path))))

    def part_saved(self, server: int, message: pb.PartSaved) -> None:
        """A server has written its part, or the manifest, or could not."""
        running = self._running
        if running is None or self._spec is None or message.folder != str(running.path):
            return
        if message.error:
            self._give_up(message.folder, message.error)
        elif message.committed:
            self._running = None
            self._number = int(running.path.name)
            self._events.emit("servers_saved", folder=message.folder, steps=running.steps)
            self._end_final()
            self._bound.saved(message.folder)
        elif server in running.waiting:
            running.waiting.discard(server)
            if not running.waiting and not running.committing:
                running.committing = True
                commit = pb.CommitCheckpoint(
                    folder=message.folder, steps=running.steps, position=running.position, keep=self._spec.keep
                )
                self._tell(server, pb.MasterMessage(commit_checkpoint=commit))

    def server_gone(self, server: int) -> None:
        """Without its part there is no checkpoint."""
        if self._running is not None and server in self._running.servers:
            self._give_up(str(self._running.path), f"server {server} died")

    def final(self) -> bool:
        """Make a last one, when the workers are done; true once that is over, or there is none to make."""
        if self._spec is None:
            return True
        if self._final is None:
            self._final = False
            asyncio.get_running_loop().call_later(REST_TIMEOUT_S, self._give_up_final)
            if self._running is None:
                self._bound.save()
        return self._final

    def _give_up_final(self) -> None:
        if self._final is False and self._running is None:
            self._give_up("", f"the servers did not come to rest in {REST_TIMEOUT_S:g} s")

    def _end_final(self) -> None:
        if self._final is False:
            self._final = True

    def _give_up(self, folder: str, reason: str) -> None:
        self._events.emit("servers_not_saved", folder=folder, reason=reason)
        self._running = None
        self._asked = False
        self._end_final()
        self._bound.not_saved()

    @property
    def _bound(self) -> _Servers:
        if self._servers is None:
            raise AssertionError("nobody's servers")
        return self._servers

    def _tell(self, server: int, message: pb.MasterMessage) -> None:
        self._bound.tell_server(server, message)

    def _path(self, number: int) -> Path:
        return Path("" if self._spec is None else self._spec.folder) / f"{number:08}"


def _all_numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _numbers(folder: Path) -> list[int]:
    """The checkpoints of a folder that were finished."""
    if not folder.is_dir():
        return []
    return [number for number in _all_numbers(folder) if (folder / f"{number:08}" / _MANIFEST).exists()]
