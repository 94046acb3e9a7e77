"""`elastane explain` and `elastane plan`: why a job has the size it has, and what another would give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict, ParseDict

from elastane.cli.options import JobArgument, JsonOption
from elastane.client.local_place import control_of
from elastane.model.errors import InvalidInput, RequestRefused
from elastane.platform.local.registry import JobFolder
from elastane.rpc.protos import control_pb2 as pb

WIDTH = 48
"""Columns of the plot."""


def sizing_commands(app: typer.Typer) -> None:
    """Add the commands to `elastane`."""
    app.command()(explain)
    app.command()(plan)


def explain(job: JobArgument, as_json: JsonOption = False) -> None:
    """Say why a job has its size: what was observed, the curve fitted to it, each decision, and what would be next."""
    view = asyncio.run(_view(JobFolder.find(job)))
    if as_json:
        print(json.dumps(MessageToDict(view, preserving_proto_field_name=True)))
        return
    for line in explanation(view):
        print(line)


def plan(
    job: JobArgument,
    workers: Annotated[
        int | None, typer.Option(help="With so many workers.", min=1, max=10_000, show_default=False)
    ] = None,
    ps: Annotated[
        int | None, typer.Option(help="With so many parameter servers.", min=0, max=1000, show_default=False)
    ] = None,
) -> None:
    """Predict what a running job would do at another size; nothing is changed."""
    if workers is None and ps is None:
        raise InvalidInput("plan: say --workers, or --ps, or both")
    found = asyncio.run(_predict(JobFolder.find(job), workers, ps))
    print(prediction_line(found))


async def _view(folder: JobFolder) -> pb.SizingView:
    """From the master if it lives, else as it was at the job's end."""
    end = folder.read_end()
    if end is None:
        async with control_of(folder) as client:
            return await client.explain()
    if "sizing" not in end:
        raise RequestRefused(f'job "{folder.name}" has ended, and nothing is known of its size')
    return ParseDict(end["sizing"], pb.SizingView())


async def _predict(folder: JobFolder, workers: int | None, servers: int | None) -> pb.SizePoint:
    async with control_of(folder) as client:
        return await client.predict(workers, servers)


def prediction_line(point: pb.SizePoint) -> str:
    """One line that a person can check."""
    now = point.observed
    change = f", {100 * (point.samples_per_s / now - 1):+.0f}% against {_speed(now)} now" if now else ""
    return (
        f"{_speed(point.samples_per_s)} samples/s ({_speed(point.low)} to {_speed(point.high)}){change}; {point.reason}"
    )


def explanation(view: pb.SizingView) -> list[str]:
    """The whole story of a job's size, as lines."""
    sized = f"{view.workers} workers" + (f", {view.servers} parameter servers" if view.servers else "")
    by = f"sizes itself (stage {view.stage})" if view.autoscaled else "keeps the size that people give it"
    lines = [f"{view.job}: {sized}, {_speed(view.samples_per_s)} samples/s; it {by}", ""]
    lines += ["observed", *_table(view.window), ""]
    if view.curve:
        lines += [f"samples/s by workers{_with(view.servers)} (* observed, o predicted)", *plot(view.curve)]
        lines += [f"model: {view.model}; {view.limit}", ""]
    lines += ["decided", *(f"  {line.at_s:7.1f} s  {line.text}" for line in view.line)]
    if not view.line:
        lines.append("  nothing")
    lines += ["", "nodes"]
    for node in view.node:
        gpu = f", {node.gpu_memory_bytes >> 20} MiB of its GPU" if node.gpu_memory_bytes else ""
        lines.append(f"  {node.node}: {node.cpu:.2f} cores, {node.memory_bytes >> 20} MiB{gpu}")
    lines += ["", f"next: {view.next}"]
    return lines


def plot(curve: Sequence[pb.SizePoint]) -> list[str]:
    """A bar a size: its interval, with the prediction and what was observed in it."""
    most = max(max(point.samples_per_s, point.observed) for point in curve) or 1.0

    def column(value: float) -> int:
        return min(WIDTH - 1, round(value / most * (WIDTH - 1)))

    lines = []
    for point in curve:
        row = [" "] * WIDTH
        for place in range(column(point.low), column(point.high) + 1):
            row[place] = "-"
        row[column(point.samples_per_s)] = "o"
        if point.observed:
            row[column(point.observed)] = "*"
        seen = f", {_speed(point.observed)} observed" if point.observed else ""
        lines.append(f"  {point.workers:4d} |{''.join(row)}| {_speed(point.samples_per_s)}{seen}")
    return lines


def _table(windows: Sequence[pb.WindowView]) -> list[str]:
    if not windows:
        return ["  nothing yet"]
    lines = ["       at  workers  ps  samples/s   step ms  input  pull  push  sync"]
    for window in windows:
        parts = (window.input_wait_s, window.pull_s, window.push_s, window.sync_s)
        shares = "".join(f"{100 * part / window.step_s:5.0f}%" for part in parts)
        lines.append(
            f"  {window.at_s:5.0f} s {window.workers:8d} {window.servers:3d} {_speed(window.samples_per_s):>10s} "
            f"{1000 * window.step_s:9.2f} {shares}"
        )
    return lines


def _with(servers: int) -> str:
    return f", with {servers} parameter servers" if servers else ""


def _speed(samples_per_s: float) -> str:
    return f"{samples_per_s / 1000:.1f}k" if samples_per_s >= 10_000 else f"{samples_per_s:,.0f}"
