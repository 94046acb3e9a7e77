"""A job's sizing as people see it: what was observed, what was decided, and what another size would give."""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

from elastane.master.job_resource_optimizer import JobResourceOptimizer
from elastane.master.resource_optimizer import fitted
from elastane.model.errors import InvalidInput, RequestRefused
from elastane.model.sizing import Change, JobSize, Prediction, check_size
from elastane.rpc.protos import control_pb2 as pb

if TYPE_CHECKING:
    from elastane.core.throughput import ThroughputModel

MOST_WINDOWS = 50
"""How many of the newest windows are shown."""
LEAST_CURVE = 8
"""The curve is drawn for so many workers, or twice as many as were seen."""


async def explain(job: str, optimizer: JobResourceOptimizer) -> pb.SizingView:
    """All that is known of the job's size."""
    record, stats = optimizer.record, optimizer.stats
    now = optimizer.present_size()
    view = pb.SizingView(
        job=job,
        stage=record.stage,
        autoscaled=optimizer.acts,
        workers=now.workers,
        servers=now.ps,
        samples_per_s=0.0 if stats.last is None else stats.last.samples_per_s,
        line=[pb.SizingLine(at_s=line.at_s, text=line.text) for line in record.lines],
        next=await optimizer.would_do(),
    )
    for window in record.windows[-MOST_WINDOWS:]:
        view.window.add(
            at_s=window.at_s,
            workers=window.size.workers,
            servers=window.size.ps,
            samples_per_s=window.samples_per_s,
            step_s=window.step_s,
            input_wait_s=window.input_wait_s,
            pull_s=window.pull_s,
            push_s=window.push_s,
            sync_s=window.sync_s,
        )
    view.change.extend(_change(change) for change in record.changes[-MOST_WINDOWS:])
    for name, use in sorted(stats.use.items()):
        view.node.add(node=name, cpu=use.cpu, memory_bytes=use.memory_bytes, gpu_memory_bytes=use.gpu_memory_bytes)
    if record.windows:
        model = await asyncio.to_thread(fitted, optimizer.kind, list(record.windows), optimizer.local.history)
        view.model = ", ".join(f"{name} {value:.3g}" for name, value in model.coefficients)
        view.limit = model.limit(now)
        view.curve.extend(_curve(model, optimizer, now))
    return view


def _curve(model: ThroughputModel, optimizer: JobResourceOptimizer, now: JobSize) -> list[pb.SizePoint]:
    seen: dict[int, list[float]] = {}
    for window in optimizer.record.windows:
        if window.size.ps == now.ps:
            seen.setdefault(window.size.workers, []).append(window.samples_per_s)
    budget = optimizer.config().budget
    most = min(budget.max_workers, max(LEAST_CURVE, 2 * max([now.workers, *seen])))
    points = []
    for workers in range(1, most + 1):
        size = JobSize(workers, now.ps, now.worker_cpu, now.ps_cpu)
        point = _point(size, model.predict(size))
        point.observed = statistics.median(seen[workers]) if workers in seen else 0.0
        points.append(point)
    return points


def _change(change: Change) -> pb.ChangeView:
    return pb.ChangeView(
        at_s=change.at_s,
        workers_before=change.before.workers,
        servers_before=change.before.ps,
        workers=change.after.workers,
        servers=change.after.ps,
        predicted=change.predicted.samples_per_s,
        realised=change.realised_samples_per_s,
        cost_s=change.cost_s,
        rolled_back=change.rolled_back,
        reason=change.reason,
    )


async def predict(optimizer: JobResourceOptimizer, workers: int | None, servers: int | None) -> pb.SizePoint:
    """What a size would give. Raises RequestRefused if there cannot be such a size, or nothing is known yet."""
    now = optimizer.present_size()
    size = JobSize(
        now.workers if workers is None else workers, now.ps if servers is None else servers, now.worker_cpu, now.ps_cpu
    )
    try:
        check_size(size)
        plan = await optimizer.local.generate_resource_plan_with_optimizer(optimizer.config(size))
    except InvalidInput as error:
        raise RequestRefused(str(error)) from None
    point = pb.SizePoint(workers=size.workers, servers=size.ps)
    if plan.decision is not None:
        point = _point(size, plan.decision.prediction)
        point.observed = plan.decision.present_samples_per_s or 0.0
    point.reason = plan.reason
    return point


def _point(size: JobSize, predicted: Prediction) -> pb.SizePoint:
    return pb.SizePoint(
        workers=size.workers,
        servers=size.ps,
        samples_per_s=predicted.samples_per_s,
        low=predicted.low,
        high=predicted.high,
    )
