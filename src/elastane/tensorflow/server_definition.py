"""The cluster as TensorFlow's runtime in this process knows it, and how it is changed while closures run.

The runtime takes a changed definition in place: connections, variables and functions of those who stay are kept, and a
new server gets every function that is known. It would wait without end for a server that does not answer, so each is
asked before it goes into the definition.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import grpc
from tensorflow.python.eager import context

from elastane.coordinator.cluster import split_address
from elastane.model.errors import WorkerUnreachable

_CONNECT_TIMEOUT_S = 2.0
_STATUS_TIMEOUT_S = 5.0
_GET_STATUS = "/tensorflow.WorkerService/GetStatus"
_JOB = "worker"


class ServerDefinition:
    """The definition in use; one change at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers = dict(self._job(context.get_server_def()).tasks)

    @property
    def workers(self) -> dict[int, str]:
        """The addresses of the workers in the definition, by index."""
        return dict(self._workers)

    @property
    def coordinator_device(self) -> str:
        """The device of this process."""
        definition = context.get_server_def()
        return f"/job:{definition.job_name}/replica:0/task:{definition.task_index}"

    def connect(self, index: int, address: str) -> None:
        """Put the server at an address under an index, whoever had it before. Raises WorkerUnreachable."""
        with self._lock:
            ask(address)
            workers = {other: at for other, at in self._workers.items() if other == index or _listens(at)}
            self._apply({**workers, index: address}, address)
            self._workers = {**workers, index: address}

    def forget(self, index: int) -> None:
        """The next change leaves this worker out; until then nobody speaks to it."""
        with self._lock:
            self._workers.pop(index, None)

    def _apply(self, workers: dict[int, str], address: str) -> None:
        before = context.get_server_def()
        changed = type(before)()
        changed.CopyFrom(before)
        tasks = self._job(changed).tasks
        tasks.clear()
        for index, at in workers.items():
            tasks[index] = at
        for job in changed.cluster_device_filters.jobs:
            if job.name == _JOB and job.tasks:
                # Workers see the parameter servers and this process, not one another.
                same = type(next(iter(job.tasks.values())))()
                same.CopyFrom(next(iter(job.tasks.values())))
                for index in workers:
                    job.tasks[index].CopyFrom(same)
        try:
            context.context().update_server_def(changed)
        except Exception as error:  # The runtime raises whatever its servers said.
            context.context().update_server_def(before)
            raise WorkerUnreachable(f"worker {address} could not be connected: {error}") from error

    @staticmethod
    def _job(definition: Any) -> Any:
        return next(job for job in definition.cluster.job if job.name == _JOB)


def ask(address: str) -> None:
    """Make sure that a TensorFlow server of the job `worker` answers at an address. Raises WorkerUnreachable."""
    if not _listens(address):
        raise WorkerUnreachable(f"worker {address} does not answer; start its server before it is added")
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(address, options) as channel:
        try:
            status: bytes = channel.unary_unary(_GET_STATUS)(b"", timeout=_STATUS_TIMEOUT_S)
        except grpc.RpcError as error:
            raise WorkerUnreachable(
                f"what answers at {address} is no TensorFlow server ({error.code().name})"
            ) from None
    if f"/job:{_JOB}/".encode() not in status:
        raise WorkerUnreachable(f'the TensorFlow server at {address} is not of the job "{_JOB}"')


def _listens(address: str) -> bool:
    try:
        with socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
