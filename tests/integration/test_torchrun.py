"""Stock torchrun with an unchanged DDP script, on a master's rendezvous."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from tests.integration.guests import LoneMaster, Process
from tests.integration.harness import ROOT, Jobs

SCRIPT = str(Path(__file__).with_name("ddp_script.py"))


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH that declares this tree's entry points, as an installed package would."""
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "installed" / "elastane_handlers-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: elastane-handlers\nVersion: 0\n")
    handlers = "".join(f"{name} = {target}\n" for name, target in entry_points["torchrun.handlers"].items())
    (folder / "entry_points.txt").write_text(f"[torchrun.handlers]\n{handlers}")
    return folder.parent


def torchrun(*options: str) -> list[str]:
    intervals = ("--monitor-interval=0.05", "--max-restarts=2")
    return [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=elastane", *intervals, *options]


class Agents:
    """Stock torchrun agents that meet at a master."""

    def __init__(self, master: LoneMaster, handlers: Path, *script_arguments: str) -> None:
        self._master = master
        self._env = {**master.env, "OMP_NUM_THREADS": "1"}
        self._env["PYTHONPATH"] = f"{handlers}:{self._env['PYTHONPATH']}"
        # What torchrun is told, it is told by its own arguments.
        del self._env["ELASTANE_MASTER"], self._env["ELASTANE_TOKEN_FILE"]
        self._script_arguments = script_arguments

    def start(self, *, nnodes: str, **env: str) -> Process:
        command = torchrun(
            *(f"--rdzv-endpoint={self._master.address}", f"--nnodes={nnodes}"),
            f"--rdzv-conf=token_file={self._master.token_file},join_timeout=60",
            *(SCRIPT, *self._script_arguments),
        )
        return Process(command, {**self._env, **env})


@pytest.mark.slow
def test_a_ddp_script_goes_on_when_an_agent_is_killed_and_when_one_comes(
    jobs: Jobs, handlers: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot"
    script = (
        "--steps=12",
        f"--snapshot={snapshot}",
        "--company-at=0",
        "--kill-at=4",
        "--company-at=8",
        "--crash-at=10",
    )
    with LoneMaster(jobs, "--no-task-manager") as master:
        agents = Agents(master, handlers, *script)
        with agents.start(nnodes="1:4") as survivor, agents.start(nnodes="1:4", VICTIM="1") as victim:
            survivor.read_until(r"starts rank=\d size=2 step=0")
            # Whether the last step before the death was saved depends on who had rank 0.
            survivor.read_until(r"starts rank=0 size=1 step=[34]")
            assert victim.wait() == -9
            survivor.read_until("waits for company")
            with agents.start(nnodes="1:4") as newcomer:
                survivor.read_until("starts rank=0 size=2 step=8")
                # A worker that fails takes its agent to a new world of the same members, and the other agents with it.
                survivor.read_until(r"starts rank=0 size=2 step=(9|10)")
                assert newcomer.wait() == 0, newcomer.output
                assert survivor.wait() == 0, survivor.output
        assert survivor.lines[-1] == "ends rank=0 size=2"
        assert "ends rank=1 size=2" in newcomer.lines
        with agents.start(nnodes="1:4") as late:
            assert late.wait() == 1
        assert "RendezvousClosedError: the group is done" in late.output
        assert master.terminate() == 0
    assert torch.load(snapshot, weights_only=True)["step"] == 12


@pytest.mark.slow
def test_an_agent_that_is_told_to_leave_says_goodbye(jobs: Jobs, handlers: Path, tmp_path: Path) -> None:
    with LoneMaster(jobs, "--no-task-manager") as master:
        agents = Agents(master, handlers, "--steps=1", f"--snapshot={tmp_path / 'snapshot'}", "--company-at=0")
        with agents.start(nnodes="1:2") as agent:
            agent.read_until("waits for company")
            agent.terminate()
        (left,) = master.events("node_left")
        assert left["preempted"]


@pytest.mark.slow
def test_a_job_may_launch_the_agents(jobs: Jobs, handlers: Path, tmp_path: Path) -> None:
    jobs.env["PYTHONPATH"] = f"{handlers}:{jobs.env['PYTHONPATH']}"
    snapshot = tmp_path / "snapshot"
    command = torchrun("--nnodes=2", str(ROOT / "examples" / "ddp.py"), "--steps=20", f"--snapshot={snapshot}")
    options = ("--workers=2", "--no-task-manager", f"--worker-command={shlex.join(command)}")
    done = jobs.run(options=options, script=None)
    assert done.code == 0, done.stdout
    assert done.stdout.count("step 20, 2 workers") == 1
    assert torch.load(snapshot, weights_only=True)["step"] == 20
