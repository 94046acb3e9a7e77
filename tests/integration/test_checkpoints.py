"""Workers and whole jobs that are killed while they save: the next go on from what is whole, and lose no sample."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, TIMEOUT_S, Finished, Jobs, every_sample_once
from tests.training_faults import fail_at_phase

SCRIPT = str(Path(__file__).with_name("training_script.py"))
SAMPLES = 800
TRAINING = ("--samples", str(SAMPLES), "--global-batch-size", "32", "--batch-size", "8", "--double", "--deterministic")


@pytest.mark.slow
def test_every_start_after_a_kill_finds_a_whole_state(tmp_path: Path) -> None:
    driver = [sys.executable, "-m", "tests.integration.saving_driver", str(tmp_path), "7", "24"]
    done = subprocess.run(driver, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    starts = [line.split("|") for line in done.stdout.splitlines()]
    assert len(starts) == 25
    for killed, newest, step, as_without_kills in starts:
        assert as_without_kills == "True", (killed, step)
        # Who is killed right after a rename had no time to note that it had finished.
        assert int(step) >= int(newest), killed
    assert int(starts[-1][2]) > 20


def run(jobs: Jobs, *arguments: str, name: str, workers: str, restarts: int = 0) -> Finished:
    options = ("--check-replicas", "--workers", workers, "--restarts", str(restarts))
    case = ("--case", "adamw,batch-norm,scheduler")
    losses = ("--losses", str(jobs.folder / f"{name}-losses"))  # They are the same only if the first weights are.
    saving = ("--checkpoint", str(jobs.folder / name.partition("-")[0]), "--save-every-steps", "5")
    return jobs.run(*TRAINING, *case, *losses, *saving, *arguments, options=options, name=name, script=SCRIPT)


def final_state(done: Finished) -> str:
    assert done.code == 0, done.stdout + done.stderr
    state: str
    (state,) = set(re.findall(r"state (\w+)", done.stdout))
    return state


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state of a training by one worker that nothing happens to."""
    return final_state(run(Jobs(tmp_path_factory.mktemp("undisturbed")), name="job", workers="1"))


@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_with_more_workers_to_the_same_end(jobs: Jobs, undisturbed: str) -> None:
    kill = fail_at_phase(rank=0, size=2, step=8, phase="saved", how="kill-job")
    killed = run(jobs, "--step-ms", "5", kill, name="job-killed", workers="2")
    assert killed.code != 0
    again = run(jobs, name="job-again", workers="3:3")
    assert final_state(again) == undisturbed
    (restored,) = again.of("position_restored")
    assert restored["step"] >= 8
    assert restored["now"] == restored["step"] * 32
    assert again.committed() == every_sample_once(SAMPLES) - Counter((0, n) for n in range(restored["now"]))
    assert len(again.of("world_settled")[0]["members"]) == 3


@pytest.mark.slow
def test_a_copy_in_memory_outlives_all_workers(jobs: Jobs, undisturbed: str) -> None:
    kill = fail_at_phase(rank=0, size=2, step=8, phase="copied", how="kill-all")
    done = run(jobs, "--step-ms", "5", kill, name="job", workers="2:2", restarts=2)
    assert final_state(done) == undisturbed
    assert done.of("position_restored")
    assert len(done.of("node_ended", reason="killed")) == 2
    (memory,) = set(re.findall(r"restored from (/dev/shm/elastane-[^/]+)", done.stdout))
    assert not Path(memory).exists()
