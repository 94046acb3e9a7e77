"""`elastane submit`: a job that a file describes runs here, and what cannot be used is said in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.harness import ROOT, SCRIPT, TIMEOUT_S, Finished, Jobs, every_sample_once, read_events


def job_document(*arguments: str, name: str = "job", workers: int = 2, **spec: Any) -> dict[str, Any]:
    """A job of the counting script."""
    container = {"name": "main", "command": [sys.executable, SCRIPT], "args": ["--samples=2000", *arguments]}
    worker = {"replicas": workers, "restartCount": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "training"},
        "spec": {"worker": worker, **spec},
    }


def submit(jobs: Jobs, text: str, *options: str, file: str = "job.yaml") -> Finished:
    """Submit a file to its job's end; `-` is standard input."""
    events = jobs.folder / "events.jsonl"
    path = jobs.folder / file
    if file != "-":
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "elastane", "submit", "--events", str(events), *options, "-" if file == "-" else path],
        input=text if file == "-" else None,
        env=jobs.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr, read_events(events))


@pytest.mark.parametrize("file", ["job.yaml", "job.json", "-"])
def test_a_job_in_a_file_runs_as_elastane_run_would(jobs: Jobs, file: str) -> None:
    document = job_document("--step-ms=5")
    text = json.dumps(document) if file == "job.json" else yaml.safe_dump(document)
    done = submit(jobs, text, file=file)
    assert done.code == 0, done.stderr
    assert done.committed() == every_sample_once(2000)
    assert {event["node"] for event in done.of("node_launched")} == {"job-worker-0", "job-worker-1"}
    assert "job succeeded after" in done.stdout
    assert json.loads(jobs.command("status", "job", "--json").stdout)["state"] == "succeeded"


def test_a_job_that_fails_ends_with_what_its_worker_printed(jobs: Jobs) -> None:
    done = submit(jobs, yaml.safe_dump(job_document("--poison=5", maxTaskRetries=1)))
    assert done.code == 1
    assert 'error: data set "batches-0", epoch 0 samples' in done.stderr


def test_json_needs_no_yaml_and_yaml_says_what_it_needs(jobs: Jobs) -> None:
    (jobs.folder / "yaml.py").write_text("raise ImportError('hidden', name='yaml')")
    jobs.env["PYTHONPATH"] = f"{jobs.folder}{os.pathsep}{jobs.env['PYTHONPATH']}"
    document = job_document(workers=1)
    refused = submit(jobs, yaml.safe_dump(document))
    assert refused.code == 2
    assert refused.stderr.endswith("is not JSON, and YAML is not installed; pip install 'elastane[kubernetes]'\n")
    assert refused.stderr.count("\n") == 1
    assert submit(jobs, json.dumps(document), file="job.json").code == 0


def test_every_bad_field_has_its_line(jobs: Jobs) -> None:
    document = job_document(heartbeatTimeoutSeconds=0)
    document["spec"]["worker"]["replica"] = 2
    document["metadata"]["name"] = "A b"
    done = submit(jobs, yaml.safe_dump(document))
    assert done.code == 2
    lines = done.stderr.splitlines()
    assert [line.split(":")[1] for line in lines] == [
        " metadata.name",
        " spec.worker.replica",
        " spec.heartbeatTimeoutSeconds",
    ]
    assert not list(jobs.folder.glob("state/jobs/*"))


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        ("{", "job.json", "is not JSON: "),
        ("a: [", "job.yaml", "is not YAML: while parsing a flow node"),
        ("a: 1\n---\nb: 2\n", "job.yaml", "holds 2 documents; it must be one, an ElasticJob"),
        ("# nothing\n", "job.yaml", "holds 0 documents; it must be one, an ElasticJob"),
        ("just words\n", "job.yaml", "error: document: "),
        ("kind: Job\nmetadata: {name: a}\nspec: {worker: {guests: true}}\n", "job.yaml", 'error: kind: "Job" is not'),
    ],
)
def test_a_file_that_is_no_job_is_answered_with_one_line(jobs: Jobs, text: str, file: str, message: str) -> None:
    done = submit(jobs, text, file=file)
    assert done.code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.events


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("submit", "/nowhere/job.yaml"), 2, 'error: file: "/nowhere/job.yaml" cannot be read: No such file'),
        (("submit", "--wait", "FILE"), 2, "error: wait: a job on this machine is waited for anyway"),
        (("submit", "--namespace", "x", "FILE"), 2, 'error: namespace: "x" is of a cluster; say --kubernetes too'),
        (("submit", "-k", "-n", "x", "FILE"), 2, 'error: namespace: "x" is not metadata.namespace "training"'),
        (("submit", "-k", "--events", "e", "FILE"), 2, 'error: events: "e" is on this machine, and the job is not'),
        (("submit", "-k", "FILE"), 1, "error: no cluster is configured: Configuration file /nowhere/config not found"),
        (("jobs", "-k"), 1, "error: no cluster is configured: Configuration file /nowhere/config not found"),
        (("drain", "job", "worker-0", "-n", "x"), 2, 'error: namespace: "x" is of a cluster; say --kubernetes too'),
    ],
)
def test_words_that_do_not_fit_are_answered_with_one_line(
    jobs: Jobs, words: tuple[str, ...], code: int, message: str
) -> None:
    file = jobs.folder / "job.yaml"
    file.write_text(yaml.safe_dump(job_document()))
    jobs.env["KUBECONFIG"] = "/nowhere/config"
    done = jobs.command(*(str(file) if word == "FILE" else word for word in words))
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_cluster_that_is_not_there_is_said_in_one_line(jobs: Jobs, tmp_path: Path) -> None:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    jobs.env["KUBECONFIG"] = str(tmp_path / "config")
    done = jobs.command("jobs", "--kubernetes")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the cluster at http://127.0.0.1:1 cannot be reached: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["a: [", "clusters: 1", "{}", "clusters: []\ncontexts: []\ncurrent-context: x"])
def test_a_kubeconfig_that_is_none_is_said_in_one_line(jobs: Jobs, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    jobs.env["KUBECONFIG"] = str(tmp_path / "config")
    done = jobs.command("jobs", "--kubernetes")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no cluster is configured: ")
    assert done.stderr.count("\n") == 1


def test_nothing_of_kubernetes_is_imported_for_local_jobs(jobs: Jobs) -> None:
    script = "import sys, elastane.cli.app; print({'kopf', 'lightkube', 'yaml', 'httpx2'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=jobs.env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_kubernetes_without_its_libraries_says_what_to_install(jobs: Jobs) -> None:
    (jobs.folder / "lightkube.py").write_text("raise ImportError('hidden', name='lightkube')")
    jobs.env["PYTHONPATH"] = f"{jobs.folder}{os.pathsep}{jobs.env['PYTHONPATH']}"
    done = jobs.command("jobs", "--kubernetes")
    assert done.returncode == 1
    assert done.stderr == "error: lightkube is not installed; pip install 'elastane[kubernetes]'\n"
