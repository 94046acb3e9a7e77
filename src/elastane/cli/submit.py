"""`elastane submit`: run the job that a file describes, here or in a cluster."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated, Any

import typer

from elastane.cli.jobs import client_for
from elastane.cli.options import (
    EventsOption,
    KubernetesOption,
    MetricsPortOption,
    NamespaceOption,
    ProgressOption,
    TensorboardOption,
    WarmStartOption,
    events_file,
    scalars_folder,
)
from elastane.cli.view import say
from elastane.client import Client
from elastane.client.documents import namespace_in, read_document
from elastane.model.errors import InvalidInput
from elastane.model.job_spec import load_job


def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An ElasticJob in YAML or JSON; - is standard input.")],
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --kubernetes: follow the job to its end, and exit as it does.")
    ] = False,
    events: EventsOption = None,
    progress: ProgressOption = True,
    warm_start: WarmStartOption = True,
    metrics_port: MetricsPortOption = None,
    tensorboard: TensorboardOption = None,
) -> None:
    """Run the job that a file describes: on this machine, as `elastane run` does, or in a cluster.

    The exit code is 0 if the job succeeded; with --kubernetes and without --wait, if it was created.
    """
    from elastane.cli.run import run_job
    from elastane.cli.serve import serve_job

    if wait and not kubernetes:
        raise InvalidInput("wait: a job on this machine is waited for anyway; it is for --kubernetes")
    if events is not None and kubernetes:
        raise InvalidInput(f'events: "{events}" is on this machine, and the job is not; see its master\'s log')
    if metrics_port is not None and kubernetes:
        raise InvalidInput("metrics-port: pods serve metrics at a port of their own; it is for a job on this machine")
    if tensorboard is not None and kubernetes:
        raise InvalidInput(f'tensorboard: "{tensorboard}" is on this machine, and the job is not')
    document = read_document(file)
    job = load_job(document)
    if kubernetes:
        namespace = _namespace(document, namespace)
    with client_for(kubernetes, namespace) as client:
        if kubernetes:
            client.submit(document)
            _say_created(job.name, str(client.namespace), named=namespace is not None)
            raise typer.Exit(_follow(client, job.name) if wait else 0)
    events, scalars = events_file(events), scalars_folder(tensorboard)
    if not job.spec.launches_nodes:
        serving = serve_job(job, events, metrics_port=metrics_port, tensorboard=scalars)
        raise typer.Exit(asyncio.run(serving))
    running = run_job(
        job,
        events,
        progress=progress,
        warm_start=warm_start,
        metrics_port=metrics_port,
        tensorboard=scalars,
    )
    raise typer.Exit(asyncio.run(running))


def _namespace(document: dict[str, Any], given: str | None) -> str | None:
    """The namespace that was asked for, if any; raises InvalidInput if two were."""
    written = namespace_in(document)
    if written and given and written != given:
        raise InvalidInput(f'namespace: "{given}" is not metadata.namespace "{written}" of the file')
    return given or written


def _say_created(name: str, namespace: str, *, named: bool) -> None:
    """Say what can be done next, in words that can be typed."""
    where = f"--kubernetes --namespace {namespace} {name}" if named else f"--kubernetes {name}"
    say(f"{name}: created in namespace {namespace}")
    say(f"see it:      elastane status {where}")
    say(f"read a log:  elastane logs {where} master")
    say(f"end it:      elastane delete {where}")


def _follow(client: Client, name: str) -> int:
    """Print what becomes of a job until it has ended; the answer is the exit code."""
    from elastane.cli.cluster_view import counts_line

    started = time.monotonic()
    said: dict[str, str] = {}
    counted = ""

    def line(text: str) -> None:
        say(f"{time.monotonic() - started:7.1f}s  {text}")

    try:
        for view in client.watch_job(name, nodes=False):
            job = view.cluster
            if job is None:
                continue
            for condition in job.conditions:
                kind, status = condition["type"], condition["status"]
                if said.get(kind, "False") != status:
                    why = ": ".join(part for key in ("reason", "message") if (part := condition.get(key)))
                    line(f"{kind if status == 'True' else f'{kind} no more'}{f' ({why})' if why else ''}")
                said[kind] = status
            if (counts := counts_line(job)) != counted:
                counted = counts
                line(counts)
            if job.condition("Complete"):
                return 0
            if failed := job.condition("Failed"):
                print(f"error: {job.reason or failed.get('message') or failed.get('reason')}", file=sys.stderr)
                return 1
    except KeyboardInterrupt:
        say(f"{name}: goes on; `elastane delete --kubernetes {name}` ends it")
        return 130
    return 1
