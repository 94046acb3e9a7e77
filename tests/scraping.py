"""Reads a page of metrics as Prometheus does, and has Prometheus's own tool check it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastane.prometheus.declared import Declarations


class Scraped:
    """One page: its text, and its samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self.samples = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.samples) == len(samples), "no line is there twice"

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric, by one of its labels."""
        return {dict(labels)[label]: value for (found, labels), value in self.samples.items() if found == name}

    def check(self, declarations: Declarations) -> None:
        """All that is served is declared: names, kinds, help texts and labels."""
        declared = {metric.name: metric for metric in declarations}
        for family in self.families.values():
            if family.name.startswith("process_"):
                continue
            metric = declared[f"{family.name}_total" if family.type == "counter" else family.name]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(metric.labels)


def fetch(address: str) -> Scraped:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:  # http alone
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scraped(answer.read().decode())


def status_of(address: str, method: str, path: str) -> int:
    """The status that a request is answered with."""
    request = urllib.request.Request(f"http://{address}{path}", method=method)  # http alone
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # likewise
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def promtool(*arguments: str, text: str = "") -> None:
    """Run promtool, which must find nothing; skips the test if it is not on this machine."""
    beside = Path(sys.executable).with_name("promtool")
    found = str(beside) if beside.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not on this machine; `make setup` gets it where apt-get can")
    done = subprocess.run([found, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
