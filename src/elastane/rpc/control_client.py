"""ControlClient: what a person, or a program in a person's place, asks of a job's master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from elastane.rpc.channel import MasterChannel
from elastane.rpc.protos import control_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Control"]


class ControlClient:
    """Calls to one job's master. Raises RequestRefused, MalformedMessage, MasterUnreachable."""

    def __init__(self, address: str, token: str, certificate: str | None = None) -> None:
        self._channel = MasterChannel(address, token, certificate)

    async def status(self) -> pb.JobStatus:
        return await self._channel.call(_SERVICE, "GetStatus", pb.GetStatusRequest(), pb.JobStatus)

    def watch(self, status_interval_s: float) -> AsyncIterator[pb.WatchUpdate]:
        request = pb.WatchRequest(status_interval_s=status_interval_s)
        return self._channel.watch(_SERVICE, "Watch", request, pb.WatchUpdate)

    async def history(self) -> pb.HistoryView:
        return await self._channel.call(_SERVICE, "GetHistory", pb.GetHistoryRequest(), pb.HistoryView)

    async def scale(self, workers: int | None, servers: int | None = None) -> None:
        await self._channel.call(_SERVICE, "Scale", pb.ScaleRequest(workers=workers, servers=servers), pb.Done)

    async def apply(self, plan: pb.ApplyRequest) -> None:
        await self._channel.call(_SERVICE, "Apply", plan, pb.Done)

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

    async def pause_autoscaling(self, *, paused: bool) -> None:
        request = pb.PauseAutoscalingRequest(paused=paused)
        await self._channel.call(_SERVICE, "PauseAutoscaling", request, pb.Done)

    async def drain(self, node: str) -> None:
        await self._channel.call(_SERVICE, "Drain", pb.DrainRequest(node=node), pb.Done)

    async def stop(self, *, at_once: bool) -> None:
        await self._channel.call(_SERVICE, "Stop", pb.StopRequest(at_once=at_once), pb.Done)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()
