"""What the commands show of jobs on Kubernetes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from elastane.client.cluster import ClusterJob

_STATUS_STYLE = {"running": "green", "failed": "red", "succeeded": "blue", "leaving": "yellow"}
_NAMES = {"master": "masters", "ps": "parameter servers", "worker": "workers", "evaluator": "evaluators"}
_WORDS = {"pending": "pending", "active": "running", "succeeded": "done", "failed": "failed"}


def show(found: RenderableType) -> None:
    """Print it; on a pipe, in lines that are long enough."""
    (Console() if sys.stdout.isatty() else Console(width=200)).print(found)


def jobs_table(jobs: Sequence[ClusterJob]) -> Table:
    """A line for each job."""
    table = Table(box=None, pad_edge=False)
    for heading in ("job", "state", "workers", "ps", "restarts", "age"):
        table.add_column(heading, no_wrap=True)
    for job in jobs:
        running = {role: str(counts["active"]) for role, counts in job.counts.items()}
        restarts = str(job.restarts["counted"])
        table.add_row(
            job.name, job.phase, running.get("worker", "0"), running.get("ps", "0"), restarts, age_text(job.age_s)
        )
    return table


def job_report(job: ClusterJob) -> RenderableType:
    """All of a job, for `elastane status --kubernetes`."""
    lines: list[RenderableType] = [Text(f"{job.name}: {job.phase}, {age_text(job.age_s)}")]
    if job.reason:
        lines.append(Text(job.reason, style="red" if job.phase == "Failed" else ""))
    if (restarts := job.restarts)["counted"] or restarts["ignored"]:
        lines.append(Text(f"restarts: {restarts['counted']} counted, {restarts['ignored']} ignored"))
    lines += [_conditions(job), _counts(job), _pods(job)]
    return Group(*(line for line in lines if not isinstance(line, Table) or line.row_count))


def job_dict(job: ClusterJob, *, pods: bool) -> dict[str, Any]:
    """A job as `--json` prints it; the pods only of one whose status was asked for."""
    plain = {
        "job": job.name,
        "namespace": job.namespace,
        "state": job.phase,
        "reason": job.reason,
        "age_s": job.age_s,
        "conditions": [dict(condition) for condition in job.conditions],
        "roles": job.counts,
        "restarts": job.restarts,
    }
    return {**plain, "nodes": [asdict(pod) for pod in job.pods]} if pods else plain


def counts_line(job: ClusterJob) -> str:
    """How many pods there are of each role, for a job that is followed; empty if there are none."""
    parts = []
    for role, counts in job.counts.items():
        words = [f"{count} {_WORDS[kind]}" for kind, count in counts.items() if count]
        if role != "master" and words:
            parts.append(f"{_NAMES[role]}: {', '.join(words)}")
    return "; ".join(parts)


def age_text(seconds: float) -> str:
    """An age in its two largest units."""
    for length, unit, part, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} {int(seconds % length // part)} {smaller}"
    return f"{int(seconds)} s"


def _conditions(job: ClusterJob) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("condition", "status", "reason", "since"):
        table.add_column(heading, no_wrap=True)
    table.add_column("message")
    for found in job.conditions:
        since = found.get("lastTransitionTime") or ""
        table.add_row(found["type"], found["status"], found.get("reason", ""), since, Text(found.get("message", "")))
    return table


def _counts(job: ClusterJob) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("role", *_WORDS.values()):
        table.add_column(heading, no_wrap=True)
    for role, counts in job.counts.items():
        table.add_row(role, *(str(counts[kind]) for kind in _WORDS))
    return table


def _pods(job: ClusterJob) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "role", "status", "restarts", "age", "reason"):
        table.add_column(heading, no_wrap=True)
    for pod in job.pods:
        status = Text(pod.status, style=_STATUS_STYLE.get(pod.status, "yellow"))
        name = pod.name.removeprefix(f"{job.name}-")
        table.add_row(name, pod.role, status, str(pod.restarts), age_text(pod.age_s), pod.reason)
    return table
