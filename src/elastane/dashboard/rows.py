"""The rows of the page's tables. Each has a key, which stays the same as long as it is about the same thing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastane.dashboard.shown import NOTHING, count, duration, size, speed
from elastane.rpc.protos import control_pb2 as pb

ENDED_SHOWN = 100
"""Of nodes that have ended, the newest so many are shown."""

NOT_PLANNED = "not by a plan"
"""How the reason of a change ends that people made, or the loss of a node."""

Row = dict[str, Any]
Rows = dict[str, Row]

_ENDED = ("succeeded", "failed", "deleted")
_ORDER = {"worker": 0, "evaluator": 1, "ps": 2}


def short(job: str, node: str) -> str:
    """`worker-3` of `JOB-worker-3`."""
    return node.removeprefix(f"{job}-")


def node_rows(status: pb.JobStatus) -> Rows:
    """The nodes, those that live first."""
    living = [node for node in status.node if node.status not in _ENDED]
    ended = [node for node in status.node if node.status in _ENDED]
    living.sort(key=lambda node: (_ORDER.get(node.type, 3), node.id))
    ended = sorted(ended, key=lambda node: (-node.id, node.type))[:ENDED_SHOWN]
    return {node.name: _node_row(status, node) for node in (*living, *ended)}


def _node_row(status: pb.JobStatus, node: pb.NodeView) -> Row:
    alive = node.status not in _ENDED
    state = "leaving" if node.leaving else node.status
    if state == "running" and not node.attending:
        state = "starting"
    limit = node.memory_limit_bytes
    memory = NOTHING
    if alive and node.memory_bytes:
        memory = size(node.memory_bytes) + (f" of {size(limit)}" if limit else "")
    cpu = NOTHING
    if alive and node.memory_bytes:
        cpu = f"{node.cpu:.1f}" + (f" of {node.cpu_limit:g}" if node.cpu_limit else "")
    return {
        "name": short(status.job, node.name),
        "role": "chief" if node.type == "worker" and node.slot == 0 else node.type,
        "state": state,
        "rank": str(node.rank) if node.HasField("rank") else NOTHING,
        "cpu": cpu,
        "memory": memory,
        "memory_share": round(node.memory_bytes / limit, 3) if alive and limit else 0,
        "restarts": str(node.restarts),
        "samples": count(node.committed_samples) if node.committed_samples else NOTHING,
        "exit": node.exit_reason or ("" if alive else NOTHING),
        "drains": alive and not node.leaving and status.state == "running",
    }


def server_rows(status: pb.JobStatus) -> Rows:
    """The parameter servers, with how much each has to do."""
    servers = status.servers.server
    most = max((server.rows_per_s for server in servers), default=0.0)
    return {
        server.node: {
            "name": short(status.job, server.node),
            "state": "leaving" if server.leaving else "serves",
            "buckets": f"{server.buckets:,}",
            "backups": f"{server.backups:,}",
            "memory": size(server.memory_bytes),
            "load": f"{count(server.rows_per_s)} rows/s",
            "load_share": round(server.rows_per_s / most, 3) if most else 0,
        }
        for server in servers
    }


def dataset_rows(status: pb.JobStatus) -> Rows:
    """Where the job is in its data."""
    rows = {}
    for view in status.dataset:
        total = view.epoch_size * view.epochs
        epoch = f"{min(view.epoch + 1, view.epochs)} of {view.epochs}"
        rows[view.name] = {
            "name": view.name,
            "epoch": NOTHING if view.endless else epoch,
            "committed": count(view.committed) if view.endless else f"{count(view.committed)} of {count(total)}",
            "share": 0 if view.endless or not total else round(view.committed / total, 4),
            "leased": count(view.leased_shards),
            "retried": count(view.retried_shards),
            "state": "finished" if view.finished else "endless" if view.endless else "in work",
        }
    return rows


def plan_rows(sizing: pb.SizingView, decided: Sequence[dict[str, Any]]) -> Rows:
    """Every resource plan, newest first: by the master's word on them, else by the events of them."""
    rows: Rows = {}
    for number, change in enumerate(sizing.change):
        realised = change.realised if change.HasField("realised") else None
        by_people = change.reason.endswith(NOT_PLANNED)
        verdict = "taken back" if change.rolled_back else _verdict(change.predicted, realised)
        rows[f"change-{number}-{change.at_s:.3f}"] = {
            "at": f"after {duration(change.at_s)}",
            "size": _size(change.workers_before, change.servers_before, change.workers, change.servers),
            "reason": change.reason,
            "predicted": NOTHING if by_people else speed(change.predicted),
            "realised": speed(realised),
            "cost": NOTHING if by_people else f"{change.cost_s:.1f} s",
            "verdict": "" if by_people else verdict,
        }
    known = {change.reason for change in sizing.change}
    for plan in decided:
        if plan["line"] in known:
            continue
        realised = plan["realised"]
        rows[f"plan-{plan['at']}"] = {
            "at": plan["stage"],
            "size": _size(plan["workers"], plan["ps"], plan["workers"], plan["ps"]),
            "reason": plan["line"],
            "predicted": speed(plan.get("predicted")),
            "realised": speed(realised),
            "cost": NOTHING,
            "verdict": _verdict(plan.get("predicted"), realised),
        }
    return dict(reversed(rows.items()))


def _size(workers_before: int, servers_before: int, workers: int, servers: int) -> str:
    def step(before: int, after: int) -> str:
        return str(after) if before == after else f"{before} → {after}"

    return f"{step(workers_before, workers)} workers" + (f", {step(servers_before, servers)} PS" if servers else "")


def _verdict(predicted: float | None, realised: float | None) -> str:
    if not predicted or realised is None:
        return "being measured"
    return f"{100 * (realised / predicted - 1):+.0f}% against the plan"
