"""Events and statuses as lines for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from elastane.rpc.protos import control_pb2 as pb

Fields = dict[str, Any]


def _short(name: object) -> str:
    """`worker-3` of `JOB-worker-3`."""
    return "-".join(str(name).rsplit("-", 2)[-2:])


def _node_launched(event: Fields) -> str:
    again = f" (restart {event['restarts']})" if event["restarts"] else ""
    memory = f" with {event['memory']}" if event["memory"] else ""
    return f"{_short(event['node'])} launched{memory}{again}"


def _node_ended(event: Fields) -> str:
    how = "left" if event["released"] else f"ended: {event['reason']}"
    code = f" (exit code {event['code']})" if event["code"] else ""
    return f"{_short(event['node'])} {how}{code}"


def _node_leaving(event: Fields) -> str:
    return f"{_short(event['node'])} {'is killed' if event['at_once'] else 'is asked to leave'}"


def _dataset_defined(event: Fields) -> str:
    size = "an endless stream" if event["size"] is None else f"{event['size']:,} samples"
    order = f"shuffled by seed {event['seed']}" if event["shuffle"] else "in order"
    return f"{event['dataset']}: {size}, epochs: {event['epochs']}, {order}"


def _shard_returned(event: Fields) -> str:
    why = f" ({event['error']})" if event["error"] else ""
    return (
        f"{event['dataset']} samples {event['start']}..{event['end'] - 1} come back from {_short(event['node'])}{why}"
    )


def _servers_published(event: Fields) -> str:
    state = "have all buckets" if event["settled"] else "serve"
    return f"parameter servers {', '.join(map(str, event['servers']))} {state} (version {event['version']})"


def _size(event: Fields) -> str:
    servers = f", {event['ps']} PS" if event["ps"] else ""
    return f"{event['workers']} workers{servers}"


_LINES: dict[str, Callable[[Fields], str]] = {
    "job_started": lambda event: f"job {event['job']} starts with {event['workers']} workers",
    "journal_found": lambda _: "the master's journal was lost; the workers had kept it",
    "master_restarted": lambda _: "the master died; another goes on in its place",
    "scaled": lambda event: (
        f"{'parameter servers' if event['role'] == 'ps' else 'workers'} {event['before']} -> {event['workers']}"
    ),
    "server_migrates": lambda event: f"{_short(event['node'])} moves to {_short(event['twin'])}",
    "servers_published": _servers_published,
    "servers_set": lambda event: f"version {event['version']} has {len(event['servers'])} parameter servers",
    "handed_over": lambda event: f"all train with version {event['version']} of the parameter servers",
    "worker_serves": lambda event: f"{_short(event['node'])} runs closures at {event['address']}",
    "coordinator_workers": lambda event: f"the coordinator uses {len(event['workers'])} workers",
    "servers_saved": lambda event: f"the parameter servers are saved in {event['folder']}",
    "servers_not_saved": lambda event: f"the parameter servers could not be saved: {event['reason']}",
    "servers_restored": lambda event: f"the parameter servers go on from {event['folder']}",
    "checkpoint_not_whole": lambda event: f"{event['folder']} is not whole, and not used: {event['reason']}",
    "order_failed": lambda event: f"{_short(event['node'])} could not do its part: {event['reason']}",
    "server_link_lost": lambda event: f"{_short(event['node'])} has lost ps-{event['peer']}: {event['reason']}",
    "hot_server": lambda event: f"{event['buckets']} buckets move from a hot parameter server",
    "node_launched": _node_launched,
    "node_running": lambda event: (
        f"{_short(event['node'])} runs" + ("" if event["pid"] is None else f" as process {event['pid']}")
    ),
    "node_waits": lambda event: f"{_short(event['node'])} waits: {event['reason']}",
    "node_attended": lambda event: f"{_short(event['node'])} has joined",
    "node_left": lambda event: f"{_short(event['node'])} has said goodbye",
    "node_disconnected": lambda event: f"{_short(event['node'])} is gone",
    "node_lost": lambda event: f"{_short(event['node'])} is lost: {event['reason']}",
    "node_leaving": _node_leaving,
    "node_ended": _node_ended,
    "dataset_defined": _dataset_defined,
    "shard_returned": _shard_returned,
    "commit_refused": lambda event: f"a commit of {_short(event['node'])} was refused: {event['reason']}",
    "epoch_finished": lambda event: f"{event['dataset']}: epoch {event['epoch']} is finished",
    "dataset_finished": lambda event: f"{event['dataset']}: all {event['samples']:,} samples are committed",
    "position_reset": lambda event: f"{event['dataset']}: back from {event['done']:,} samples to {event['now']:,}",
    "position_restored": lambda event: (
        f"{event['dataset']}: from a checkpoint of step {event['step']:,}, with {event['now']:,} samples done"
    ),
    "data_left": lambda event: f"{event['samples']:,} samples were not used: {event['reason']}",
    "message_refused": lambda event: f"refused {event['method']} from {event['peer']}: {event['reason']}",
    "world_next": lambda event: f"world {event['version']} is coming, of {event['size']} workers",
    "world_settled": lambda event: f"world {event['version']} has {len(event['members'])} workers",
    "world_cost": lambda event: (
        f"the change to {event['size']} workers kept a step waiting for {event['stall_ms']:.0f} ms"
    ),
    "evaluation_started": lambda event: f"step {event['step']:,} is evaluated on {event['samples']:,} samples",
    "evaluation_finished": lambda event: f"step {event['step']:,}: {metrics_text(event['metrics'])}",
    "best_version": lambda event: f"step {event['step']:,} is the best so far",
    "early_stop": lambda event: f"training stops: no better for {event['evaluations']} evaluations",
    "version_failed": lambda event: f"step {event['step']:,} could not be written: {event['error']}",
    "final_version_lost": lambda event: f"step {event['step']:,} is gone with the workers that had it",
    "exported": lambda event: f"step {event['step']:,} is exported to {event['folder']}",
    "sizing_decided": lambda event: event["line"],
    "sizing_settled": lambda event: f"{_size(event)} at work; the change cost {event['cost_s']:.1f} s of training",
    "sizing_realised": lambda event: (
        f"{_size(event)}: {event['realised']:,.0f} samples/s came of {event['predicted']:,.0f} predicted"
    ),
    "sizing_failed": lambda event: f"the job keeps its size from here on, for sizing failed: {event['reason']}",
    "sizing_paused": lambda _: "the job keeps its size until it is told to go on",
    "sizing_resumed": lambda _: "the job sizes itself again",
    "plan_applied": lambda event: f"a plan was applied: {event['reason']}",
    "plan_refused": lambda event: f"a plan was refused: {event['reason']} ({event['line']})",
    "figures_refused": lambda event: f"figures of {_short(event['node'] or 'the job')} refused: {event['reason']}",
    "brain_lost": lambda event: f"the Brain is away ({event['reason']}); the job sizes itself by what it knows",
    "brain_back": lambda _: "the Brain is back",
    "job_ended": lambda event: f"job {event['end']}",
}


def event_line(line: str) -> str:
    """One event of `--events` as a sentence; the times are left to the caller."""
    event: Fields = json.loads(line)
    return _LINES[event["kind"]](event)


def progress_line(status: pb.JobStatus) -> str:
    """Where the job is, on one line."""
    running = sum(node.status == "running" and node.type == "worker" for node in status.node)
    parts = [f"{running} of {status.workers_wanted} workers", f"{status.samples_per_s:,.0f} samples/s"]
    parts += [dataset_progress(view) for view in status.dataset[-1:]]
    return ", ".join(parts)


def dataset_progress(view: pb.DatasetView) -> str:
    if view.endless:
        return f"{view.name}: {view.committed:,} samples"
    total = view.epoch_size * view.epochs
    share = 100 * view.committed / total if total else 100.0
    epoch = min(view.epoch + 1, view.epochs)
    return f"{view.name}: epoch {epoch} of {view.epochs}, {view.committed:,} of {total:,} samples ({share:.0f}%)"


def summary_line(status: pb.JobStatus) -> str:
    """How a job ended, on one line."""
    samples = sum(view.committed for view in status.dataset)
    failed = sum(node.status == "failed" for node in status.node)
    return (
        f"{status.job} {status.state} after {status.elapsed_s:.1f} s: {samples:,} samples, "
        f"{sum(node.type == 'worker' for node in status.node)} workers launched, {failed} failed"
    )


def evaluation_lines(view: pb.EvaluationView) -> list[str]:
    """What is known of the model: the last metrics, the best ones, and what is evaluated now."""
    lines = []
    if view.HasField("last"):
        lines.append(f"evaluated at step {view.last.step:,}: {metrics_text(view.last.metrics)}")
    if view.HasField("best"):
        lines.append(f"best by {view.goal} at step {view.best.step:,}: {metrics_text(view.best.metrics)}")
    if view.HasField("running"):
        lines.append(f"evaluating step {view.running:,}: {view.committed:,} of {view.size:,} samples")
    return lines


def metrics_text(metrics: Mapping[str, float | None]) -> str:
    """`auc 0.8312 ±0.0001, loss 0.4`: a metric, and by how much it may be off where that is known."""
    parts = []
    for name, value in sorted(metrics.items()):
        if name.endswith("_error") and name.removesuffix("_error") in metrics:
            continue
        error = metrics.get(f"{name}_error")
        off = "" if error is None or math.isnan(error) else f" ±{error:.1g}"
        parts.append(f"{name} {'nan' if value is None else format(value, '.6g')}{off}")
    return ", ".join(parts)
