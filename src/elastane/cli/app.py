"""The `elastane` command."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from elastane import __version__
from elastane.cli.brain import brain
from elastane.cli.dashboard import check_installed
from elastane.cli.dashboard import dashboard as dashboard_command
from elastane.cli.jobs import job_commands
from elastane.cli.manifests import crds, install
from elastane.cli.operator import operator
from elastane.cli.options import (
    RANGE,
    EventsOption,
    HeartbeatTimeoutOption,
    MaxTaskRetriesOption,
    MetricsPortOption,
    PodManagerOption,
    ProgressOption,
    StrategyOption,
    TaskFaultToleranceOption,
    TaskManagerOption,
    TaskTimeoutOption,
    TensorboardOption,
    TrainingServiceOption,
    WarmStartOption,
    WorkerCommandOption,
    events_file,
    scalars_folder,
)
from elastane.cli.sizing import sizing_commands
from elastane.cli.submit import submit
from elastane.model.environment import ENV_BRAIN, ENV_BRAIN_TOKEN_FILE
from elastane.model.errors import ElastaneError, InvalidInput, InvalidJobSpec
from elastane.model.job_spec import Critical, DistributionStrategy, load_job

app = typer.Typer(
    help="Elastic training: workers join, leave and crash while the steps go on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command; an error that elastane knows is one line, not a traceback."""
    try:
        app()
    except InvalidJobSpec as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except ElastaneError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version  # Typer calls `_version` for it.


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    script: Annotated[str | None, typer.Argument(help="The training script, or with -m a module.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="How many workers: 3, or 2:4 for two to four, starting with two. One, unless it is said.",
            metavar=RANGE,
            show_default=False,
        ),
    ] = None,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="The job sizes itself, inside the sizes given or the machine's.")
    ] = False,
    autoscale_window: Annotated[
        float, typer.Option(help="Seconds of work that are observed as one; three of them come before a change.")
    ] = 8.0,
    brain: Annotated[
        str | None,
        typer.Option(help="The Brain that knows like jobs, for --autoscale.", metavar="ADDRESS", envvar=ENV_BRAIN),
    ] = None,
    brain_token_file: Annotated[
        Path | None, typer.Option(help="The file with its token.", metavar="FILE", envvar=ENV_BRAIN_TOKEN_FILE)
    ] = None,
    evaluators: Annotated[
        int, typer.Option(help="How many nodes evaluate, and do not train; they have a worker's limits.", min=0)
    ] = 0,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as with python -m.")] = False,
    name: Annotated[str | None, typer.Option(help="The job's name; by default made of the script's.")] = None,
    restarts: Annotated[int, typer.Option(help="How often each worker is relaunched after it failed.")] = 3,
    critical: Annotated[
        Critical, typer.Option(help="Which workers end the job when they are lost for good.")
    ] = Critical.NONE,
    cpu: Annotated[float | None, typer.Option(help="Cores for each worker; a fraction is rounded up.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory for each worker, such as 2Gi; 512 means MiB.")] = None,
    heartbeat_timeout: HeartbeatTimeoutOption = 10.0,
    task_timeout: TaskTimeoutOption = 600.0,
    max_task_retries: MaxTaskRetriesOption = 3,
    grace: Annotated[float, typer.Option(help="Seconds that a worker has to leave before it is killed.")] = 30.0,
    check_replicas: Annotated[
        bool, typer.Option("--check-replicas", help="Compare the workers' training states after every world change.")
    ] = False,
    journal_copies: Annotated[
        int, typer.Option(help="How many workers keep the master's journal too, should its disk be lost.", min=0)
    ] = 0,
    events: EventsOption = None,
    progress: ProgressOption = True,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve a web page of the job while it runs, and print its link.")
    ] = False,
    warm_start: WarmStartOption = True,
    metrics_port: MetricsPortOption = None,
    tensorboard: TensorboardOption = None,
    pod_manager: PodManagerOption = True,
    task_manager: TaskManagerOption = True,
    training_service: TrainingServiceOption = None,
    task_fault_tolerance: TaskFaultToleranceOption = True,
    strategy: Annotated[
        DistributionStrategy | None,
        typer.Option(
            help="How the workers' updates meet; ring-allreduce, which forms worlds of them, unless there are servers.",
            show_default=False,
        ),
    ] = None,
    worker_command: WorkerCommandOption = None,
    ps: Annotated[
        str | None,
        typer.Option(help="How many parameter servers: 2, or 1:4 for one to four, starting with one.", metavar=RANGE),
    ] = None,
    ps_memory: Annotated[str | None, typer.Option(help="Memory for each server, such as 8Gi.")] = None,
    ps_cpu: Annotated[float | None, typer.Option(help="Cores for each server.")] = None,
    ps_backups: Annotated[
        bool, typer.Option("--ps-backups", help="Keep every row on two servers, so that no update is lost with one.")
    ] = False,
    ps_buckets: Annotated[
        int, typer.Option(help="How many parts the servers' rows move in; fixed for the job.")
    ] = 1024,
    ps_staleness: Annotated[
        int | None, typer.Option(help="How many steps a worker may be ahead of the slowest; 0 is synchronous.")
    ] = None,
    ps_checkpoint: Annotated[
        Path | None,
        typer.Option(help="Save the servers into this folder, and go on from what is there.", metavar="FOLDER"),
    ] = None,
    ps_save_every: Annotated[float, typer.Option(help="Seconds between checkpoints of the servers.")] = 600.0,
    ps_save_steps: Annotated[int | None, typer.Option(help="Steps between checkpoints of the servers.")] = None,
    ps_keep: Annotated[int, typer.Option(help="How many checkpoints of the servers stay.")] = 3,
) -> None:
    """Run a training script on elastic workers of this machine.

    Ctrl-C drains the workers; a second one kills them. The exit code is 0 if the job succeeded.
    """
    from elastane.cli.run import autoscale_part, default_name, default_sizes, run_job, server_role, worker_range
    from elastane.cli.serve import serve_job

    command = _worker_command(script, arguments or [], worker_command, module=module)
    if not pod_manager and command:
        raise InvalidInput(f"{'script' if script else 'worker-command'}: nobody runs it without the pod manager")
    if pod_manager and not command:
        raise InvalidInput("script: give one, or a --worker-command")
    limits: dict[str, Any] = {"cpu": cpu, "memory": memory}
    resource = {key: value for key, value in limits.items() if value is not None}
    evaluator = {"replicas": evaluators, "restartCount": restarts, "resource": resource}
    if strategy is None:
        strategy = DistributionStrategy.RING_ALLREDUCE if ps is None else DistributionStrategy.PARAMETER_SERVER
    if autoscale:
        workers, ps = default_sizes(workers, ps, strategy)
    saves = {"everySeconds": ps_save_every, "everySteps": ps_save_steps, "keep": ps_keep}
    servers = server_role(
        ps,
        restartCount=restarts,
        resource={key: value for key, value in {"cpu": ps_cpu, "memory": ps_memory}.items() if value is not None},
        backups=ps_backups,
        buckets=ps_buckets,
        staleness=ps_staleness,
        checkpoint=None if ps_checkpoint is None else {"folder": str(ps_checkpoint.absolute()), **saves},
    )
    job = load_job(
        {
            "metadata": {"name": name or default_name(script or "job")},
            "spec": {
                "worker": {
                    **worker_range(workers or "1"),
                    "restartCount": restarts,
                    "critical": critical,
                    "resource": resource,
                    **_runs(command),
                },
                **({"evaluator": evaluator} if evaluators else {}),
                **servers,
                **autoscale_part(autoscale, autoscale_window, brain, brain_token_file),
                "heartbeatTimeoutSeconds": heartbeat_timeout,
                "taskTimeoutSeconds": task_timeout,
                "maxTaskRetries": max_task_retries,
                "terminationGracePeriodSeconds": grace,
                "journalCopies": journal_copies,
                "checkReplicas": check_replicas,
                "podManager": pod_manager,
                "taskManager": task_manager,
                "trainingService": training_service,
                "taskFaultTolerance": task_fault_tolerance,
                "distributionStrategy": strategy,
            },
        }
    )
    if dashboard:
        check_installed()
        if not job.spec.launches_nodes:
            raise InvalidInput("dashboard: a master alone has none beside it; use elastane dashboard")
    events, scalars = events_file(events), scalars_folder(tensorboard)
    if not job.spec.launches_nodes:
        serving = serve_job(job, events, metrics_port=metrics_port, tensorboard=scalars)
        raise typer.Exit(asyncio.run(serving))
    running = run_job(
        job,
        events,
        progress=progress,
        warm_start=warm_start,
        dashboard=dashboard,
        metrics_port=metrics_port,
        tensorboard=scalars,
    )
    raise typer.Exit(asyncio.run(running))


app.command()(submit)


@app.command()
def master(
    workers: Annotated[
        str, typer.Option(help="The sizes of a world: 3 is any from 3 on, 2:4 two to four.", metavar="N|MIN:MAX")
    ] = "1",
    name: Annotated[str | None, typer.Option(help="The job's name.")] = None,
    port: Annotated[
        int, typer.Option(help="The port to listen on; by default any that is free.", min=0, max=65535)
    ] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="The file with the token: read if it is there, else written.", metavar="FILE"),
    ] = None,
    heartbeat_timeout: HeartbeatTimeoutOption = 10.0,
    task_timeout: TaskTimeoutOption = 600.0,
    max_task_retries: MaxTaskRetriesOption = 3,
    events: EventsOption = None,
    metrics_port: MetricsPortOption = None,
    tensorboard: TensorboardOption = None,
    pod_manager: PodManagerOption = True,
    task_manager: TaskManagerOption = True,
    training_service: TrainingServiceOption = None,
    task_fault_tolerance: TaskFaultToleranceOption = True,
    strategy: StrategyOption = DistributionStrategy.RING_ALLREDUCE,
    worker_command: WorkerCommandOption = None,
) -> None:
    """Start a master alone, for workers that start elsewhere.

    It prints what they need to find it, and serves until it is stopped by Ctrl-C, SIGTERM or `elastane delete`.
    """
    from elastane.cli.run import default_name, worker_range
    from elastane.cli.serve import serve_job

    sizes = worker_range(workers)
    if worker_command is None and "replicas" in sizes:
        sizes["minReplicas"] = sizes["replicas"]
    job = load_job(
        {
            "metadata": {"name": name or default_name("master")},
            "spec": {
                "worker": {**sizes, **_runs(shlex.split(worker_command or ""))},
                "heartbeatTimeoutSeconds": heartbeat_timeout,
                "taskTimeoutSeconds": task_timeout,
                "maxTaskRetries": max_task_retries,
                "podManager": pod_manager,
                "taskManager": task_manager,
                "trainingService": training_service,
                "taskFaultTolerance": task_fault_tolerance,
                "distributionStrategy": strategy,
            },
        }
    )
    serving = serve_job(
        job,
        events_file(events),
        port=port,
        token_file=token_file,
        metrics_port=metrics_port,
        tensorboard=scalars_folder(tensorboard),
    )
    raise typer.Exit(asyncio.run(serving))


@app.command()
def worker(
    port: Annotated[
        int, typer.Option(help="The port to listen on; by default any that is free.", min=0, max=65535)
    ] = 0,
) -> None:
    """Run a coordinator's closures on this machine, until it is stopped by Ctrl-C or SIGTERM.

    The token is that of ELASTANE_TOKEN, or of the file in ELASTANE_TOKEN_FILE; the coordinator must hold the same.
    """
    from elastane.cli.closure_worker import serve_closures

    serve_closures(port)


app.command()(brain)


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def coordinate(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The Python script that makes the coordinator.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")] = None,
    tensorflow_ps: Annotated[
        int, typer.Option(help="Use TensorFlow's servers, with so many parameter servers; 0 is elastane's own.", min=0)
    ] = 0,
) -> None:
    """Be a node of a job with a coordinator: what `elastane run --worker-command` is given."""
    from elastane.cli.coordinate import Settings, coordinate

    settings = Settings(script, tuple(arguments or ()), tensorflow_ps > 0, tensorflow_ps)
    raise typer.Exit(coordinate(settings))


@app.command()
def ps() -> None:
    """Be a parameter server of a job; its master launches these, and sets the variables that lead there."""
    from elastane.ps.__main__ import main

    raise typer.Exit(main())


job_commands(app)
sizing_commands(app)
for command in (dashboard_command, operator, crds, install):
    app.command()(command)


def _worker_command(script: str | None, arguments: list[str], given: str | None, *, module: bool) -> list[str]:
    """What each worker runs; nothing if nobody said."""
    if given is not None:
        if script is not None:
            raise InvalidInput(f'worker-command: it is run in place of a script, so leave out "{script}"')
        return shlex.split(given)
    if script is None:
        return []
    if not module and not Path(script).is_file():
        raise InvalidInput(f'script: there is no file "{script}"')
    return [sys.executable, *(["-m"] if module else []), script, *arguments]


def _runs(command: list[str]) -> dict[str, Any]:
    """The part of a role that says what its nodes run; nodes without a command are guests."""
    return {"template": {"spec": {"containers": [{"command": command}]}}} if command else {"guests": True}
