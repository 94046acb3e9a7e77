"""The arguments and options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from elastane.model.errors import InvalidInput
from elastane.model.job_spec import DistributionStrategy

RANGE = "N|MIN:MAX"

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name; `elastane jobs` lists them.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node's name, such as worker-0.")]
PodManagerOption = Annotated[bool, typer.Option(help="Launch and follow the workers.")]
TaskManagerOption = Annotated[bool, typer.Option(help="Lease shards of the data to the workers.")]
TrainingServiceOption = Annotated[
    bool | None,
    typer.Option(
        "--training-service/--no-training-service",
        help="Evaluate the model while it is trained; on where the job launches workers and has tasks.",
        show_default=False,
    ),
]
TaskFaultToleranceOption = Annotated[
    bool, typer.Option(help="Give a lost worker's shards to others at once, not by the task time-out.")
]
StrategyOption = Annotated[
    DistributionStrategy, typer.Option(help="How the workers' updates meet; ring-allreduce forms worlds of them.")
]
WorkerCommandOption = Annotated[
    str | None, typer.Option(help="What each worker runs, in place of a script.", metavar="COMMAND")
]
EventsOption = Annotated[
    Path | None, typer.Option(help="Append every event to this file, a JSON object a line.", metavar="FILE")
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        help="Serve metrics for Prometheus at this port of 127.0.0.1; 0 is any that is free. By default none.",
        min=0,
        max=65535,
        show_default=False,
    ),
]
TensorboardOption = Annotated[
    Path | None, typer.Option(help="Write scalars for TensorBoard into this folder.", metavar="FOLDER")
]
HeartbeatTimeoutOption = Annotated[float, typer.Option(help="Seconds of silence after which a worker is lost.")]
TaskTimeoutOption = Annotated[
    float, typer.Option(help="Least seconds without progress after which a worker is replaced.")
]
MaxTaskRetriesOption = Annotated[int, typer.Option(help="Tries of one shard before the job fails.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KubernetesOption = Annotated[
    bool, typer.Option("--kubernetes", "-k", help="A job on Kubernetes: in the cluster of KUBECONFIG.")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Its namespace, with --kubernetes; by default that of the kubeconfig's context.",
        metavar="NAMESPACE",
        show_default=False,
    ),
]
ProgressOption = Annotated[bool, typer.Option(help="Show a live view, if this is a terminal.")]
WarmStartOption = Annotated[
    bool, typer.Option(help="Fork workers from a process that has imported PyTorch, if the script does.")
]


def events_file(path: Path | None) -> Path | None:
    """The file of --events wherever the process goes; raises InvalidInput if it cannot be written."""
    if path is None:
        return None
    try:
        path.open("a").close()
    except OSError as error:
        raise InvalidInput(f'events: "{path}" cannot be written: {error.strerror}') from None
    return path.absolute()


def scalars_folder(path: Path | None) -> Path | None:
    """The folder of --tensorboard wherever the process goes; raises InvalidInput if it cannot be written into."""
    if path is None:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f'tensorboard: "{path}" cannot be made: {error.strerror}') from None
    if not os.access(path, os.W_OK):
        raise InvalidInput(f'tensorboard: "{path}" cannot be written into')
    return path.absolute()
