"""JobFacts: what is known of one job, from its statuses and its events. No I/O, no clock: times come with the facts.

It answers with a view: texts, rows and charts as the page shows them, so that they are written in one place.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from elastane.core.series import Series
from elastane.dashboard.marks import Marks
from elastane.dashboard.rows import dataset_rows, node_rows, plan_rows, server_rows, short
from elastane.dashboard.shown import NOTHING, count, duration, milliseconds, speed, visible, visible_all
from elastane.rpc.protos import control_pb2 as pb

MOST_METRICS = 8
MOST_NAME = 60
MARKS_SHOWN = 100
SAMPLE_EVERY_S = 1.0
STEPS_OVER_S = 5.0
"""Steps per second are those of the last so many seconds."""

ENDED = ("succeeded", "failed", "stopped")
_CHARTS = ("workers", "samples", "steps", "loss")

View = dict[str, Any]
Event = dict[str, Any]


def event_time(event: Event) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


class JobFacts:
    """Takes statuses and events of one job in their order, and remembers what its page shows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = pb.JobStatus(job=name, state="starting")
        self.sizing = pb.SizingView()
        self.series: dict[str, Series] = {name: Series() for name in _CHARTS}
        self.marks = Marks()
        self.heard_until = 0.0
        """The time of the newest event that was taken."""
        self._members: frozenset[str] = frozenset()
        self._unsettled: list[Any] = []
        """Marks of which the world that they lead to is not there yet."""
        self._sampled_at = 0.0
        self._steps: deque[tuple[float, int]] = deque()
        self._decided: list[Event] = []
        self._on: dict[str, Callable[[Event, float], None]] = {
            "scaled": self._scaled,
            "node_attended": self._attended,
            "node_leaving": self._leaving,
            "node_ended": self._ended,
            "world_settled": self._settled,
            "world_cost": self._cost,
            "evaluation_finished": self._evaluated,
            "sizing_decided": self._sized,
            "sizing_realised": self._realised,
        }

    # What is heard.

    def take_event(self, event: Event) -> None:
        """Take an event, unless it was taken before."""
        at = event_time(event)
        if at <= self.heard_until:
            return
        self.heard_until = at
        handler = self._on.get(event["kind"])
        if handler is not None:
            handler(event, at)

    def take_status(self, status: pb.JobStatus, now: float) -> None:
        """Take the job's state at this time."""
        self.status = status
        if status.state in ENDED:
            return
        if self._steps and status.steps < self._steps[-1][1]:
            self._steps.clear()  # They went back to an earlier state.
        self._steps.append((now, status.steps))
        while len(self._steps) > 2 and self._steps[0][0] < now - STEPS_OVER_S:
            self._steps.popleft()
        size = self.world_size
        known = self.series["workers"].last
        if known is None or known[1] != size:
            self.series["workers"].add(now, size)
        if now < self._sampled_at + SAMPLE_EVERY_S:
            return
        self._sampled_at = now
        self.series["workers"].add(now, size)
        self.series["samples"].add(now, status.samples_per_s)
        if status.steps:
            self.series["steps"].add(now, self.steps_per_s or 0.0)
        if status.HasField("loss"):
            self.series["loss"].add(now, status.loss)

    def take_history(self, view: pb.HistoryView) -> None:
        """Take what was before anybody looked, for the charts that have nothing yet."""
        for one in view.series:
            series = self.series.get(one.name)
            if series is not None and not len(series):
                for at, value in zip(one.at, one.value, strict=False):
                    series.add(at, value)

    def take_sizing(self, view: pb.SizingView) -> None:
        """Take all that is known of the job's size."""
        self.sizing = view

    @property
    def world_size(self) -> int:
        """How many workers train: the members of the world or, where they form none, those who are here."""
        if self.status.world_version:
            return self.status.world_size
        return sum(node.type == "worker" and node.attending for node in self.status.node)

    @property
    def steps_per_s(self) -> float | None:
        if len(self._steps) < 2 or not self.status.steps:
            return None
        (since, before), (now, steps) = self._steps[0], self._steps[-1]
        return (steps - before) / (now - since) if now > since else None

    # Events that mark the chart.

    def _mark(self, at: float, kind: str, text: str, node: str = "", version: int = 0) -> None:
        mark = self.marks.add(at, kind, text, node, version)
        if not version:
            self._unsettled = [*self._unsettled, mark][-50:]

    def _scaled(self, event: Event, at: float) -> None:
        if not event["before"]:
            return  # The job's beginning.
        role = "parameter servers" if event["role"] == "ps" else "workers"
        self._mark(at, "resize", f"{role} {event['before']} → {event['workers']}", str(event["workers"]))

    def _attended(self, event: Event, at: float) -> None:
        node = short(self.name, event["node"])
        if not event["resumed"] and not node.startswith("worker-"):
            self._mark(at, "join", f"{node} joined", event["node"])
        elif not event["resumed"] and not self.status.world_version and not self._members:
            # Whether it will be in a world is not known yet: if so, that says when it really was.
            self._mark(at, "join", f"{node} joined", event["node"])

    def _leaving(self, event: Event, at: float) -> None:
        node = short(self.name, event["node"])
        self._mark(at, "drain", f"{node} is {'killed' if event['at_once'] else 'drained'}", event["node"])

    def _ended(self, event: Event, at: float) -> None:
        if event["status"] == "failed" and not event["released"]:
            node = short(self.name, event["node"])
            self._mark(at, "crash", f"{node} ended: {event['reason']}", event["node"])

    def _settled(self, event: Event, at: float) -> None:
        members, before = frozenset(event["members"]), self._members
        self._members = members
        self.series["workers"].add(at, len(members))
        said = {mark.node for mark in self._unsettled if mark.kind == "join"}
        for mark in self._unsettled:
            if mark.kind == "resize":
                led_here = mark.node == str(len(members))
            elif mark.kind == "join":
                led_here = mark.node in members
            else:
                led_here = mark.node not in members
            if led_here:
                mark.version = event["version"]
        self._unsettled = [mark for mark in self._unsettled if not mark.version]
        for node in sorted(members - before - said):
            self._mark(at, "join", f"{short(self.name, node)} joined", node, event["version"])

    def _cost(self, event: Event, at: float) -> None:  # noqa: ARG002  # all are called alike
        self.marks.cost(event["first"], event["version"], event["stall_ms"])

    def _evaluated(self, event: Event, at: float) -> None:
        for name, value in sorted(event["metrics"].items()):
            if name.endswith("_error") or value is None:
                continue
            key = f"metric:{name[:MOST_NAME]}"
            if key not in self.series and len(self.series) >= len(_CHARTS) + MOST_METRICS:
                continue
            self.series.setdefault(key, Series()).add(at, value)

    def _sized(self, event: Event, at: float) -> None:
        self._decided = [*self._decided, {**event, "at": at, "realised": None}][-50:]

    def _realised(self, event: Event, at: float) -> None:  # noqa: ARG002
        size = (event["workers"], event["ps"])
        for plan in reversed(self._decided):
            if (plan["workers"], plan["ps"]) == size:
                plan["predicted"], plan["realised"] = event["predicted"], event["realised"]
                return

    # What is shown.

    def view(self) -> View:
        """The texts and rows of the page, all of them harmless text."""
        status = self.status
        view = {
            "text": self.texts(),
            "tables": {
                "nodes": node_rows(status),
                "servers": server_rows(status),
                "data": dataset_rows(status),
                "plans": plan_rows(self.sizing, self._decided),
                "marks": self._mark_rows(),
                "metrics": self._metric_rows(),
            },
        }
        shown: View = visible_all(view)
        return shown

    def chart_marks(self) -> list[dict[str, Any]]:
        """What is drawn into the chart of the world, oldest first."""
        return [
            {
                "at": round(mark.at, 3),
                "kind": mark.kind,
                "text": visible(mark.text),
                "stall": milliseconds(mark.stall_ms),
            }
            for mark in self.marks
        ]

    def texts(self) -> dict[str, str]:
        status = self.status
        loss = status.loss if status.HasField("loss") else None
        priced = next((mark for mark in reversed(list(self.marks)) if mark.stall_ms is not None), None)
        alive = status.state not in ENDED
        return {
            "state": status.state,
            "reason": status.reason,
            "elapsed": f"{'for' if alive else 'after'} {duration(status.elapsed_s)}",
            "workers": str(self.world_size if alive else 0),
            "workers_wanted": str(status.workers_wanted),
            "samples_per_s": speed(status.samples_per_s) if alive else NOTHING,
            "steps": self._steps_line(),
            "loss": NOTHING if loss is None else f"{loss:.4g}",
            "progress": _progress(status),
            "left": self._time_left(),
            "last_stall": NOTHING if priced is None else milliseconds(priced.stall_ms),
            "last_stall_text": self._no_stall() if priced is None else priced.text,
            "servers": _servers_line(status),
            "servers_wanted": str(status.servers.wanted) if status.HasField("servers") else "",
            "earlier": f"and {self.marks.dropped:,} before" if self.marks.dropped else "",
            "autoscaling": _autoscaling(status),
            "paused": "yes" if status.autoscaling_paused else "",
            "next": self.sizing.next,
        }

    def _steps_line(self) -> str:
        if not self.status.steps:
            return ""
        made = f"step {self.status.steps:,}"
        return made if self.steps_per_s is None else f"{speed(self.steps_per_s)} steps/s, {made}"

    def _no_stall(self) -> str:
        apart = not self.status.world_version and self.status.dataset
        return "each worker works for itself" if apart else "no change measured yet"

    def _time_left(self) -> str:
        status = self.status
        finite = [view for view in status.dataset if not view.endless]
        if status.state in ENDED or not status.samples_per_s or not finite or len(finite) < len(status.dataset):
            return ""
        left = sum(view.epoch_size * view.epochs - view.committed for view in finite)
        return f"about {duration(left / status.samples_per_s)} left"

    def _mark_rows(self) -> dict[str, View]:
        newest = list(self.marks)[-MARKS_SHOWN:]
        return {
            str(mark.number): {
                "at": round(mark.at, 3),
                "kind": mark.kind,
                "text": mark.text,
                "stall": milliseconds(mark.stall_ms),
            }
            for mark in reversed(newest)
        }

    def _metric_rows(self) -> dict[str, View]:
        evaluation = self.status.evaluation
        rows: dict[str, View] = {}
        for title, result in (("last", evaluation.last), ("best", evaluation.best)):
            if not evaluation.HasField(title):
                continue
            for name, value in sorted(result.metrics.items()):
                if name.endswith("_error"):
                    continue
                number = "nan" if math.isnan(value) else f"{value:.6g}"
                rows[f"{title}:{name}"] = {"which": title, "name": name, "value": number, "step": f"{result.step:,}"}
        return rows


def _progress(status: pb.JobStatus) -> str:
    if not status.dataset:
        return NOTHING
    if any(view.endless for view in status.dataset):
        return count(sum(view.committed for view in status.dataset))
    total = sum(view.epoch_size * view.epochs for view in status.dataset)
    done = sum(view.committed for view in status.dataset)
    return f"{100 * done / total:.0f}%" if total else "100%"


def _servers_line(status: pb.JobStatus) -> str:
    if not status.HasField("servers"):
        return ""
    view = status.servers
    moving = "every bucket is in its place" if view.settled else f"{view.moving:,} buckets are moving"
    return f"{view.wanted} wanted, {view.buckets:,} buckets; {moving}"


def _autoscaling(status: pb.JobStatus) -> str:
    if not status.autoscaled:
        return "sized by people"
    return "paused, keeps its size" if status.autoscaling_paused else "sizes itself"
