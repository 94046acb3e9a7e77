"""Evaluation while the model trains, with real processes: what it says is what one process says of the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elastane.torch.collate import collate
from tests.integration.evaluation_script import Samples, make_model, metrics, predict
from tests.integration.harness import Finished, Jobs

SCRIPT = str(Path(__file__).with_name("evaluation_script.py"))
EVALUATED = 500


def evaluate_here(weights: Any) -> dict[str, float]:
    """One pass over all the data, in this process."""
    model = make_model()
    model.load_state_dict(weights)
    model.eval()
    found = metrics()
    data = Samples(EVALUATED, first=1_000_000)
    for start in range(0, EVALUATED, 16):
        with torch.inference_mode():
            values = predict(model, collate([data[index] for index in range(start, min(start + 16, EVALUATED))]))
        for name, metric in found.items():
            given = values[name] if isinstance(values[name], tuple) else (values[name],)
            metric.update(*(value.numpy() for value in given))
    return {name: metric.result() for name, metric in found.items()}


def assert_as_here(event: dict[str, Any], weights: Any) -> None:
    here = evaluate_here(weights)
    assert {name: event["metrics"][name] for name in here} == pytest.approx(here, abs=1e-6)


def run(jobs: Jobs, *arguments: str, options: tuple[str, ...]) -> Finished:
    done = jobs.run(*arguments, options=options, script=SCRIPT)
    assert done.code == 0, done.stdout + done.stderr
    assert len(left_versions(jobs)) == 1
    return done


def left_versions(jobs: Jobs) -> list[Path]:
    return list((jobs.folder / "state" / "jobs" / "job" / "versions").iterdir())


@pytest.mark.slow
def test_an_evaluator_says_what_one_process_says_though_one_is_killed(jobs: Jobs) -> None:
    trained = jobs.folder / "trained"
    trained.mkdir()
    export = jobs.folder / "out" / "model"
    done = run(
        jobs,
        *("--every-steps", "50", "--best", "auc:max", "--export", str(export), "--trained", str(trained)),
        *("--step-ms", "5", "--kill", "evaluator-1"),
        options=("--workers", "2", "--evaluators", "2"),
    )
    finished = done.of("evaluation_finished")
    assert len(finished) >= 2
    for event in finished:
        assert_as_here(event, torch.load(trained / f"{event['step']}.pt"))
    assert done.of("node_ended", node="evaluator-1", reason="killed")
    assert [event for event in done.of("shard_returned") if event["dataset"].startswith("evaluation-")]
    # It went on while the workers trained.
    kinds = [event["kind"] for event in done.events]
    assert kinds.index("evaluation_finished") < kinds.index("dataset_finished")
    best = max(finished, key=lambda event: event["metrics"]["auc"])
    assert done.of("best_version")[-1]["step"] == best["step"]
    assert_as_here(best, load_file(export / "model.safetensors"))
    about = json.loads((export / "model.json").read_text())
    assert (about["step"], about["metrics"]) == (best["step"], best["metrics"])
    assert [path.name for path in left_versions(jobs)] == [f"step-{best['step']}.safetensors"]
    status = json.loads(jobs.command("status", "job", "--json").stdout)["evaluation"]
    assert status["last"]["step"] == finished[-1]["step"]
    assert status["best"]["metrics"] == best["metrics"]


@pytest.mark.slow
def test_workers_evaluate_beside_their_steps_when_there_are_no_evaluators(jobs: Jobs) -> None:
    trained = jobs.folder / "trained"
    trained.mkdir()
    arguments = ("--every-s", "0.2", "--trained", str(trained), "--step-ms", "5")
    done = run(jobs, *arguments, options=("--workers", "2", "--check-replicas"))
    finished = done.of("evaluation_finished")
    assert len(finished) >= 2
    for event in finished:
        assert_as_here(event, torch.load(trained / f"{event['step']}.pt"))
    assert len(done.of("node_ended", reason="done")) == 2


@pytest.mark.slow
def test_training_stops_when_it_gets_no_better_and_the_job_succeeds(jobs: Jobs) -> None:
    arguments = ("--every-steps", "5", "--best", "loss:min", "--early-stop", "2", "--lr", "0", "--samples", "1000000")
    done = run(jobs, *arguments, options=("--workers", "2", "--evaluators", "1"))
    (stopped,) = done.of("early_stop")
    assert stopped["evaluations"] == 2
    assert not done.of("dataset_finished")
    assert done.of("job_ended", end="succeeded")


@pytest.mark.slow
def test_the_final_evaluation_goes_on_when_the_master_dies(jobs: Jobs) -> None:
    export = jobs.folder / "model"
    arguments = ("--best", "auc:max", "--export", str(export), "--samples", "400", "--kill-master", "evaluator-0")
    done = run(jobs, *arguments, options=("--workers", "2", "--evaluators", "1"))
    assert done.of("master_restarted")
    assert len(done.of("evaluation_started")) == 2, "what was at work is begun anew"
    (finished,) = done.of("evaluation_finished")
    assert_as_here(finished, load_file(export / "model.safetensors"))
    # An evaluator that is about to end may be told to.
    assert {event["reason"] for event in done.of("node_ended") if not event["released"]} == {"done"}


@pytest.mark.slow
def test_an_error_in_evaluation_ends_the_job_with_its_name(jobs: Jobs) -> None:
    options = ("--workers", "1", "--evaluators", "1", "--restarts", "0")
    done = jobs.run("--every-steps", "5", "--fail", "--samples", "1000000", options=options, script=SCRIPT)
    assert done.code == 1
    assert "ValueError: planted" in done.stderr


@pytest.mark.slow
def test_workers_that_cannot_evaluate_end_the_job_with_the_shard(jobs: Jobs) -> None:
    arguments = ("--every-steps", "5", "--fail", "--samples", "1000000")
    done = jobs.run(*arguments, options=("--workers", "1"), script=SCRIPT)
    assert done.code == 1
    assert "failed on 3 tries: ValueError: planted" in done.stderr
