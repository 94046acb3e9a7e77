"""The coordinator for PyTorch and plain Python: closures run on elastane's worker servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from elastane.coordinator import pickling
from elastane.coordinator.closure_queue import ClosureQueue
from elastane.coordinator.cluster import Cluster
from elastane.coordinator.feed import current_feed
from elastane.coordinator.python_remote import PythonClosure, PythonConnector
from elastane.coordinator.values import PerWorkerReference, RemoteValue, fetched
from elastane.model.environment import ENV_TOKEN, ENV_TOKEN_FILE
from elastane.model.errors import InvalidInput, RequestRefused


@dataclass(frozen=True)
class WorkerCluster:
    """Where the worker servers are, and the token that they and the coordinator hold."""

    workers: tuple[str, ...]
    token: str


def token_of_environment() -> str:
    """The job's token, from the variable or the file that the environment names. Raises InvalidInput."""
    if token := os.environ.get(ENV_TOKEN):
        return token
    if path := os.environ.get(ENV_TOKEN_FILE):
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise InvalidInput(f'{ENV_TOKEN_FILE}: "{path}" cannot be read: {error.strerror}') from None
    raise InvalidInput(f"neither {ENV_TOKEN} nor {ENV_TOKEN_FILE} is set; one of them must give the job's token")


class PerWorkerIterator(PerWorkerReference):
    """An iterator on each worker, for functions that are scheduled."""

    def __next__(self) -> Any:
        raise RequestRefused("the iterators are on the workers: pass this to `schedule`, and call `next` in there")


class PerWorkerDataset:
    """A data set on each worker; `iter` of it may be passed to `schedule`."""

    def __init__(self, dataset_fn: Callable[[], Iterable[Any]]) -> None:
        self._dataset_fn = dataset_fn

    def __iter__(self) -> PerWorkerIterator:
        dataset_fn = self._dataset_fn

        def make() -> Any:
            return iter(dataset_fn())

        return PerWorkerIterator(pickling.dumped((make,))[0])


class ClusterCoordinator:
    """Schedules functions on worker servers, which may be added and removed meanwhile.

    Functions and arguments travel as they are when they are scheduled. In a job the cluster may be left out: it is the
    job's workers, and those that come later are added by themselves. Raises WorkerUnreachable if a worker of the
    cluster does not answer, InvalidInput without a cluster.
    """

    def __init__(self, cluster: WorkerCluster | None = None) -> None:
        feed = current_feed()
        if cluster is None:
            if feed is None:
                raise InvalidInput("cluster: outside of `elastane coordinate` it must say where the workers are")
            cluster = WorkerCluster(feed.first, token_of_environment())
        self._queue: ClosureQueue[PythonClosure] = ClosureQueue()
        connector = PythonConnector(cluster.token)
        self._cluster = Cluster(connector, self._queue)
        remotes = [(index, at, connector.connect(index, at)) for index, at in enumerate(cluster.workers)]
        self._cluster.begin(remotes)
        if feed is not None:
            feed.attach(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def workers(self) -> dict[str, int]:
        """The addresses of the workers that run, and their indices."""
        return self._cluster.running_workers

    @property
    def stopped_workers(self) -> dict[str, int]:
        """The addresses of the workers that were removed and can be added again, and their indices."""
        return self._cluster.stopped_workers

    @property
    def repeats(self) -> int:
        """How many closures were run again that a lost worker may have done already (at least in part)."""
        return self._queue.repeats

    def schedule(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Let some worker call a function. Raises the first error of an earlier one, or InvalidInput."""
        closure = PythonClosure(fn, tuple(args), dict(kwargs or {}))
        value = closure.result()
        self._queue.put(closure)
        return value

    def join(self) -> None:
        """Wait until every scheduled function is done. Raises the first error of one; the rest are then cancelled."""
        self._queue.wait()

    def done(self) -> bool:
        """Whether every scheduled function is done. Raises the first error of one."""
        return self._queue.done()

    def fetch(self, value: Any) -> Any:
        """The same structure, with the result in the place of each RemoteValue; waits for them."""
        return fetched(value)

    def create_per_worker_dataset(self, dataset_fn: Callable[[], Iterable[Any]]) -> PerWorkerDataset:
        """A data set on each worker, on those too that are added later; `iter` of it goes to `schedule`."""
        return PerWorkerDataset(dataset_fn)

    def create_per_worker_value(self, make: Callable[[], Any]) -> PerWorkerReference:
        """A value on each worker, made there on first use (a model, a client). As an argument it is the worker's."""
        return PerWorkerReference(pickling.dumped((make,))[0])

    def add_worker(self, address: str) -> int:
        """Let the worker server at `host:port` take closures; the answer is its index.

        Raises InvalidInput, RequestRefused if it works already, WorkerUnreachable; then nothing was changed.
        """
        return self._cluster.add(address)

    def remove_worker(self, address: str) -> int:
        """Let a worker finish the closure in its hands and take no more; the answer is its index.

        Raises InvalidInput, RequestRefused if it is not there or is the last that runs; then nothing was changed.
        """
        return self._cluster.remove(address)

    def close(self) -> None:
        """Cancel what is queued, end the workers' threads and their connections."""
        self._queue.cancel()
        self._cluster.close()
