"""A master's status: as the views of a client, and as the plain values of `--json`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from elastane.client.views import (
    DatasetView,
    EvaluationView,
    JobState,
    JobView,
    NodeView,
    ServersView,
    ServerView,
    TableView,
    VersionView,
)
from elastane.model.evaluation import plain_metrics
from elastane.rpc.protos import control_pb2 as pb


def last_status(end: dict[str, Any]) -> pb.JobStatus:
    """The status in a job's `end.json`."""
    return ParseDict(end["status"], pb.JobStatus())


def job_view(status: pb.JobStatus) -> JobView:
    """A local job, as its master tells of it."""
    return JobView(
        name=status.job,
        state=JobState(status.state),
        reason=status.reason,
        elapsed_s=status.elapsed_s,
        nodes=tuple(_node_view(view) for view in status.node),
        workers_wanted=status.workers_wanted,
        world_version=status.world_version,
        world_size=status.world_size,
        steps=status.steps,
        loss=_loss(status),
        samples_per_s=status.samples_per_s,
        datasets=tuple(_dataset_view(view) for view in status.dataset),
        evaluation=_evaluation_view(status.evaluation) if status.HasField("evaluation") else None,
        servers=_servers_view(status.servers) if status.HasField("servers") else None,
        message=status,
    )


def _loss(status: pb.JobStatus) -> float | None:
    return status.loss if status.HasField("loss") and math.isfinite(status.loss) else None


def _node_view(view: pb.NodeView) -> NodeView:
    return NodeView(
        name=view.name,
        role=view.type,
        id=view.id,
        status=view.status,
        reason=view.exit_reason,
        restarts=view.restarts,
        leaving=view.leaving,
        rank=view.rank if view.HasField("rank") else None,
        slot=view.slot,
        pid=view.pid or None,
        attending=view.attending,
        committed_samples=view.committed_samples,
        cpu=view.cpu,
        memory_bytes=view.memory_bytes,
        cpu_limit=view.cpu_limit or None,
        memory_limit_bytes=view.memory_limit_bytes or None,
    )


def _dataset_view(view: pb.DatasetView) -> DatasetView:
    return DatasetView(
        name=view.name,
        endless=view.endless,
        epoch_size=view.epoch_size,
        epochs=view.epochs,
        epoch=view.epoch,
        epoch_committed=view.epoch_committed,
        committed=view.committed,
        leased_shards=view.leased_shards,
        retried_shards=view.retried_shards,
        finished=view.finished,
    )


def _evaluation_view(view: pb.EvaluationView) -> EvaluationView:
    def version(name: str) -> VersionView | None:
        found: pb.VersionResult = getattr(view, name)
        return VersionView(found.step, plain_metrics(found.metrics)) if view.HasField(name) else None

    return EvaluationView(
        running=view.running if view.HasField("running") else None,
        committed=view.committed,
        size=view.size,
        last=version("last"),
        best=version("best"),
        goal=view.goal,
    )


def _servers_view(view: pb.ServersView) -> ServersView:
    return ServersView(
        wanted=view.wanted,
        version=view.version,
        settled=view.settled,
        buckets=view.buckets,
        moving=view.moving,
        checkpoint=view.checkpoint or None,
        nodes=tuple(
            ServerView(
                node=server.node,
                buckets=server.buckets,
                backups=server.backups,
                memory_bytes=server.memory_bytes,
                rows_per_s=server.rows_per_s,
                leaving=server.leaving,
            )
            for server in view.server
        ),
        tables=tuple(TableView(table.name, table.rows, table.bytes) for table in view.table),
    )


def status_dict(status: pb.JobStatus) -> dict[str, Any]:
    """The status as `--json` prints it; 64-bit numbers come out as numbers, not as text."""
    plain: dict[str, Any] = MessageToDict(
        status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for view in plain["node"]:
        view["committed_samples"] = int(view["committed_samples"])
        view.setdefault("rank", None)
        for key in ("memory_bytes", "memory_limit_bytes"):
            view[key] = int(view[key])
    for view in plain["dataset"]:
        for key in ("epoch_size", "epoch_committed", "committed"):
            view[key] = int(view[key])
    plain["steps"] = int(plain["steps"])
    plain["loss"] = _loss(status)
    plain["evaluation"] = asdict(_evaluation_view(status.evaluation)) if status.HasField("evaluation") else None
    plain["servers"] = asdict(_servers_view(status.servers)) if status.HasField("servers") else None
    plain["world"] = {"version": int(plain.pop("world_version")), "size": plain.pop("world_size")}
    plain["nodes"], plain["datasets"] = plain.pop("node"), plain.pop("dataset")
    return plain
