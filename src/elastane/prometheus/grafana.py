"""The Grafana dashboard of elastane, for Grafana 10 and later: one job, and below it the Brain and the operator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_JOB = '{job="$job"}'
_WIDTH = 24
_STAT_HEIGHT, _GRAPH_HEIGHT = 4, 8


@dataclass(frozen=True)
class Query:
    """A query, and what its lines are called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its queries, the unit of what they give, and its kind and width."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    description: str = ""
    from_zero: bool = True
    """Whether its axis begins there."""


def _graph(title: str, *queries: Query, unit: str = "short", width: int = 8, **more: Any) -> Panel:
    return Panel(title, queries, unit, width=width, **more)


def _stat(title: str, expression: str, unit: str = "short", legend: str = "") -> Panel:
    return Panel(title, (Query(expression, legend),), unit, kind="stat", width=4)


def _quantile(share: float, metric: str, by: str, matchers: str = _JOB) -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{matchers}[$__rate_interval])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Job": (
        _stat("State", f"elastane_job_state{_JOB} == 1", legend="{{state}}"),
        _stat("World size", f"elastane_world_size{_JOB}"),
        _stat("Samples per second", f"elastane_samples_per_second{_JOB}"),
        _stat("Steps", f"elastane_steps_total{_JOB}"),
        _stat("Stalled in all", f"sum(elastane_world_stall_seconds_sum{_JOB})", "s"),
        _stat("Age", f"elastane_job_elapsed_seconds{_JOB}", "s"),
    ),
    "World": (
        _graph(
            "World size",
            Query(f"elastane_world_size{_JOB}", "members"),
            Query(f"elastane_workers_wanted{_JOB}", "wanted"),
            description="Each change of the world is marked.",
        ),
        _graph(
            "Longest stalls (0.99 of them are shorter)",
            Query(_quantile(0.99, "elastane_world_stall_seconds", "le, cause"), "{{cause}}"),
            unit="s",
            description="Between two steps in a change of the world, beyond what a step takes.",
        ),
        _graph(
            "Changes of the world",
            Query(f"increase(elastane_world_change_seconds_count{_JOB}[$__rate_interval])", "{{cause}}"),
            stacked=True,
        ),
    ),
    "Speed": (
        _graph(
            "Samples per second",
            Query(f"sum(rate(elastane_samples_committed_total{_JOB}[$__rate_interval]))", "committed"),
            Query(f"elastane_plan_predicted_samples_per_second{_JOB}", "predicted, {{bound}}"),
        ),
        _graph("A step of the median worker", Query(f"elastane_step_seconds{_JOB}", "{{part}}"), unit="s"),
        _graph("Evaluation", Query(f"elastane_evaluation_metric{_JOB}", "{{metric}}, {{version}}"), from_zero=False),
    ),
    "Data": (
        _graph(
            "Share of the epoch",
            Query(
                f"elastane_dataset_epoch_committed_samples{_JOB} / (elastane_dataset_epoch_samples{_JOB} > 0)",
                "{{dataset}}",
            ),
            unit="percentunit",
        ),
        _graph("Shards leased", Query(f"elastane_shards_leased{_JOB}", "{{dataset}}")),
        _graph(
            "Shards returned",
            Query(f"increase(elastane_shards_returned_total{_JOB}[$__rate_interval])", "{{reason}}"),
            stacked=True,
        ),
    ),
    "Nodes": (
        _graph("Nodes", Query(f"elastane_nodes{_JOB} > 0", "{{role}}, {{status}}"), width=6, stacked=True),
        _graph(
            "Ends and relaunches",
            Query(f"increase(elastane_node_exits_total{_JOB}[$__rate_interval]) > 0", "{{role}}, {{reason}}"),
            Query(f"increase(elastane_node_relaunches_total{_JOB}[$__rate_interval]) > 0", "{{role}} relaunched"),
            width=6,
        ),
        _graph("Cores", Query(f"elastane_node_cpu_cores{_JOB}", "{{node}}"), width=6),
        _graph(
            "Memory",
            Query(f"elastane_node_memory_bytes{_JOB}", "{{node}}"),
            Query(f"elastane_node_memory_limit_bytes{_JOB}", "{{node}}, limit"),
            unit="bytes",
            width=6,
        ),
    ),
    "Parameter servers": (
        _graph(
            "Buckets",
            Query(f"elastane_server_buckets{_JOB}", "{{node}}"),
            Query(f"elastane_server_backups{_JOB}", "{{node}}, backups"),
            Query(f"elastane_buckets_moving{_JOB}", "moving"),
            width=6,
        ),
        _graph("Rows per second", Query(f"elastane_server_rows_per_second{_JOB}", "{{node}}"), width=6),
        _graph("Memory", Query(f"elastane_server_memory_bytes{_JOB}", "{{node}}"), unit="bytes", width=6),
        _graph("Tables", Query(f"elastane_table_bytes{_JOB}", "{{table}}"), unit="bytes", width=6),
    ),
    "Plans": (
        _graph(
            "Plans", Query(f"increase(elastane_plans_total{_JOB}[$__rate_interval]) > 0", "{{outcome}}"), stacked=True
        ),
        _graph(
            "Predicted and realised samples per second",
            Query(f"elastane_plan_predicted_samples_per_second{_JOB}", "predicted, {{bound}}"),
            Query(f"elastane_plan_realised_samples_per_second{_JOB}", "realised"),
        ),
        _graph("What the newest change cost", Query(f"elastane_plan_cost_seconds{_JOB}", "cost"), unit="s"),
    ),
    "Brain": (
        _graph(
            "Requests per second",
            Query(
                "sum by (method, outcome) (rate(elastane_brain_requests_total[$__rate_interval]))",
                "{{method}}, {{outcome}}",
            ),
        ),
        _graph(
            "Latency (0.99 are faster)",
            Query(_quantile(0.99, "elastane_brain_request_seconds", "le, method", ""), "{{method}}"),
            unit="s",
        ),
        _graph(
            "Plans",
            Query("sum by (outcome) (rate(elastane_brain_plans_total[$__rate_interval]))", "{{outcome}}"),
            Query("elastane_brain_plans_waiting", "waiting"),
        ),
    ),
    "Operator": (
        _graph(
            "Jobs by condition",
            Query("max by (condition) (elastane_operator_job_conditions)", "{{condition}}"),
            width=6,
        ),
        _graph(
            "Looks per second",
            Query("sum by (outcome) (rate(elastane_operator_reconciles_total[$__rate_interval]))", "{{outcome}}"),
            width=6,
        ),
        _graph(
            "Time of a look",
            Query(_quantile(0.99, "elastane_operator_reconcile_seconds", "le", ""), "0.99 are faster"),
            unit="s",
            width=6,
        ),
        _graph(
            "Requests to the API server per second",
            Query("sum by (method) (rate(elastane_operator_api_requests_total[$__rate_interval]))", "{{method}}"),
            Query("sum(elastane_operator_queue_length)", "jobs that wait"),
            width=6,
        ),
    ),
}

ANNOTATIONS = {
    "Changes of the world": f"changes(elastane_world_version{_JOB}[$__interval]) > 0",
    "Nodes that ended badly": 'increase(elastane_node_exits_total{job="$job", reason!="done"}[$__interval]) > 0',
}
_COLOURS = ("blue", "orange")


def expressions() -> Iterator[str]:
    """Every query of the dashboard."""
    for panels in ROWS.values():
        for panel in panels:
            yield from (query.expression for query in panel.queries)
    yield from ANNOTATIONS.values()


def dashboard() -> Json:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "elastane",
        "title": "elastane",
        "description": "An elastic training job: its world, its speed, its nodes, its parameter servers and its plans.",
        "tags": ["elastane"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _job_variable()]},
        "annotations": {"list": [_annotation(*named) for named in zip(ANNOTATIONS, _COLOURS, strict=True)]},
        "panels": list(_panels()),
    }


def _source_variable() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _job_variable() -> Json:
    query = "label_values(elastane_job_info, job)"
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "job"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


def _annotation(name: str, colour: str) -> Json:
    return {
        "name": name,
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": colour,
        "expr": ANNOTATIONS[name],
        "step": "10s",
        "titleFormat": name,
    }


def _panels() -> Iterator[Json]:
    numbers = itertools.count(1)
    y = 0
    for title, panels in ROWS.items():
        yield {
            "id": next(numbers),
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
            "panels": [],
        }
        y += 1
        x = 0
        height = _STAT_HEIGHT if all(panel.kind == "stat" for panel in panels) else _GRAPH_HEIGHT
        for panel in panels:
            yield _panel(panel, next(numbers), {"h": height, "w": panel.width, "x": x, "y": y})
            x += panel.width
        y += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    stacking = {"stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {}
    custom: Json = {"lineWidth": 1, "fillOpacity": 20 if panel.stacked else 0, **stacking}
    options: Json = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        text = "name" if panel.queries[0].legend else "auto"
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": text, "colorMode": "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                **({"min": 0} if panel.from_zero else {}),
                "custom": {} if panel.kind == "stat" else custom,
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for place, query in enumerate(panel.queries)
        ],
    }
