"""The jobs of this user on this machine: their folders, and their masters, which are asked while they live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastane.client.launcher import launch
from elastane.client.place import Tell
from elastane.client.status import job_view, last_status
from elastane.client.tail import GrowingFile, LogTail
from elastane.client.views import JobState, JobView
from elastane.client.waiting import iterate, run
from elastane.model.errors import InvalidInput, JobNotFound, MasterUnreachable, RequestRefused
from elastane.model.event import Event
from elastane.model.job_spec import ElasticJob
from elastane.model.quantity import Memory
from elastane.platform.local.registry import JobFolder
from elastane.rpc.control_client import ControlClient
from elastane.rpc.protos import control_pb2 as pb

STATUS_EVERY_S = 0.25
LOGS_EVERY_S = 0.1
END_EVERY_S = 0.05


def control_of(folder: JobFolder) -> ControlClient:
    """A client of a job's master. Raises RequestRefused if the job has ended, or has only just been started."""
    if not folder.launcher_lives():
        raise RequestRefused(f'job "{folder.name}" has ended')
    record = folder.read()
    if not record.address:
        raise RequestRefused(f'job "{folder.name}" is starting; try again')
    return ControlClient(record.address, record.token)


async def status_of(folder: JobFolder) -> pb.JobStatus:
    """The status from the master if it lives, else the last one it wrote."""
    if folder.launcher_lives() and folder.started_at and folder.read().address:
        try:
            async with control_of(folder) as control:
                return await control.status()
        except (MasterUnreachable, RequestRefused):
            pass  # It has just ended.
    end = folder.read_end()
    if end is not None:
        return last_status(end)
    state = JobState.STARTING if folder.launcher_lives() else JobState.FAILED
    return pb.JobStatus(job=folder.name, state=state)


class LocalPlace:
    """This machine."""

    namespace = None

    def submit(self, job: ElasticJob, document: Mapping[str, Any], events_file: Path | None) -> JobView:
        del document  # The job says it all.
        if not job.spec.launches_nodes:
            raise InvalidInput(
                f'spec.worker: nobody launches workers of job "{job.name}"; `elastane submit` serves it, and says where'
            )
        launch(job, events_file)
        return self.get(job.name)

    def all(self) -> list[JobView]:
        return [job_view(run(status_of(folder))) for folder in JobFolder.all()]

    def get(self, name: str) -> JobView:
        return job_view(run(status_of(JobFolder.find(name))))

    def watch(self, name: str, *, nodes: bool) -> Iterator[JobView]:
        del nodes  # They come with the rest.
        return iterate(_views(JobFolder.find(name)))

    def output(self, name: str, node: str, *, follow: bool, tail: int | None) -> Iterator[str]:
        folder = JobFolder.find(name)
        return _output(folder, self._log(folder, node, wait=follow), follow=follow, tail=tail)

    def lines(self, name: str, *, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
        return _lines(JobFolder.find(name), follow=follow, tail=tail)

    def events(self, name: str, *, follow: bool) -> Iterator[Event]:
        return _events(JobFolder.find(name), follow=follow)

    def scale(self, name: str, workers: int | None, ps: int | None) -> None:
        self._ask(name, lambda control: control.scale(workers, ps))

    def drain(self, name: str, node: str) -> None:
        self._ask(name, lambda control: control.drain(node))

    def migrate(self, name: str, node: str, memory: Memory | None, cpu: float | None) -> None:
        self._ask(name, lambda control: control.migrate(node, None if memory is None else memory.bytes, cpu))

    def save(self, name: str) -> None:
        self._ask(name, lambda control: control.save())

    def delete(self, names: Sequence[str], *, at_once: bool, tell: Tell) -> None:
        for folder in [JobFolder.find(name) for name in names]:
            if folder.launcher_lives():
                tell(folder.name, "killing" if at_once else "draining")
                with contextlib.suppress(MasterUnreachable, RequestRefused):  # It has just ended by itself.
                    self._ask(folder.name, lambda control: control.stop(at_once=at_once))
            while folder.launcher_lives():
                time.sleep(END_EVERY_S)
            folder.remove()
            tell(folder.name, "deleted")

    def close(self) -> None:
        return  # Nothing stays open between two questions.

    def _ask(self, name: str, request: Callable[[ControlClient], Coroutine[Any, Any, None]]) -> None:
        async def ask() -> None:
            async with control_of(JobFolder.find(name)) as control:
                await request(control)

        run(ask())

    def _log(self, folder: JobFolder, node: str, *, wait: bool) -> Path:
        """A node's log, by its short or its full name; raises InvalidInput, which says which there are.

        With `wait`, that of a node which the master has launched, and which has not printed yet, is waited for.
        """
        names = (node, node.removeprefix(f"{folder.name}-"))
        path = _existing(folder, names)
        while path is None and wait and self._is_to_come(folder, names):
            time.sleep(LOGS_EVERY_S)
            path = _existing(folder, names)
        path = path or _existing(folder, names)  # It may have come just now.
        if path is None:
            known = ", ".join(sorted(log.stem for log in folder.logs.glob("*.log")))
            raise InvalidInput(f'node: "{node}" has no log in job "{folder.name}"; there are {known}')
        return path

    def _is_to_come(self, folder: JobFolder, names: Sequence[str]) -> bool:
        nodes = self.get(folder.name).nodes
        living = {node.name.removeprefix(f"{folder.name}-") for node in nodes if node.status in ("initial", "pending")}
        return folder.launcher_lives() and not living.isdisjoint(names)


def _existing(folder: JobFolder, names: Sequence[str]) -> Path | None:
    """The log of one of these names; nothing outside of the folder is one."""
    paths = (folder.logs / f"{name}.log" for name in names)
    return next((path for path in paths if path.parent == folder.logs and path.exists()), None)


def _output(folder: JobFolder, log: Path, *, follow: bool, tail: int | None) -> Iterator[str]:
    with log.open(errors="replace", newline="") as file:
        text = file.read()
        if tail is not None:
            lines = re.findall(r"[^\n]*\n|[^\n]+", text)
            text = "".join(lines[len(lines) - min(tail, len(lines)) :])
        yield text
        while follow and folder.launcher_lives():
            yield file.read()
            time.sleep(LOGS_EVERY_S)
        yield file.read()


def _lines(folder: JobFolder, *, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
    found: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=tail))
    logs = LogTail(folder.logs, lambda node, line: found[node].append(line))
    while True:
        lives = follow and folder.launcher_lives()  # Asked first: what is printed until then is read.
        logs.read(last=not lives)
        for node, printed in found.items():
            yield from ((node, line) for line in printed)
        if not lives:
            return
        found = defaultdict(deque)  # Only what is there at first is cut.
        time.sleep(LOGS_EVERY_S)


def _events(folder: JobFolder, *, follow: bool) -> Iterator[Event]:
    """From the master's log, which has all of them: a master that takes another's place writes on in it."""
    log = GrowingFile(folder.logs / "master.log")
    while True:
        lives = follow and folder.launcher_lives()
        for line in log.read():
            if (event := _event_in(line)) is not None:
                yield event
        if not lives:
            return
        time.sleep(LOGS_EVERY_S)


async def _views(folder: JobFolder) -> AsyncGenerator[JobView, None]:
    """A job again and again until its launcher is gone, and then once more."""
    while folder.launcher_lives():
        yield job_view(await status_of(folder))
        with contextlib.suppress(MasterUnreachable, RequestRefused):  # Another master takes its place, or it has ended.
            async with control_of(folder) as control:
                async for update in control.watch(STATUS_EVERY_S):
                    yield job_view(update.status)
        await asyncio.sleep(END_EVERY_S)
    if not folder.path.exists():
        raise JobNotFound(f'job "{folder.name}" was deleted before its end was seen')
    yield job_view(await status_of(folder))


def _event_in(line: str) -> Event | None:
    """The event in a line of a master's log; None for a line that is none, such as one of a traceback."""
    try:
        fields = json.loads(line)
        kind, time_text = fields.pop("event"), fields.pop("timestamp")
        moment = datetime.fromisoformat(time_text)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    fields.pop("level", None)
    return Event(moment.astimezone(UTC), kind, fields)
