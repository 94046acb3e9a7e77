"""Metrics: their names, their docs, the dashboard, and a page that nobody's names can break."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from elastane.model.errors import InvalidInput, PlatformError
from elastane.prometheus.declared import Declarations, Distribution, Metric, MetricKind
from elastane.prometheus.grafana import dashboard, expressions
from elastane.prometheus.of_master import MASTER
from elastane.prometheus.of_ps import PS
from elastane.prometheus.page import MetricsPage
from elastane.prometheus.scrape import MOST_LABEL, Scrape
from elastane.prometheus.tables import PROCESSES, with_tables
from tests.scraping import Scraped, fetch, promtool, status_of

ROOT = Path(__file__).parents[2]
ALL = [metric for declarations in PROCESSES.values() for metric in declarations]
NAMED = {series: metric for metric in ALL for series in metric.series}
_WORDS = {"by", "histogram_quantile", "increase", "rate", "changes", "sum", "max"}


class _Families(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def text_of(scrape: Scrape) -> str:
    return generate_latest(_Families(scrape.families())).decode()


def metrics_in(expression: str) -> set[str]:
    """The names of metrics in a query: all words but functions, labels, strings and durations."""
    bare = re.sub(r'"[^"]*"|\[[^]]*]|\{[^}]*}|\bby \([^)]*\)', " ", expression)
    return set(re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", bare)) - _WORDS


# --- what is declared ---


def test_every_name_is_declared_once() -> None:
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"elastane(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert "|" not in metric.help, "it stands in a table"
    assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
    assert not {"le", "quantile", "instance"} & set(metric.labels)


def test_all_metrics_of_masters_and_servers_say_whose_they_are() -> None:
    assert all(metric.labels[0] == "job" for declarations in (MASTER, PS) for metric in declarations)


def test_the_docs_list_every_metric_as_it_is_declared() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert with_tables(text) == text, "run `make manifests`"
    rows = re.findall(r"^\| `(elastane_\w+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(metric.name for metric in ALL)


# --- the dashboard ---


def test_the_dashboard_file_is_current() -> None:
    assert json.loads((ROOT / "deploy" / "grafana" / "elastane.json").read_text()) == dashboard()


def test_every_query_of_the_dashboard_asks_for_metrics_that_exist() -> None:
    plain = json.loads((ROOT / "deploy" / "grafana" / "elastane.json").read_text())
    queries = [
        (target["expr"], target["legendFormat"]) for panel in plain["panels"] for target in panel.get("targets", ())
    ]
    queries += [(annotation["expr"], "") for annotation in plain["annotations"]["list"]]
    assert {expression for expression, _ in queries} == set(expressions())
    for expression, legend in queries:
        names = metrics_in(expression)
        assert names, expression
        assert names <= NAMED.keys(), expression
        labels = {label for name in names for label in NAMED[name].labels} | {"le"}
        asked = set(re.findall(r"\{\{(\w+)}}", legend)) | set(re.findall(r'[{ ](\w+)!?="', expression))
        for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
            asked |= set(grouping.split(", "))
        assert asked <= labels, expression
    (variable,) = [found for found in plain["templating"]["list"] if found["name"] == "job"]
    assert metrics_in(variable["definition"]) & NAMED.keys() == {"elastane_job_info"}


def test_a_query_for_a_metric_that_does_not_exist_would_be_noticed() -> None:
    assert metrics_in('sum by (a) (rate(nothing_total{job="elastane_x"}[5m])) / (other > 0)') == {
        "nothing_total",
        "other",
    }


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__(rate_)?interval", "1m", expression).replace("$job", "ctr")}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.json"  # JSON is YAML too.
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))


# --- what is served ---


@pytest.mark.parametrize(
    "hostile",
    ['a"b', "a\\", "a\nb", 'a"} 1\nelastane_world_size{job="x', "a\r\n\r\n<script>", "\ud800", "ü ☃", "x" * 1000, ""],
)
def test_names_of_any_kind_stay_inside_their_label(hostile: str) -> None:
    declarations = Declarations("job")
    size = declarations.gauge("elastane_size", 'A help with "quotes", a \\ and\na second line.', "node")
    scrape = Scrape(declarations, job=hostile)
    scrape.put(size, 3, hostile)
    scraped = Scraped(text_of(scrape))
    shown = hostile[:MOST_LABEL].encode("utf-8", "replace").decode()
    assert scraped.by("elastane_size", "node") == {shown: 3.0}
    assert scraped.by("elastane_size", "job") == {shown: 3.0}
    assert "elastane_world_size" not in scraped.families


def test_a_histogram_counts_up_to_each_bound() -> None:
    declarations = Declarations()
    metric = declarations.histogram("elastane_wait_seconds", "A wait.", (0.1, 1.0))
    waits = Distribution(metric)
    for seconds in (0.05, 0.1, 0.5, 3.0):
        waits.observe(seconds)
    scrape = Scrape(declarations)
    scrape.put_distribution(metric, waits)
    scraped = Scraped(text_of(scrape))
    scraped.check(declarations)
    assert scraped.by("elastane_wait_seconds_bucket", "le") == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert scraped.value("elastane_wait_seconds_count") == 4
    assert scraped.value("elastane_wait_seconds_sum") == pytest.approx(3.65)
    promtool("check", "metrics", text=scraped.text)


def test_a_sample_must_have_the_labels_that_were_declared() -> None:
    declarations = Declarations("job")
    size = declarations.gauge("elastane_size", "A size.", "node")
    with pytest.raises(AssertionError, match="common labels"):
        Scrape(declarations)
    with pytest.raises(AssertionError, match="has the labels"):
        Scrape(declarations, job="ctr").put(size, 1)
    with pytest.raises(AssertionError, match="declared twice"):
        declarations.gauge("elastane_size", "Another.")


def page_of_one(*, in_thread: bool = False) -> MetricsPage:
    declarations = Declarations("job")
    size = declarations.gauge("elastane_size", "A size.")

    def collect() -> list[Family]:
        scrape = Scrape(declarations, job="ctr")
        scrape.put(size, 5)
        return scrape.families()

    return MetricsPage(collect, in_thread=in_thread)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_only_get_metrics_is_served(in_thread: bool) -> None:
    page = page_of_one(in_thread=in_thread)
    address = await page.start("127.0.0.1:0")
    scraped = await asyncio.to_thread(fetch, address)
    assert scraped.value("elastane_size", job="ctr") == 5
    assert scraped.value("process_resident_memory_bytes") > 0
    for method, path in [
        ("GET", "/"),
        ("GET", "/metrics/"),
        ("GET", "//metrics"),
        ("GET", "/metricsx"),
        ("POST", "/metrics"),
    ]:
        assert await asyncio.to_thread(status_of, address, method, path) == 404
    assert await asyncio.to_thread(status_of, address, "GET", "/metrics?x=1") == 200
    await page.stop()


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"\x00" * 100_000, b"GET " * 9 + b"\r\n\r\n"]
)
async def test_what_is_no_request_gets_no_metrics_and_harms_nobody(sent: bytes) -> None:
    page = page_of_one()
    address = await page.start("127.0.0.1:0")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    writer.write_eof()
    try:
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    assert b"elastane_size" not in answer
    writer.close()
    assert (await asyncio.to_thread(fetch, address)).value("elastane_size", job="ctr") == 5
    await page.stop()


async def test_a_port_that_is_taken_or_no_port_is_said() -> None:
    page = page_of_one()
    address = await page.start("127.0.0.1:0")
    with pytest.raises(PlatformError, match=f"cannot listen at {address}"):
        await page_of_one().start(address)
    for wrong in ("", "9400", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(InvalidInput, match="write HOST:PORT"):
            await page_of_one().start(wrong)
    await page.stop()
