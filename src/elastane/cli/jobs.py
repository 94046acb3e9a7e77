"""The commands on jobs that are there: jobs, status, logs, scale, migrate, save, drain, delete.

Each is about a job of this user on this machine, or with --kubernetes about one in a cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elastane.cli.options import JobArgument, JsonOption, KubernetesOption, NamespaceOption, NodeArgument
from elastane.cli.view import status_report
from elastane.client import Client, JobView
from elastane.client.status import status_dict
from elastane.model.errors import InvalidInput
from elastane.model.quantity import Memory
from elastane.platform.local.registry import JobFolder, jobs_folder


def job_commands(app: typer.Typer) -> None:
    """Add the commands to `elastane`."""
    for command in (jobs, status, logs, scale, migrate, save, drain, delete):
        app.command()(command)


def client_for(kubernetes: bool, namespace: str | None) -> Client:
    """A client of the cluster, or of this machine; raises InvalidInput for a namespace of the latter."""
    if namespace is not None and not kubernetes:
        raise InvalidInput(f'namespace: "{namespace}" is of a cluster; say --kubernetes too')
    return Client(kubernetes=kubernetes, namespace=namespace)


def jobs(as_json: JsonOption = False, kubernetes: KubernetesOption = False, namespace: NamespaceOption = None) -> None:
    """List this user's jobs on this machine, running and ended, or those in a cluster."""
    with client_for(kubernetes, namespace) as client:
        found = client.list_jobs()
        where = client.namespace
    if as_json:
        print(json.dumps([_plain(job, nodes=False) for job in found]))
    elif where is None:
        (Console() if sys.stdout.isatty() else Console(width=200)).print(_table(found))
    elif found:
        from elastane.cli.cluster_view import jobs_table, show

        show(jobs_table([job.cluster for job in found if job.cluster is not None]))
    else:
        print(f"there are no jobs in namespace {where}")


def _table(found: Sequence[JobView]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("job", "state", "workers", "samples", "seconds"):
        table.add_column(heading)
    for job in found:
        running = str(len(job.running("worker")))
        table.add_row(job.name, job.state, running, f"{job.committed:,}", f"{job.elapsed_s:.0f}")
    return table


def _plain(job: JobView, *, nodes: bool) -> object:
    """A job as `--json` prints it; the nodes of one in a cluster only where they were asked for."""
    if job.message is not None:
        return {**status_dict(job.message), "metrics": JobFolder(jobs_folder() / job.name).metrics or None}
    from elastane.cli.cluster_view import job_dict  # Only here: its documents take a while to import.

    return None if job.cluster is None else job_dict(job.cluster, pods=nodes)


def status(
    job: JobArgument,
    as_json: JsonOption = False,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> None:
    """Show a job: its state, its nodes and where it is in its data."""
    with client_for(kubernetes, namespace) as client:
        found = client.get_job(job)
    if as_json:
        print(json.dumps(_plain(found, nodes=True)))
    elif found.message is not None:
        Console().print(status_report(found.message))
    elif found.cluster is not None:
        from elastane.cli.cluster_view import job_report, show

        show(job_report(found.cluster))


def logs(
    job: JobArgument,
    node: NodeArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job, or the pod, ends.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only the last lines.", min=0)] = None,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> None:
    """Print what a node printed; `master` is the master's own log."""
    with client_for(kubernetes, namespace) as client:
        for text in client.get_job_output(job, node, follow=follow, tail=tail):
            sys.stdout.write(text)
            if follow:
                sys.stdout.flush()


def scale(
    job: JobArgument,
    workers: Annotated[
        int | None, typer.Option(help="How many workers the job is to have.", min=0, max=10_000, show_default=False)
    ] = None,
    ps: Annotated[
        int | None, typer.Option(help="How many parameter servers it is to have.", min=0, max=1000, show_default=False)
    ] = None,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> None:
    """Grow or shrink a running job, within its limits."""
    if workers is None and ps is None:
        raise InvalidInput("scale: say --workers, or --ps, or both")
    with client_for(kubernetes, namespace) as client:
        client.scale(job, workers, ps)
    parts = [
        f"{count} {word}" for count, word in ((workers, "workers"), (ps, "parameter servers")) if count is not None
    ]
    print(f"{job}: {', '.join(parts)}")


def migrate(
    job: JobArgument,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A parameter server's name, such as ps-1.")],
    memory: Annotated[str | None, typer.Option(help="Memory for the one in its place, such as 8Gi.")] = None,
    cpu: Annotated[float | None, typer.Option(help="Cores for the one in its place.", min=0.001)] = None,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> None:
    """Move all that a parameter server holds to a new one with other resources, while the job trains on."""
    amount = None if memory is None else Memory.parse(memory)
    with client_for(kubernetes, namespace) as client:
        if kubernetes and amount is None and cpu is None:
            raise InvalidInput("migrate: say --memory, or --cpu, or both")
        client.migrate(job, node, memory=amount, cpu=cpu)
    print(f"{job}: {node} moves{'' if amount is None else f' to {amount}'}")


def save(job: JobArgument) -> None:
    """Have the parameter servers of a job make a checkpoint now."""
    with Client() as client:
        client.save(job)
    print(f"{job}: saving")


def drain(
    job: JobArgument, node: NodeArgument, kubernetes: KubernetesOption = False, namespace: NamespaceOption = None
) -> None:
    """Let one node leave: it finishes its batch, gives the rest back, and is not replaced."""
    with client_for(kubernetes, namespace) as client:
        client.drain(job, node)
    print(f"{job}: {node} is leaving")


def delete(
    names: Annotated[list[str], typer.Argument(metavar="JOB...", help="The jobs to end and forget.")],
    at_once: Annotated[bool, typer.Option("--at-once", help="Kill the workers instead of draining them.")] = False,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> None:
    """End jobs if they run, and remove their records and logs."""
    with client_for(kubernetes, namespace) as client:
        client.delete(*names, at_once=at_once, tell=lambda name, text: print(f"{name}: {text}", flush=True))
