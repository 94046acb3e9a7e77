"""Faults by name: `fail_at(node="worker-1", step=7, how="kill")` is carried out by that worker at that step."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import elastane
from elastane.model.environment import ENV_NODE


@dataclass(frozen=True)
class Fault:
    node: str
    step: int
    how: str

    @property
    def argument(self) -> str:
        return f"--fault={self.node}@{self.step}:{self.how}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        place, _, how = text.partition(":")
        node, _, step = place.partition("@")
        return cls(node, int(step), how)


def fail_at(*, node: str, step: int, how: str) -> str:
    """The argument that makes `node` fail after its batch number `step` came, before it is counted."""
    return Fault(node, step, how).argument


def add_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fault", action="append", default=[], type=Fault.parse)


AFTER_DRAIN = -1
"""The step of faults that strike a worker which was told to leave, once its loop has ended."""


def inject(job: elastane.Job, faults: list[Fault], step: int) -> None:
    """Carry out the faults that are due at this node and step."""
    short_name = "-".join(job.node.rsplit("-", 2)[-2:])
    for fault in faults:
        if (fault.node, fault.step) == (short_name, step):
            print(f"fault {fault.how} at {time.time()}")
            carry_out(job, fault.how)


def launcher() -> psutil.Process:
    """The `elastane run` process: the parent of the agent, which is this process's parent."""
    agent = psutil.Process().parent()
    assert agent is not None
    parent = agent.parent()
    assert parent is not None
    return parent


def kill_master() -> None:
    """Kill the job's master, if it lives, and wait until it is dead."""
    masters = [child for child in launcher().children() if "elastane.master" in child.cmdline()]
    for master in masters:
        master.kill()
    psutil.wait_procs(masters)


def lose_journal(job_name: str) -> None:
    """Kill the master, with its journal gone: first the file, for the next master comes at once."""
    _journal_of(job_name).unlink()
    kill_master()


def spoil_journal(job_name: str) -> None:
    """Kill the master, and damage the third line of what it wrote."""
    journal = _journal_of(job_name)
    lines = journal.read_bytes().splitlines(keepends=True)
    kill_master()
    journal.write_bytes(b"".join([*lines[:2], b"x" + lines[2], *lines[3:]]))


def _journal_of(job_name: str) -> Path:
    return Path(os.environ["ELASTANE_STATE_DIR"]) / "jobs" / job_name / "journal"


CGROUPS = Path("/sys/fs/cgroup/memory")
"""Where groups of processes with a memory limit are made, if this process may."""


def may_limit_memory() -> bool:
    """Whether the kernel can be made to kill a process of ours for its memory."""
    return (CGROUPS / "memory.limit_in_bytes").exists() and os.access(CGROUPS, os.W_OK)


def allocate_until_the_kernel_kills(limit_mib: int) -> None:
    """Put this process under a limit of the kernel's, and go over it. Whoever runs the test removes the group."""
    group = CGROUPS / f"elastane-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    print(f"cgroup {group}")
    blocks = []
    while True:
        blocks.append(b"x" * (8 << 20))


def carry_out(job: elastane.Job, how: str) -> None:
    action, _, argument = how.partition("=")
    job_name = job.node.rsplit("-", 2)[0]
    match action:
        case "kill" | "stop" | "terminate" | "segfault" | "interrupt":
            numbers = {
                "interrupt": signal.SIGINT,
                "kill": signal.SIGKILL,
                "stop": signal.SIGSTOP,
                "terminate": signal.SIGTERM,
                "segfault": signal.SIGSEGV,
            }
            os.kill(os.getpid(), numbers[action])
        case "remove-logs":
            shutil.rmtree(Path(os.environ["ELASTANE_STATE_DIR"]) / "jobs" / job_name / "logs")
        case "place":
            print(f"rank {job.rank} of {job.world_size}")
        case "raise":
            raise ValueError("planted")
        case "exit":
            sys.exit(int(argument))
        case "hang":
            while True:
                signal.pause()
        case "allocate":
            block = bytearray(int(argument) << 20)
            block[::4096] = b"x" * len(block[::4096])
            time.sleep(1)
        case "kernel-oom":
            allocate_until_the_kernel_kills(int(argument))
        case "spawn":
            # A process that outlives its parent, in a session of its own.
            subprocess.Popen(["sleep", argument], start_new_session=True)
        case "kill-launcher":
            launcher().kill()
        case "interrupt-launcher":
            launcher().send_signal(signal.SIGINT)
        case "kill-master":
            kill_master()
        case "lose-journal":
            lose_journal(job_name)
        case "spoil-journal":
            spoil_journal(job_name)
        case "kill-node":
            agent = psutil.Process().parent()
            assert agent is not None
            (victim,) = [node for node in agent.children() if node.environ()[ENV_NODE] == f"{job_name}-{argument}"]
            victim.kill()
        case "kill-agent":
            parent = psutil.Process().parent()
            assert parent is not None
            parent.kill()
        case "command":
            words = argument.replace("JOB", job_name).split()
            subprocess.run([sys.executable, "-m", "elastane", *words], check=False)
        case _:
            raise AssertionError(f"no such fault: {how}")
