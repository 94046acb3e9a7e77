"""Training scripts in jobs with parameter servers, as real processes: they learn, and every sample is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults import fail_at
from tests.integration.harness import ROOT, Finished, Jobs, every_sample_once

SCRIPT = str(Path(__file__).with_name("ps_training_script.py"))
DEEPFM = str(ROOT / "examples" / "deepfm.py")
SAMPLES = 20_000


def train(jobs: Jobs, *arguments: str, options: tuple[str, ...] = (), name: str = "job") -> Finished:
    started = ("--ps=2", "--workers=2", "--ps-buckets=64", "--heartbeat-timeout=30", *options)
    done = jobs.run("--samples", str(SAMPLES), *arguments, options=started, name=name, script=SCRIPT)
    assert done.code == 0, done.stderr + done.stdout
    assert done.committed() == every_sample_once(SAMPLES)
    return done


def right(done: Finished) -> list[float]:
    """The share of samples that each worker's model had right in the end."""
    return [float(found) for found in re.findall(r"right ([\d.]+)", done.stdout)]


@pytest.mark.slow
def test_a_worker_that_is_killed_has_its_samples_done_by_others_and_the_model_learns(jobs: Jobs) -> None:
    done = train(jobs, "--ahead", fail_at(node="worker-1", step=40, how="kill"))
    assert len(done.of("node_ended", reason="killed")) == 1
    assert right(done)
    assert min(right(done)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("staleness", ["0", "2"])
@pytest.mark.parametrize("how", ["kill", "none"])
def test_workers_that_wait_for_each_other_do_not_wait_for_one_that_is_gone(
    jobs: Jobs, staleness: str, how: str
) -> None:
    fault = [fail_at(node="worker-1", step=40, how="kill")] if how == "kill" else []
    scaled = ["--scaled"] if staleness != "0" else []
    done = train(jobs, "--ahead", *scaled, *fault, options=(f"--ps-staleness={staleness}",))
    assert min(right(done)) > 0.9


@pytest.mark.slow
def test_the_deepfm_example_learns_on_two_servers_and_two_workers(jobs: Jobs) -> None:
    samples = 150_000
    done = jobs.run("--samples", str(samples), options=("--ps=2", "--workers=2"), script=DEEPFM)
    assert done.code == 0, done.stderr + done.stdout
    assert done.committed() == every_sample_once(samples)
    last = done.of("evaluation_finished")[-1]
    assert last["metrics"]["auc"] > 0.755
