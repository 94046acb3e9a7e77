"""Saving: checkpoints of the training state, made behind the steps by the worker of rank 0.

A checkpoint has two stages. A copy of the state goes to host memory during the next forward and backward (`snapshot`);
where a node agent gives shared memory, that copy outlives the worker. Then a thread writes it to disk. Workers that
start without a state go on from the newest whole one of both.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastane.checkpoint import files
from elastane.checkpoint.memory import OwnMemory, SharedSlots, Slot
from elastane.checkpoint.policy import SavePolicy
from elastane.core.lockstep import Position
from elastane.model.environment import ENV_MEMORY
from elastane.model.errors import InvalidInput
from elastane.model.ids import DatasetName
from elastane.torch.random_states import go_on_with
from elastane.torch.replica import Replica
from elastane.torch.restoring import restore
from elastane.torch.snapshot import Snapshot, Snapshots
from elastane.torch.worlds import Worlds
from elastane.worker.link import Link

PRIORITY = 5
"""The niceness of the thread that writes: behind the training, but not so far that a checkpoint takes minutes."""

_log = logging.getLogger("elastane.checkpoint")


@dataclass(frozen=True)
class _Save:
    folder: Path
    keep: int | None
    slot: Slot
    snapshot: Future[Snapshot]
    saved: Future[Path]


class Saving:
    """The checkpoints of one trainer."""

    def __init__(
        self, link: Link, worlds: Worlds, replica: Replica, snapshots: Snapshots, policy: SavePolicy | None
    ) -> None:
        self.untold: dict[DatasetName, Position] = {}
        """Where the data sets stood in the checkpoint that training goes on from, until the master is told."""
        self._link = link
        self._worlds = worlds
        self._replica = replica
        self._snapshots = snapshots
        self._policy = policy
        self._pinned = replica.device.type == "cuda"
        self._own = OwnMemory(pinned=self._pinned)
        self._shared: SharedSlots | None = None
        self._folders: list[Path] = []
        if policy is not None:
            memory = _shared_memory_for(policy.folder)
            self._folders = [*([] if memory is None else [memory]), policy.folder]
            self._shared = None if memory is None else SharedSlots(memory, pinned=self._pinned)
        self._found: files.Checkpoint | None = None
        self._steps_seen = 0
        self._owed = False
        self._last_s = time.monotonic()
        self._last: Future[Path] | None = None
        self._saved_rounds = 0
        self._number = 0
        self._queue: queue.SimpleQueue[_Save | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # --- saving, in the training thread ---

    @property
    def _saves(self) -> bool:
        """Whether this worker is the one that does: all have the same state."""
        return self._worlds.current is not None and self._worlds.current.place.rank == 0

    def after_round(self) -> None:
        """A round is finished: save if it is time to."""
        policy, steps, now = self._policy, self._replica.steps, time.monotonic()
        if policy is None:
            return
        if policy.every_steps is not None and steps // policy.every_steps > self._steps_seen // policy.every_steps:
            self._owed = True
        if policy.every_s is not None and now >= self._last_s + policy.every_s:
            self._owed = True
        self._steps_seen = steps
        if not self._saves:
            self._owed, self._last_s = False, now
        elif self._owed and not self._is_busy():
            self._owed, self._last_s = False, now
            self._last = self._begin(policy.folder, policy.keep)

    def save(self, folder: str | Path | None) -> Future[Path]:
        """Save the state as it is now; by default where the policy says. The answer comes when it is on disk."""
        if self._policy is not None and (folder is None or Path(folder) == self._policy.folder):
            self._last = self._begin(self._policy.folder, self._policy.keep)
            return self._last
        if folder is None:
            raise InvalidInput("save: give a folder here, or checkpoint= to job.trainer")
        return self._begin(Path(folder), None)

    def before_leaving(self) -> None:
        """Perhaps nobody goes on with this state: save it."""
        if self._policy is not None and self._saves and self._replica.rounds > self._saved_rounds:
            self.save(None)

    def close(self) -> None:
        """Wait until all that was begun is saved, or has failed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _is_busy(self) -> bool:
        return self._last is not None and not self._last.done()

    def _begin(self, folder: Path, keep: int | None) -> Future[Path]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elastane-saving", daemon=True)
            self._thread.start()
        slot: Slot = self._own if self._shared is None else self._shared.next()
        if keep is None or self._is_busy():
            # The other slots may still be written from. This one is used once: to pin it would not pay.
            slot = OwnMemory(pinned=False)
        saved: Future[Path] = Future()
        self._queue.put(_Save(folder, keep, slot, self._snapshots.take(memory=slot.memory), saved))
        return saved

    # --- saving, in a thread of its own ---

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PRIORITY)
        while (save := self._queue.get()) is not None:
            try:
                path = self._finish(save, save.snapshot.result())
            except Exception as error:  # noqa: BLE001  # training goes on; who waits for this checkpoint gets the error
                _log.warning("no checkpoint was made in %s: %s: %s", save.folder, type(error).__name__, error)
                save.saved.set_exception(error)
            else:
                save.saved.set_result(path)

    def _finish(self, save: _Save, snapshot: Snapshot) -> Path:
        parts = {"model": snapshot.model, "optimizer": snapshot.optimizer}
        data = {name: part.data.numpy().data for name, part in parts.items() if part is not None}
        manifest = files.describe(self._next_number(save), snapshot.rounds, snapshot.steps, data, snapshot.rest)
        save.slot.seal(manifest)
        path = files.write(save.folder, manifest, data)
        if save.keep is not None:
            self._saved_rounds = max(self._saved_rounds, snapshot.rounds)
            files.prune(save.folder, save.keep)
        return path

    def _next_number(self, save: _Save) -> int:
        """One above all that are there."""
        newest = max(files.numbers(save.folder), default=0)
        if save.keep is None:
            return newest + 1
        if not self._number:
            # An old copy in shared memory may have a higher one than those on disk.
            self._number = max((number for folder in self._folders for number in files.numbers(folder)), default=0)
        self._number = max(self._number, newest) + 1
        return self._number

    # --- restoring ---

    def offer(self) -> dict[str, Any]:
        """What this worker could go on from, to be told to the others. Raises StateLost if it cannot be read."""
        self._found = None if self._replica.rounds > 0 or not self._folders else files.newest(self._folders)
        return {"saved": None if self._found is None else [self._found.manifest.number, self._found.manifest.rounds]}

    def restore_best(self, rank: int, everyone: Sequence[Mapping[str, Any]]) -> bool:
        """If no worker has a state, go on from the newest checkpoint that one offers. Raises CheckpointMisfit.

        True if one does. Only those who offered the same have it then; the others get it from them.
        """
        best = max((one["saved"] for one in everyone if one["saved"] is not None), default=None)
        if best is None or any(one["rounds"] > 0 for one in everyone):
            return False
        if self._found is not None and everyone[rank]["saved"] == best:
            restore(self._replica, self._found)
            if rank == 0:
                # Only there: workers that draw the same numbers would drop out the same neurons.
                go_on_with(self._found.manifest.rest["random"], self._replica.device)
            self._steps_seen = self._replica.steps
            if self._found.path.parent == self._folders[-1]:
                self._saved_rounds = self._replica.rounds  # On disk: what is only in memory is still to be written.
            self.untold = dict(self._replica.positions)
        return True

    def tell_restored(self, dataset: DatasetName) -> None:
        """The master knows this data set now: tell it where it stood in the checkpoint."""
        position = self.untold.pop(dataset, None)
        if position is not None and self._saves:
            self._link.report(dataset, position, self._replica.steps, 0, restored=True)


def _shared_memory_for(folder: Path) -> Path | None:
    """Where in this job's shared memory the copies for a folder are; None without a node agent."""
    given = os.environ.get(ENV_MEMORY)
    return Path(given) / hashlib.blake2b(os.fsencode(folder.absolute()), digest_size=8).hexdigest() if given else None
