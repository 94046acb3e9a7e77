"""What `elastane run` shows: a live view on a terminal, plain lines on a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastane.cli.lines import dataset_progress, evaluation_lines, event_line, progress_line
from elastane.rpc.protos import control_pb2 as pb

_EVENTS_SHOWN = 8
_NODES_SHOWN = 16
_PROGRESS_EVERY_S = 5.0

_STATUS_STYLE = {"running": "green", "failed": "red", "succeeded": "blue", "deleted": "dim"}


class View(Protocol):
    """Shows a job while it runs."""

    def update(self, update: pb.WatchUpdate) -> None: ...

    def output(self, node: str, line: str) -> None:
        """A line that a node printed."""

    def note(self, text: str) -> None:
        """A word from the launcher itself."""

    def close(self) -> None: ...


def say(text: str) -> None:
    """Print a line; a reader that has gone away (`| head`) or a full disk does not end the job."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class PlainView:
    """Lines, each complete when it is written, for pipes and files."""

    def __init__(self) -> None:
        self._last_progress = time.monotonic()

    def update(self, update: pb.WatchUpdate) -> None:
        elapsed = update.status.elapsed_s
        for record in update.event:
            say(f"{elapsed:7.1f}s  {event_line(record.json)}")
        if time.monotonic() - self._last_progress >= _PROGRESS_EVERY_S:
            self._last_progress = time.monotonic()
            say(f"{elapsed:7.1f}s  {progress_line(update.status)}")

    def output(self, node: str, line: str) -> None:
        say(f"[{node}] {line}")

    def note(self, text: str) -> None:
        say(text)

    def close(self) -> None:
        return


class LiveView:
    """A view that is drawn anew in place, with the nodes' own output scrolling by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._live = Live(Text("starting"), console=console, auto_refresh=False, redirect_stdout=False)
        self._live.start()

    def update(self, update: pb.WatchUpdate) -> None:
        for record in update.event:
            self._events.append(f"{update.status.elapsed_s:7.1f}s  {event_line(record.json)}")
        self._live.update(self._render(update.status), refresh=True)

    def output(self, node: str, line: str) -> None:
        self._console.print(Text.assemble((f"[{node}] ", "cyan"), line))

    def note(self, text: str) -> None:
        self._console.print(Text(text, style="yellow"))

    def close(self) -> None:
        self._live.stop()

    def _render(self, status: pb.JobStatus) -> RenderableType:
        parts: list[RenderableType] = [
            Text(f"{status.job}: {status.state}, {status.elapsed_s:.0f} s", style="bold"),
            Text(progress_line(status), no_wrap=True, overflow="ellipsis"),
        ]
        for view in status.dataset[-1:]:
            if not view.endless:
                bar = Table.grid()  # A bar by itself does not end its line.
                bar.add_row(ProgressBar(total=view.epoch_size * view.epochs or 1, completed=view.committed, width=78))
                parts.append(bar)
        parts += [nodes_table(status), *(Text(line, style="dim", no_wrap=True) for line in self._events)]
        return Group(*parts)


def nodes_table(status: pb.JobStatus, most: int = _NODES_SHOWN) -> Table:
    """The nodes, the living ones first; those past `most` are only counted."""
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "rank", "status", "pid", "restarts", "samples", "exit"):
        table.add_column(heading, no_wrap=True)
    ended = ("succeeded", "failed", "deleted")
    ordered = sorted(status.node, key=lambda node: (node.status in ended, node.type != "worker", node.id))
    for node in ordered[:most]:
        state = "leaving" if node.leaving else node.status
        table.add_row(
            node.name.removeprefix(f"{status.job}-"),
            str(node.rank) if node.HasField("rank") else "",
            Text(state, style=_STATUS_STYLE.get(state, "yellow")),
            str(node.pid or ""),
            str(node.restarts),
            f"{node.committed_samples:,}",
            node.exit_reason,
        )
    if len(ordered) > most:
        table.add_row(f"and {len(ordered) - most} more")
    return table


def status_report(status: pb.JobStatus) -> RenderableType:
    """All of a status, for `elastane status`."""
    lines: list[RenderableType] = [Text(f"{status.job}: {status.state}, {status.elapsed_s:.0f} s")]
    if status.reason:
        lines.append(Text(status.reason, style="red"))
    lines.append(Text(progress_line(status)))
    lines += [Text(dataset_progress(view)) for view in status.dataset[:-1]]
    lines += [Text(line) for line in evaluation_lines(status.evaluation)]
    lines.append(nodes_table(status, most=len(status.node)))
    if status.HasField("servers"):
        lines += servers_report(status)
    return Group(*lines)


def servers_report(status: pb.JobStatus) -> list[RenderableType]:
    """The parameter servers: their buckets, their memory, and that of each table."""
    view = status.servers
    state = "settled" if view.settled else f"{view.moving} buckets are moving"
    text = f"parameter servers: {view.wanted} wanted, {view.buckets:,} buckets, version {view.version}, {state}"
    servers, tables = Table(box=None, pad_edge=False), Table(box=None, pad_edge=False)
    for heading in ("server", "buckets", "backups", "memory", "rows/s"):
        servers.add_column(heading, no_wrap=True)
    for server in view.server:
        servers.add_row(
            server.node.removeprefix(f"{status.job}-") + (" (leaving)" if server.leaving else ""),
            f"{server.buckets:,}",
            f"{server.backups:,}",
            f"{server.memory_bytes / 2**20:,.0f} MiB",
            f"{server.rows_per_s:,.0f}",
        )
    for heading in ("table", "rows", "memory"):
        tables.add_column(heading, no_wrap=True)
    for table in view.table:
        tables.add_row(table.name, f"{table.rows:,}", f"{table.bytes / 2**20:,.1f} MiB")
    return [Text(text), servers, *([tables] if view.table else [])]
