"""Finds a job of this user and speaks with its master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from google.protobuf.json_format import MessageToDict, ParseDict

from elastane.model.errors import RequestRefused
from elastane.model.evaluation import plain_metrics
from elastane.platform.local.registry import JobFolder
from elastane.rpc.channel import MasterChannel
from elastane.rpc.protos import control_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Control"]


class ControlClient:
    """Calls to one job's master."""

    def __init__(self, address: str, token: str) -> None:
        self._channel = MasterChannel(address, token)

    @classmethod
    def of(cls, folder: JobFolder) -> ControlClient:
        """Raises RequestRefused if the job has ended, or has only just been started."""
        if not folder.launcher_lives():
            raise RequestRefused(f'job "{folder.name}" has ended')
        record = folder.read()
        if not record.address:
            raise RequestRefused(f'job "{folder.name}" is starting; try again')
        return cls(record.address, record.token)

    async def status(self) -> pb.JobStatus:
        return await self._channel.call(_SERVICE, "GetStatus", pb.GetStatusRequest(), pb.JobStatus)

    def watch(self, status_interval_s: float) -> AsyncIterator[pb.WatchUpdate]:
        request = pb.WatchRequest(status_interval_s=status_interval_s)
        return self._channel.watch(_SERVICE, "Watch", request, pb.WatchUpdate)

    async def scale(self, workers: int | None, servers: int | None = None) -> None:
        await self._channel.call(_SERVICE, "Scale", pb.ScaleRequest(workers=workers, servers=servers), pb.Done)

    async def migrate(self, node: str, memory_bytes: int | None, cpu: float | None) -> None:
        request = pb.MigrateRequest(node=node, memory_bytes=memory_bytes, cpu=cpu)
        await self._channel.call(_SERVICE, "Migrate", request, pb.Done)

    async def save(self) -> None:
        await self._channel.call(_SERVICE, "Save", pb.SaveRequest(), pb.Done)

    async def explain(self) -> pb.SizingView:
        return await self._channel.call(_SERVICE, "Explain", pb.ExplainRequest(), pb.SizingView)

    async def predict(self, workers: int | None, servers: int | None) -> pb.SizePoint:
        request = pb.PredictRequest(workers=workers, servers=servers)
        return await self._channel.call(_SERVICE, "Predict", request, pb.SizePoint)

    async def drain(self, node: str) -> None:
        await self._channel.call(_SERVICE, "Drain", pb.DrainRequest(node=node), pb.Done)

    async def stop(self, *, at_once: bool) -> None:
        await self._channel.call(_SERVICE, "Stop", pb.StopRequest(at_once=at_once), pb.Done)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()


def last_status(end: dict[str, Any]) -> pb.JobStatus:
    """The status in a job's `end.json`."""
    return ParseDict(end["status"], pb.JobStatus())


def status_dict(status: pb.JobStatus) -> dict[str, Any]:
    """The status as `--json` prints it; 64-bit numbers come out as numbers, not as text."""
    plain: dict[str, Any] = MessageToDict(
        status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for view in plain["node"]:
        view["committed_samples"] = int(view["committed_samples"])
        view.setdefault("rank", None)
    for view in plain["dataset"]:
        for key in ("epoch_size", "epoch_committed", "committed"):
            view[key] = int(view[key])
    plain["steps"] = int(plain["steps"])
    plain["evaluation"] = _evaluation_dict(status.evaluation) if status.HasField("evaluation") else None
    plain["servers"] = _servers_dict(status.servers) if status.HasField("servers") else None
    plain["world"] = {"version": int(plain.pop("world_version")), "size": plain.pop("world_size")}
    plain["nodes"], plain["datasets"] = plain.pop("node"), plain.pop("dataset")
    return plain


def _servers_dict(view: pb.ServersView) -> dict[str, Any]:
    return {
        "wanted": view.wanted,
        "version": view.version,
        "settled": view.settled,
        "buckets": view.buckets,
        "moving": view.moving,
        "checkpoint": view.checkpoint or None,
        "nodes": [
            {
                "node": server.node,
                "buckets": server.buckets,
                "backups": server.backups,
                "memory_bytes": server.memory_bytes,
                "rows_per_s": server.rows_per_s,
                "leaving": server.leaving,
            }
            for server in view.server
        ],
        "tables": [{"name": table.name, "rows": table.rows, "bytes": table.bytes} for table in view.table],
    }


def _evaluation_dict(view: pb.EvaluationView) -> dict[str, Any]:
    def result(name: str) -> dict[str, Any] | None:
        found: pb.VersionResult = getattr(view, name)
        return {"step": found.step, "metrics": plain_metrics(found.metrics)} if view.HasField(name) else None

    return {
        "running": view.running if view.HasField("running") else None,
        "committed": view.committed,
        "size": view.size,
        "last": result("last"),
        "best": result("best"),
        "goal": view.goal,
    }
