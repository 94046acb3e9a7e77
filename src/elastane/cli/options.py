"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
HeartbeatTimeoutOption = Annotated[float, typer.Option(help="Seconds of silence after which a worker is lost.")]
TaskTimeoutOption = Annotated[
    float, typer.Option(help="Least seconds without progress after which a worker is replaced.")
]
MaxTaskRetriesOption = Annotated[int, typer.Option(help="Tries of one shard before the job fails.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
