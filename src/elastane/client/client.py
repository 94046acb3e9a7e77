"""Client: jobs by a program, the same for this machine and for a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from elastane.client.documents import Submitted, job_and_document
from elastane.client.local_place import LocalPlace
from elastane.client.place import Place, Tell
from elastane.client.views import JobState, JobView
from elastane.model.errors import InvalidInput, NotInTime
from elastane.model.event import Event
from elastane.model.quantity import Memory

MOST_WORKERS = 10_000
MOST_SERVERS = 1_000

Until = JobState | Callable[[JobView], bool]
"""What is waited for: a state, or whatever a function says of the job."""


class Client:
    """This user's jobs on this machine, or with `kubernetes=True` the jobs in a namespace of a cluster.

    All methods return when what they ask for is done, and raise an ElastaneError, whose text is one line: JobNotFound
    for a job that is not known, RequestRefused for what a job's rules do not allow, InvalidInput for what cannot be
    used, MasterUnreachable and PlatformError for who does not answer. They may be called from several threads.
    """

    def __init__(self, *, kubernetes: bool = False, namespace: str | None = None) -> None:
        """The cluster is that of KUBECONFIG, and the namespace that of its context, unless one is given.

        Raises PlatformError if no cluster is configured, or what speaks to it is not installed.
        """
        self._place: Place
        if kubernetes:
            from elastane.client.cluster_place import ClusterPlace  # Only here: it takes a while to import.

            self._place = ClusterPlace(namespace)
        elif namespace is not None:
            raise InvalidInput(f'namespace: "{namespace}" is of a cluster; say kubernetes=True too')
        else:
            self._place = LocalPlace()

    @property
    def namespace(self) -> str | None:
        """Where the jobs are in the cluster; None for local jobs."""
        return self._place.namespace

    def submit(
        self, job: Submitted, *, name: str | None = None, events_file: str | os.PathLike[str] | None = None
    ) -> JobView:
        """Have a job run, and return when it is there. It goes on when this program ends.

        `job` is its document, the path of a YAML or JSON file that has it, or an ElasticJob; `name` takes the place of
        the name in it. A local job runs in this folder, with this environment; `events_file` is what `--events` is to
        `elastane run`, and only a local job has one. Raises JobExists, and InvalidJobSpec with each field at fault.
        """
        found, document = job_and_document(job, name)
        return self._place.submit(found, document, None if events_file is None else _writable(events_file))

    def list_jobs(self) -> list[JobView]:
        """All jobs, running and ended, the oldest first."""
        return self._place.all()

    def get_job(self, name: str) -> JobView:
        """A job as it is now; of a local job that has ended, as it was at its end."""
        return self._place.get(name)

    def watch_job(self, name: str, *, nodes: bool = True) -> Iterator[JobView]:
        """The job again and again, several times a second; the last one has ended.

        In a cluster the nodes are one more question each time, which `nodes=False` spares.
        """
        return self._place.watch(name, nodes=nodes)

    def wait_for_job(self, name: str, timeout_s: float | None = None, until: Until | None = None) -> JobView:
        """Wait until a job is in a state, or is what a function says, or has ended, whichever comes first.

        Without `until` that is its end, with all of its processes gone. The answer is the job as it is then: look at
        its `state`. Raises NotInTime, which is a TimeoutError too.
        """
        if isinstance(until, str):
            until = JobState(until)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = None
        for job in self._place.watch(name, nodes=callable(until)):
            if _reached(job, until):
                break
            if deadline is not None and time.monotonic() >= deadline and not job.ended:
                awaited = "ended" if until is None else until if isinstance(until, JobState) else "what was waited for"
                raise NotInTime(f'job "{name}" is {job.state}, not {awaited}, after {timeout_s:g} s')
        assert job is not None  # noqa: S101  # at least one comes
        return job

    def get_job_logs(
        self, name: str, node: str | None = None, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """What a node printed, by lines; without `node` what all did, each line with its node: `[worker-0] ...`.

        With `follow` until the job ends, or the pod. `tail` leaves out all but the last lines, of each node, that are
        there at first. `master` is a node here. Raises InvalidInput for a node that has no log.
        """
        if tail is not None and tail < 0:
            raise InvalidInput(f"tail: {tail} is not a number of lines")
        if node is None:
            return (f"[{short}] {line}" for short, line in self._place.lines(name, follow=follow, tail=tail))
        return _lines(self._place.output(name, node, follow=follow, tail=tail))

    def get_job_output(self, name: str, node: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """The same of one node as text, as it was printed, in pieces as they come: for a terminal."""
        return self._place.output(name, node, follow=follow, tail=tail)

    def get_job_events(self, name: str, follow: bool = False) -> Iterator[Event]:
        """What happened in a job, from its start on; with `follow` until it has ended.

        Of a local job these are the events of its master. Of one in a cluster they are what Kubernetes keeps of it and
        its pods, by their reason, and its conditions, as events of the kind `Condition`.
        """
        return self._place.events(name, follow=follow)

    def scale(self, name: str, workers: int | None = None, ps: int | None = None) -> None:
        """Grow or shrink a job, within its limits; returns when that is accepted, not when it is done."""
        if workers is None and ps is None:
            raise InvalidInput("scale: say workers, or ps, or both")
        for word, count, most in (("workers", workers, MOST_WORKERS), ("ps", ps, MOST_SERVERS)):
            if count is not None and not 0 <= count <= most:
                raise InvalidInput(f"{word}: {count} is not from 0 to {most}")
        self._place.scale(name, workers, ps)

    def drain(self, name: str, node: str) -> None:
        """Let one node leave: it finishes its batch, gives the rest back, and is not replaced."""
        self._place.drain(name, node)

    def migrate(
        self, name: str, node: str, *, memory: Memory | str | int | None = None, cpu: float | None = None
    ) -> None:
        """Move all that a parameter server holds to a new one with other resources, while the job trains on."""
        amount = Memory.parse(memory) if isinstance(memory, str | int) else memory
        self._place.migrate(name, node, amount, cpu)

    def save(self, name: str) -> None:
        """Have the parameter servers of a local job make a checkpoint now."""
        self._place.save(name)

    def delete(self, *names: str, at_once: bool = False, tell: Tell | None = None) -> None:
        """End jobs if they run, forget them with their records and logs, and return when they are gone.

        The nodes are drained; with `at_once` they are killed. `tell` is called with a job's name and a word on what
        becomes of it, while that happens.
        """
        self._place.delete(tuple(dict.fromkeys(names)), at_once=at_once, tell=tell or _tell_nobody)

    def close(self) -> None:
        """Let go of the connection to a cluster."""
        self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _reached(job: JobView, until: Until | None) -> bool:
    if until is None:
        return False  # The last one has ended.
    return job.state is until if isinstance(until, JobState) else until(job)


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    """Whole lines of a text that comes in pieces, without their ends."""
    begun = ""
    for piece in pieces:
        *whole, begun = (begun + piece).split("\n")
        yield from whole
    if begun:
        yield begun


def _writable(path: str | os.PathLike[str]) -> Path:
    """The file wherever the process goes; raises InvalidInput if it cannot be written."""
    found = Path(path)
    try:
        found.open("a").close()
    except OSError as error:
        raise InvalidInput(f'events_file: "{found}" cannot be written: {error.strerror}') from None
    return found.absolute()


def _tell_nobody(name: str, text: str) -> None:
    del name, text
