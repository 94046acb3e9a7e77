"""Jobs: all jobs of this user on this machine, or one of them, each with its follower."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from elastane.dashboard.broadcast import Broadcast, View, changed, whole
from elastane.dashboard.facts import ENDED
from elastane.dashboard.follower import Follower
from elastane.dashboard.shown import duration, visible_all
from elastane.model.errors import JobNotFound
from elastane.platform.local.registry import JobFolder, jobs_folder

LOOK_EVERY_S = 0.5
MOST_JOBS = 200
"""So many of the newest jobs are shown; all that run are."""


_log = logging.getLogger("elastane.dashboard")


class Jobs:
    """Finds the jobs, and follows each. `only` is the one that is shown; all, without it."""

    def __init__(self, only: str | None = None) -> None:
        self.only = only
        self.broadcast = Broadcast(self._whole)
        self._followers: dict[str, tuple[str, Follower, asyncio.Task[None]]] = {}
        """By name: when the job was started, and who follows it."""
        self._started: dict[str, str] = {}
        self._shown: View = {"text": {}, "tables": {"jobs": {}}}

    async def run(self) -> None:
        """Look for jobs that come and go; never returns."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self.close()

    async def look(self) -> None:
        """Look once."""
        self._started = await asyncio.to_thread(self._find)
        for name in [name for name in self._followers if self._started.get(name) != self._followers[name][0]]:
            self._drop(name)
        for name, (_, _, task) in list(self._followers.items()):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _log.error("%s is followed anew after an error", name, exc_info=error)
                self._drop(name)
        for name, started_at in self._started.items():
            if name not in self._followers:
                follower = Follower(JobFolder(jobs_folder() / name))
                self._followers[name] = (started_at, follower, asyncio.create_task(follower.run()))
        view = self.view()
        change = changed(self._shown, view)
        self._shown = view
        self.broadcast.publish(change)

    def close(self) -> None:
        self.broadcast.close()
        for name in list(self._followers):
            self._drop(name)

    async def get(self, name: str) -> Follower:
        """A job's follower, once it knows something. Raises JobNotFound."""
        if self.only is not None and name != self.only:
            raise JobNotFound(f'job "{name}" is not shown here; this is the dashboard of "{self.only}"')
        if name not in self._followers:
            await self.look()
        if name not in self._followers:
            known = ", ".join(self._started) or "none"
            raise JobNotFound(f'job "{name}" is not known here; known: {known}')
        follower = self._followers[name][1]
        with contextlib.suppress(TimeoutError):  # Then it is shown as starting.
            await asyncio.wait_for(follower.ready.wait(), 2.0)
        if follower.ended:
            await follower.read_past()
        return follower

    def view(self) -> View:
        """The list of jobs, newest first, those that run before all others."""
        rows = [(name, self._followers[name][1]) for name in reversed(self._started) if name in self._followers]
        rows.sort(key=lambda one: one[1].ended)
        jobs = {name: _row(follower, self._started[name]) for name, follower in rows}
        running = sum(not follower.ended for _, follower in rows)
        text = {"running": str(running), "ended": str(len(rows) - running)}
        view: View = visible_all({"text": text, "tables": {"jobs": jobs}})
        return view

    def _whole(self) -> View:
        return whole(self._shown)

    def _find(self) -> dict[str, str]:
        if self.only is not None:
            with contextlib.suppress(JobNotFound):
                folder = JobFolder.find(self.only)
                return {folder.name: folder.started_at}
            return {}
        folders = list(JobFolder.all())
        shown = {folder.name for folder in folders[-MOST_JOBS:]}
        return {folder.name: folder.started_at for folder in folders if folder.name in shown or folder.launcher_lives()}

    def _drop(self, name: str) -> None:
        _, follower, task = self._followers.pop(name)
        task.cancel()
        follower.broadcast.close()


def _row(follower: Follower, started_at: str) -> dict[str, Any]:
    facts = follower.facts
    texts = facts.texts()
    status = facts.status
    return {
        "name": facts.name,
        "state": status.state,
        "workers": texts["workers"] if status.state in ENDED else f"{texts['workers']} of {texts['workers_wanted']}",
        "progress": texts["progress"],
        "samples": f"{sum(view.committed for view in status.dataset):,}",
        "speed": texts["samples_per_s"],
        "elapsed": duration(status.elapsed_s),
        "started": started_at[:19].replace("T", " "),
        "reason": status.reason,
    }
