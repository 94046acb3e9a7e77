"""Stock TensorFlow servers for tests: one process imports TensorFlow and forks a server whenever it is asked.

Run as a program it reads lines from its input, `start JOB INDEX ADDRESS...`, and answers each with the process id of a
server that is ready; a server ends with its parent.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Self

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def free_address() -> str:
    """An address of this machine at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass(frozen=True)
class TensorFlowServer:
    """A stock server in a process of its own."""

    address: str
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, 9)


class TensorFlowServers:
    """Starts servers, and ends them all in the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.tensorflow_servers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def worker(self, address: str = "") -> TensorFlowServer:
        """A worker; it knows of nobody until a coordinator connects it."""
        address = address or free_address()
        return TensorFlowServer(address, self._start("worker", 0, [address]))

    def parameter_servers(self, count: int) -> list[TensorFlowServer]:
        addresses = [free_address() for _ in range(count)]
        return [TensorFlowServer(each, self._start("ps", index, addresses)) for index, each in enumerate(addresses)]

    def _start(self, job: str, index: int, addresses: list[str]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"start {job} {index} {' '.join(addresses)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve(job: str, index: int, addresses: list[str], ready: int) -> None:
    import ctypes
    import signal

    import tensorflow as tf

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no server outlives the test
    server = tf.distribute.Server(tf.train.ClusterSpec({job: addresses}), job_name=job, task_index=index)
    os.write(ready, b"r")
    server.join()


def _main() -> None:
    import tensorflow  # noqa: F401  # once, for all that are forked

    children = []
    for line in sys.stdin:
        _, job, index, *addresses = line.split()
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            _serve(job, int(index), addresses, writable)
            os._exit(0)
        os.close(writable)
        os.read(readable, 1)
        os.close(readable)
        children.append(child)
        print(child, flush=True)
    for child in children:
        try:
            os.kill(child, 9)
        except ProcessLookupError:
            continue
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main()
