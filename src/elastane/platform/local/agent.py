"""The process that owns a local job's nodes: it starts them, limits them, reaps them, and never leaves one behind.

Run as `python -m elastane.platform.local.agent COMMAND_FD LIFELINE_FD [--no-warm-start]`. Commands and reports are
JSON messages on a SOCK_SEQPACKET socket, which keeps their boundaries. The lifeline is a pipe that only the launcher
can write to: when it closes, by whatever death of the launcher, every node and all that it started is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from elastane.model.environment import ENV_MEMORY
from elastane.platform.local.memory import MemoryWatch, kernel_oom_kills
from elastane.platform.local.prctl import adopt_orphans, die_with_parent
from elastane.platform.local.shared_memory import SharedMemory
from elastane.platform.local.warm_start import Launch, WarmStarts

MAX_COMMAND_BYTES = 128 * 1024
LOG_TAIL_BYTES = 8 * 1024
_FAREWELL_S = 3.0


@dataclass
class _Process:
    node: str
    popen: subprocess.Popen[bytes] | None
    """None after a warm start: the process is this one's child, but not started by it."""
    log: Path
    memory: MemoryWatch | None
    kernel_oom_kills: int
    kill_timer: asyncio.TimerHandle | None = None
    over_memory: bool = False


class Agent:
    """Owns the node processes; everything runs on one event loop."""

    def __init__(self, commands: socket.socket, lifeline: int, *, warm_start: bool) -> None:
        self._commands = commands
        self._lifeline = lifeline
        self._processes: dict[int, _Process] = {}
        self._warm_starts = WarmStarts(wanted=warm_start)
        self._shared_memory = SharedMemory()
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._cpus = os.sched_getaffinity(0)
        self._reports: asyncio.Queue[bytes] = asyncio.Queue()
        self._known: dict[str, dict[str, Any]] = {}
        """The last report on every node."""

    async def run(self) -> None:
        # Whatever a node leaves behind becomes this process's child, and is found and ended.
        adopt_orphans()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._loop.add_signal_handler(signal.SIGTERM, self._ending.set)
        self._loop.add_signal_handler(signal.SIGINT, lambda: None)
        self._loop.add_reader(self._lifeline, self._ending.set)
        works = (self._take_commands(), self._send_reports(), self._watch_memory())
        tasks = [asyncio.create_task(work) for work in works]
        ending = asyncio.create_task(self._ending.wait())
        # A work ends when the master is gone, or by an error of this program: then all nodes end too.
        await asyncio.wait({ending, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            pass
        finally:
            await self._end_all()
            self._shared_memory.close()

    async def _take_commands(self) -> None:
        while message := await self._loop.sock_recv(self._commands, MAX_COMMAND_BYTES):
            command = json.loads(message)
            match command.pop("do"):
                case "launch":
                    self._launch(**command)
                case "remove":
                    self._remove(**command)
                case "list":
                    self._list()

    def _launch(
        self,
        *,
        node: str,
        command: list[str],
        env: dict[str, str],
        log: str,
        cpu: float | None,
        memory_bytes: int | None,
    ) -> None:
        cpus = frozenset(self._choose_cpus(cpu))
        environment = {**os.environ, **env}
        if self._shared_memory.path is not None:
            environment[ENV_MEMORY] = str(self._shared_memory.path)
        if cpus:
            environment.setdefault("OMP_NUM_THREADS", str(len(cpus)))
        launch = Launch(node, tuple(command), environment, cpus)
        oom_kills = kernel_oom_kills()
        try:
            with open(log, "ab") as output:
                pid, popen = self._start(launch, output.fileno())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why = f"cannot start {command[0]}: {error}"
            self._report(node=node, status="exited", code=127, out_of_memory=False, log_tail=why)
            return
        watch = None if memory_bytes is None else MemoryWatch(pid, memory_bytes)
        self._processes[pid] = _Process(node, popen, Path(log), watch, oom_kills)
        self._report(node=node, status="running", pid=pid, warm=popen is None)
        self._warm_starts.prepare(launch)

    def _start(self, launch: Launch, log: int) -> tuple[int, subprocess.Popen[bytes] | None]:
        pid = self._warm_starts.start(launch, log)
        if pid is not None:
            return pid, None

        def in_child() -> None:
            die_with_parent()
            if launch.cpus:
                os.sched_setaffinity(0, launch.cpus)

        popen = subprocess.Popen(  # noqa: S603  # running the user's command is what a node is
            launch.command,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=in_child,  # noqa: PLW1509  # this process has one thread
        )
        return popen.pid, popen

    def _choose_cpus(self, cpu: float | None) -> set[int]:
        """The least used cores, a fraction rounded up to a whole core; empty means all."""
        if cpu is None or math.ceil(cpu) >= len(self._cpus):
            return set()
        used = dict.fromkeys(self._cpus, 0)
        for pid in self._processes:
            try:
                allowed = os.sched_getaffinity(pid)
            except ProcessLookupError:
                continue
            for core in allowed & used.keys():
                used[core] += 1
        return set(sorted(used, key=lambda core: (used[core], core))[: math.ceil(cpu)])

    def _remove(self, node: str, grace_s: float) -> None:
        for pid, process in self._processes.items():
            if process.node != node:
                continue
            if grace_s > 0:
                # Only the process itself: what it started is its own to end.
                os.kill(pid, signal.SIGTERM)
            if process.kill_timer is not None:
                process.kill_timer.cancel()
            process.kill_timer = self._loop.call_later(grace_s, _kill_group, pid)

    def _reap(self) -> None:
        while True:
            try:
                # Look before reaping, so that the group can be killed while its number cannot be anyone else's.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            process = self._processes.pop(found.si_pid, None)
            if process is not None:
                _kill_group(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._warm_starts.reaped(found.si_pid, code)
            if process is not None:
                self._ended(process, code)

    def _ended(self, process: _Process, code: int) -> None:
        if process.popen is not None:
            process.popen.returncode = code
        if process.kill_timer is not None:
            process.kill_timer.cancel()
        by_kernel = code == -signal.SIGKILL and kernel_oom_kills() > process.kernel_oom_kills
        out_of_memory = process.over_memory or (by_kernel and process.kill_timer is None)
        self._report(
            node=process.node, status="exited", code=code, out_of_memory=out_of_memory, log_tail=_tail(process.log)
        )

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MemoryWatch.EVERY_S)
            for pid, process in self._processes.items():
                watch = process.memory
                if watch is not None and not process.over_memory and (used := watch.over_limit()):
                    process.over_memory = True
                    _kill_group(pid)
                    with contextlib.suppress(OSError), process.log.open("a") as log:
                        log.write(f"elastane: killed: {used >> 20} MiB in use, the limit is {watch.limit_mib} MiB\n")

    def _report(self, **report: Any) -> None:
        self._known[report["node"]] = report
        self._reports.put_nowait(json.dumps(report).encode())

    def _list(self) -> None:
        """Report all nodes once more, to a master that comes after another."""
        for report in (*self._known.values(), {"status": "listed"}):
            self._reports.put_nowait(json.dumps(report).encode())

    async def _send_reports(self) -> None:
        try:
            while True:
                await self._loop.sock_sendall(self._commands, await self._reports.get())
        except (BrokenPipeError, ConnectionResetError):
            return  # Master and launcher are gone.

    async def _end_all(self) -> None:
        """Kill every node and every descendant, until none is left."""
        self._warm_starts.end()
        for pid in self._processes:
            _kill_group(pid)
        deadline = self._loop.time() + _FAREWELL_S
        while self._loop.time() < deadline:
            self._reap()
            descendants = psutil.Process().children(recursive=True)
            if not descendants:
                return
            for descendant in descendants:
                with contextlib.suppress(psutil.Error):
                    descendant.kill()
            await asyncio.sleep(0.01)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # Nobody is left in it.


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read: {error}"


async def _main(command_fd: int, lifeline_fd: int, *, warm_start: bool) -> None:
    with socket.socket(fileno=command_fd) as commands:
        commands.setblocking(False)
        await Agent(commands, lifeline_fd, warm_start=warm_start).run()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), warm_start="--no-warm-start" not in sys.argv[3:]))
