"""Follower: follows one job, however many browsers look at it.

A living job's master is watched; what happened before is read from the master's log. An ended job is read from its
folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from elastane.client.local_place import control_of
from elastane.client.status import last_status
from elastane.dashboard.broadcast import Broadcast, changed, whole
from elastane.dashboard.facts import ENDED, JobFacts, View
from elastane.dashboard.shown import log_line, visible
from elastane.model.errors import MasterUnreachable, RequestRefused
from elastane.platform.local.registry import JobFolder
from elastane.rpc.control_client import ControlClient
from elastane.rpc.protos import control_pb2 as pb

STATUS_EVERY_S = 0.25
RETRY_S = 0.25
LOG_BYTES = 128 * 1024
LOG_LINES = 300
MOST_LOG_READ = 16 * 2**20
"""How much of the end of a master's log is read for what happened before."""

_SIZING = ("sizing_decided", "sizing_settled", "sizing_realised", "sizing_paused", "sizing_resumed")


class Follower:
    """One job as its page shows it."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.facts = JobFacts(folder.name)
        self.broadcast = Broadcast(self._whole)
        self.ready = asyncio.Event()
        """Set when something is known."""
        self._shown: View | None = None
        self._told: dict[str, tuple[int, int]] = {}
        self._told_marks: list[dict[str, Any]] = []
        self._past_is_read = False

    @property
    def ended(self) -> bool:
        return self.facts.status.state in ENDED

    async def run(self) -> None:
        """Follow the job to its end. What happened in one that has ended is read when somebody looks."""
        if not self._take_end():
            await self.read_past()
        while not self._take_end():
            with contextlib.suppress(MasterUnreachable, RequestRefused, FileNotFoundError):
                await self._watch()
            if not self.folder.path.exists():
                break
            await asyncio.sleep(RETRY_S)  # It starts, or another master takes its place, or its end is written.
        self.ready.set()
        self._publish()

    async def read_past(self) -> None:
        """Read what happened before anybody looked, once."""
        if self._past_is_read:
            return
        self._past_is_read = True
        for event in await asyncio.to_thread(logged_events, self.folder.logs / "master.log"):
            self._take_event(event)
        with contextlib.suppress(ValueError, ParseError):
            self.facts.take_history(ParseDict(self.folder.read_history(), pb.HistoryView()))

    async def _watch(self) -> None:
        record = self.folder.read()
        if not record.address:
            return
        async with ControlClient(record.address, record.token) as client:
            with contextlib.suppress(RequestRefused):
                self.facts.take_sizing(await client.explain())
            self.facts.take_history(await client.history())
            async for update in client.watch(STATUS_EVERY_S):
                kinds = [self._take_event(json.loads(record.json)) for record in update.event]
                self.facts.take_status(update.status, time.time())
                self.ready.set()
                self._publish()
                if update.status.autoscaled and any(kind in _SIZING for kind in kinds):
                    with contextlib.suppress(RequestRefused):
                        self.facts.take_sizing(await client.explain())
                    self._publish()

    def _take_event(self, event: dict[str, Any]) -> str:
        with contextlib.suppress(KeyError, TypeError, ValueError):  # A log may hold anything.
            self.facts.take_event(event)
        return str(event.get("kind"))

    def _take_end(self) -> bool:
        """Take how the job ended, if it has. A job whose launcher was killed may have left no word of its end."""
        lives = self.folder.launcher_lives()
        try:
            end = self.folder.read_end()
        except json.JSONDecodeError:
            end = None
        if end is not None:
            with contextlib.suppress(KeyError, ParseError):
                self.facts.take_status(last_status(end), time.time())
                if "sizing" in end:
                    self.facts.take_sizing(ParseDict(end["sizing"], pb.SizingView()))
        elif not lives:
            self.facts.take_status(pb.JobStatus(job=self.folder.name, state="failed"), time.time())
        return self.ended

    # For browsers.

    def view(self) -> View:
        """All texts and rows, as they are now."""
        return self.facts.view()

    def _whole(self) -> View:
        # All have the same; so a newcomer must be given what the changes go on from.
        self._publish()
        if self._shown is None:
            self._shown = self.facts.view()
            self._told_marks = self.facts.chart_marks()
            self._told = self._lengths()
        series = {visible(name): _columns(one.points) for name, one in self.facts.series.items() if len(one)}
        return {**whole(self._shown), "series": series, "marks": self._told_marks}

    def _lengths(self) -> dict[str, tuple[int, int]]:
        return {name: (one.generation, len(one)) for name, one in self.facts.series.items()}

    def _publish(self) -> None:
        if not self.broadcast.watched:
            self._shown = None
            return
        if self._shown is None:
            return
        view = self.facts.view()
        change = changed(self._shown, view)
        self._shown = view
        series, points = {}, {}
        for name, one in self.facts.series.items():
            generation, length = self._told.get(name, (one.generation, 0))
            if one.generation != generation:
                series[visible(name)] = _columns(one.points)
            elif len(one) > length:
                points[visible(name)] = _columns(one.points[length:])
        self._told = self._lengths()
        marks = self.facts.chart_marks()
        if marks != self._told_marks:
            self._told_marks = change["marks"] = marks
        change |= ({"series": series} if series else {}) | ({"points": points} if points else {})
        self.broadcast.publish(change)

    def log_tail(self, node: str) -> list[str]:
        """The last lines that a node printed. Raises RequestRefused if it has no log."""
        known = {path.stem: path for path in self.folder.logs.glob("*.log")}
        path = known.get(node) or known.get(f"{self.folder.name}-{node}")
        if path is None:
            raise RequestRefused(f'node "{node}" has no log in job "{self.folder.name}"')
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            whole_file = file.tell() == 0
            lines = file.read().decode(errors="replace").split("\n")
        if not whole_file:
            lines = lines[1:]
        return [log_line(line) for line in lines[-LOG_LINES - 1 :] if line]

    # What a person asks for.

    async def scale(self, workers: int | None, servers: int | None) -> None:
        async with self._client() as client:
            await client.scale(workers, servers)

    async def drain(self, node: str) -> None:
        async with self._client() as client:
            await client.drain(node)

    async def pause_autoscaling(self, *, paused: bool) -> None:
        async with self._client() as client:
            await client.pause_autoscaling(paused=paused)

    def _client(self) -> ControlClient:
        """Raises RequestRefused if there is nobody to ask."""
        if self.ended:  # Its launcher may not have.
            raise RequestRefused(f'job "{self.folder.name}" has ended')
        return control_of(self.folder)


def logged_events(log: Path) -> list[dict[str, Any]]:
    """The events in a master's log, oldest first: the same as those of `--events`, but for how they are written."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MOST_LOG_READ))
            lines = file.read().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            entry = json.loads(line)
            events.append({**entry, "kind": entry["event"], "time": entry["timestamp"].replace("Z", "+00:00")})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # A traceback, or the rest of a line.
    return events


def _columns(points: Any) -> list[list[float]]:
    return [[round(at, 3) for at, _ in points], [float(f"{value:.6g}") for _, value in points]]
