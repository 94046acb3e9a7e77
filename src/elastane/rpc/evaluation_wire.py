"""The messages of evaluation to nouns and back, with every value checked on the way in."""

from __future__ import annotations

from elastane.model.errors import InvalidInput, MalformedMessage
from elastane.model.evaluation import EvaluateShard, EvaluationSpec, ExportVersion, Goal, MergeStates, Work
from elastane.model.ids import DatasetName, TaskId
from elastane.rpc.protos import node_pb2 as pb
from elastane.rpc.wire import MOST_TEXT

MOST_STATE = 2**20
"""The largest state of all metrics of one shard, in bytes. Several fit into one message, for they are merged there."""


def evaluation_to_wire(spec: EvaluationSpec) -> pb.DefineEvaluation:
    return pb.DefineEvaluation(
        size=spec.size,
        shard_size=spec.shard_size,
        metric=spec.metrics,
        every_steps=spec.every_steps,
        every_s=spec.every_s,
        at_end=spec.at_end,
        best=None if spec.best is None else str(spec.best),
        early_stop=spec.early_stop,
        export_folder=spec.export,
    )


def evaluation_from_wire(message: pb.DefineEvaluation) -> EvaluationSpec:
    """Raises InvalidInput for values that no evaluation can have."""
    return EvaluationSpec(
        size=message.size,
        shard_size=message.shard_size,
        metrics=tuple(message.metric),
        every_steps=message.every_steps if message.HasField("every_steps") else None,
        every_s=message.every_s if message.HasField("every_s") else None,
        at_end=message.at_end,
        best=Goal.parse(message.best) if message.HasField("best") else None,
        early_stop=message.early_stop if message.HasField("early_stop") else None,
        export=message.export_folder if message.HasField("export_folder") else None,
    )


def work_to_wire(work: Work) -> pb.MasterMessage:
    told = pb.RunTask(dataset=work.dataset, task=work.task)
    match work.what:
        case EvaluateShard(file, start, end):
            told.evaluate.CopyFrom(pb.EvaluateShard(file=file, start=start, end=end))
        case MergeStates(states):
            told.merge.CopyFrom(pb.MergeStates(state=states))
        case ExportVersion(file, folder, text):
            told.export.CopyFrom(pb.ExportVersion(file=file, folder=folder, json=text))
    return pb.MasterMessage(run_task=told)


def work_from_wire(message: pb.RunTask) -> Work:
    """Raises MalformedMessage without anything to do, or with a shard of no samples."""
    what: EvaluateShard | MergeStates | ExportVersion
    match message.WhichOneof("work"):
        case "evaluate":
            shard = message.evaluate
            if shard.start >= shard.end:
                raise MalformedMessage(f"an evaluation of no samples: {shard.start} to {shard.end}")
            what = EvaluateShard(shard.file, shard.start, shard.end)
        case "merge":
            what = MergeStates(tuple(message.merge.state))
        case "export":
            what = ExportVersion(message.export.file, message.export.folder, message.export.json)
        case None:
            raise MalformedMessage("a task without anything to do")
    return Work(DatasetName(message.dataset), TaskId(message.task), what)


def check_state(state: str) -> None:
    """Raises InvalidInput for metrics whose state is too large to travel."""
    if len(state) > MOST_STATE:
        raise InvalidInput(f"evaluate: the metrics' state has {len(state)} characters, above {MOST_STATE}")


def checked_task_done(message: pb.TaskDone) -> pb.TaskDone:
    if len(message.state) > MOST_STATE:
        raise MalformedMessage(f"a state of {len(message.state)} characters; at most {MOST_STATE} are allowed")
    return message


def checked_version(message: pb.VersionWritten) -> pb.VersionWritten:
    if len(message.error) > MOST_TEXT:
        raise MalformedMessage(f"an error text of {len(message.error)} characters; at most {MOST_TEXT} are allowed")
    return message
