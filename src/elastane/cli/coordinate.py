"""`elastane coordinate`: a node of a job with a coordinator. Every node runs closures; the chief runs the script too.

The chief (the worker of slot 0) has the script in its own process, and the coordinator that the script makes follows
the job: workers that the job launches are added, those that it lets go are removed. With TensorFlow the chief also has
the parameter servers beside it, for they are as long-lived as the coordinator: the variables go with either.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from functools import cached_property

from elastane.coordinator.feed import WorkerFeed, use_feed
from elastane.coordinator.server_maps import MapWriter, use_server_maps
from elastane.model.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN
from elastane.model.errors import InvalidInput, PlatformError
from elastane.worker.attendant import Attendant
from elastane.worker.door import Door

_log = logging.getLogger("elastane.coordinator")
_END_S = 5.0


@dataclass(frozen=True)
class Settings:
    """What a node of such a job runs."""

    script: str
    arguments: tuple[str, ...]
    tensorflow: bool
    parameter_servers: int


@dataclass
class _Server:
    """A server in a process beside this one."""

    kind: str
    process: subprocess.Popen[bytes]
    ready: int

    @cached_property
    def address(self) -> str:
        """Where it is; waits until it is ready. Raises PlatformError if it does not come up."""
        with os.fdopen(self.ready, "rb") as pipe:
            address = pipe.read().decode()
        if not address:
            raise PlatformError(f"the {self.kind} server ended with code {self.process.wait()} before it was ready")
        return address

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class _Node:
    """This process's part in the job."""

    attendant: Attendant
    settings: Settings
    preempted: bool = False
    servers: list[_Server] = field(default_factory=list)

    def worker(self) -> _Server:
        """A server that runs closures."""
        if self.settings.tensorflow:
            return self._started("worker", "0", _free_address(self.attendant.host))
        server = self._started("python", "0", self.attendant.host, stdin=subprocess.PIPE)
        if server.process.stdin is not None:
            MapWriter(self.attendant.servers, server.process.stdin)
        return server

    def parameter_servers(self) -> list[_Server]:
        addresses = [_free_address(self.attendant.host) for _ in range(self.settings.parameter_servers)]
        return [self._started("ps", str(index), *addresses) for index in range(len(addresses))]

    def _started(self, *arguments: str, stdin: int | None = None) -> _Server:
        readable, writable = os.pipe()
        command = [sys.executable, "-m", "elastane.cli.closure_server", arguments[0], str(writable), *arguments[1:]]
        # A session of its own: who is told to leave must finish what it has in hand, so a signal comes to us alone.
        process = subprocess.Popen(command, stdin=stdin, pass_fds=[writable], start_new_session=True)  # noqa: S603
        os.close(writable)
        server = _Server(arguments[0], process, readable)
        self.servers.append(server)
        return server


def coordinate(settings: Settings) -> int:
    """Be a node of the job until it is over; the answer is the exit code. Raises InvalidInput outside of a job."""
    missing = [name for name in (ENV_MASTER, ENV_TOKEN, ENV_NODE) if not os.environ.get(name)]
    if missing:
        raise InvalidInput(
            f"{', '.join(missing)}: not set; `elastane coordinate` is what the nodes of a job run: "
            "elastane run --strategy parameter_server --worker-command 'elastane coordinate SCRIPT'"
        )
    attendant = Attendant(Door.from_env())
    attendant.start()
    node = _Node(attendant, settings)
    try:
        _check_servers(attendant)
        code = _be_chief(node) if attendant.closures.is_chief else _be_worker(node)
    finally:
        for server in node.servers:
            server.end()
    attendant.close(preempted=node.preempted)
    return code


def _check_servers(attendant: Attendant) -> None:
    told = attendant.servers.settings
    if told is not None and told.staleness is not None:
        raise InvalidInput(
            f"--ps-staleness: {told.staleness} has no meaning with a coordinator: its closures are not steps that "
            "others could wait for; start the job without it"
        )


def _be_worker(node: _Node) -> int:
    closures = node.attendant.closures
    server = node.worker()
    died = threading.Event()

    def follow() -> None:
        server.process.wait()
        died.set()
        closures.over.set()

    def on_sigterm(*_: object) -> None:
        node.preempted = True
        closures.leave()

    threading.Thread(target=follow, name="closure-server", daemon=True).start()
    signal.signal(signal.SIGTERM, on_sigterm)
    closures.serve(server.address)
    closures.over.wait()
    if died.is_set():
        _log.error("the closure server ended with code %d", server.process.returncode)
        return 1
    return 0


def _be_chief(node: _Node) -> int:
    closures, settings = node.attendant.closures, node.settings
    # All at once: importing TensorFlow takes each of them seconds.
    parameter_servers, worker = node.parameter_servers(), node.worker()

    def on_sigterm(*_: object) -> None:
        node.preempted = True
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, on_sigterm)
    feed = WorkerFeed((worker.address,), closures.use)
    use_feed(feed)
    use_server_maps(node.attendant.servers)
    closures.coordinate(feed.told)
    if settings.tensorflow:
        servers = {
            "chief": [_free_address(node.attendant.host)],
            "ps": [each.address for each in parameter_servers],
            "worker": [worker.address],
        }
        # At the end the servers go before TensorFlow's own goodbye to them, of which it would complain at length.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["TF_CONFIG"] = json.dumps({"cluster": servers, "task": {"type": "chief", "index": 0}})
    sys.argv = [settings.script, *settings.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(settings.script)))
    code = 0
    try:
        runpy.run_path(settings.script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if code == 0:
        closures.finish()
    return code


def _free_address(host: str) -> str:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
