"""The dashboard in a real Chromium, on real jobs: what happens is on the page within a second."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Opened
from tests.dashboards import HOSTILE, HOSTILE_JOB, Dashboard, hostile_job
from tests.integration.harness import ROOT, SCRIPT, Jobs, event_time, read_events

FOLLOWS_S = 1.0
TRAINING_SCRIPT = str(Path(SCRIPT).with_name("training_script.py"))


class LiveJob:
    """`elastane run --dashboard`, and its events."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        self.jobs = Jobs(folder)
        self.events = folder / "events.jsonl"
        options = ["--name", "live", "--workers", "2:4", "--memory", "2Gi", "--no-progress", "--events", self.events]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elastane", "run", "--dashboard", *map(str, options), script, *arguments],
            env=self.jobs.env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.link = next(found[1] for line in self.process.stdout if (found := re.search("dashboard: (http.*)", line)))

    def event(self, kind: str, node: str) -> dict[str, Any]:
        """The newest such event of a node."""
        return [e for e in read_events(self.events) if e["kind"] == kind and e["node"] == node][-1]

    def pid(self, node: str) -> int:
        return int(self.event("node_running", node)["pid"])

    def close(self) -> None:
        self.jobs.command("delete", "live", "--at-once")
        assert self.process.stdout is not None
        self.process.stdout.read()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[LiveJob]:
    job = LiveJob(tmp_path, SCRIPT, "--samples=1000000", "--step-ms=20")
    yield job
    job.close()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[LiveJob]:
    job = LiveJob(tmp_path, TRAINING_SCRIPT, "--step-ms=40")
    yield job
    job.close()


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Dashboard]:
    jobs = Jobs(tmp_path)
    hostile_job(jobs)
    dashboard = Dashboard(jobs)
    yield dashboard
    dashboard.close()


def test_a_page_follows_a_join_a_drain_and_a_kill_within_a_second_and_scales(
    counting: LiveJob, browser: Browser
) -> None:
    opened = Opened(browser, counting.link)
    page = opened.page
    assert "token" not in page.url
    for node in ("live-worker-0", "live-worker-1"):
        opened.when(f"{opened.cell(node, 'state')} === 'running'")

    page.fill("#workers", "3")
    page.press("#workers", "Enter")
    joined = opened.when(f"{opened.cell('live-worker-2', 'state')} === 'running'")
    assert joined - event_time(counting.event("node_attended", "live-worker-2")) < FOLLOWS_S
    assert page.text_content("#answer") == "asked for 3 workers"
    assert json.loads(counting.jobs.command("status", "live", "--json").stdout)["workers_wanted"] == 3

    drain = page.locator('[data-key="live-worker-0"] [data-drain]')
    drain.click()
    drain.click()  # It is asked for twice.
    left = opened.when("[...document.querySelectorAll('[data-table=marks] th')].some("
                       "(row) => row.textContent.includes('worker-0 is drained'))")  # fmt: skip
    assert left - event_time(counting.event("node_leaving", "live-worker-0")) < FOLLOWS_S

    os.kill(counting.pid("live-worker-1"), signal.SIGKILL)
    killed = opened.when(f"{opened.cell('live-worker-1', 'exit')} === 'killed'")
    assert killed - event_time(counting.event("node_ended", "live-worker-1")) < FOLLOWS_S
    opened.when("document.querySelector('[data-table=marks] [data-state=crash]')")

    page.locator('[data-key="live-worker-1"] [data-log]').click()
    opened.when("document.getElementById('log').open")
    page.keyboard.press("Escape")
    opened.when("!document.getElementById('log').open")

    page.fill("#workers", "99")
    page.press("#workers", "Enter")
    opened.when("document.getElementById('answer').textContent === 'workers: 99 is above max 4 in job \"live\"'")
    # The browser itself says that an answer was 409; that is no error of the page.
    assert [fault for fault in opened.faults if "409" not in fault] == []
    opened.close()


def test_hostile_texts_are_texts(hostile: Dashboard, browser: Browser) -> None:
    opened = Opened(browser, hostile.link)
    page = opened.page
    opened.when("document.querySelector('[data-table=jobs] a')")
    assert page.text_content("[data-table=jobs] a") == HOSTILE_JOB
    opened.shoot("jobs-hostile")
    page.click("[data-table=jobs] a")
    page.wait_for_selector("#link:not(.lost):not(:empty)")
    assert unquote(page.url).endswith(f"/jobs/{HOSTILE_JOB}")
    assert page.text_content(".name") == HOSTILE_JOB
    assert page.text_content("[data-text=reason]") == "<script>alert(2)</script>\\x1b]0;gone\\x07\\x08\\u202etxt\\x00"
    assert page.text_content("[data-table=nodes] [data-cell=name]") == HOSTILE
    assert page.text_content("[data-table=metrics] [data-cell=name]") == HOSTILE
    assert page.text_content("[data-chart^=metric] h2") == f"Evaluation: {HOSTILE}"
    page.locator("[data-table=nodes] [data-log]").click()
    opened.when("document.getElementById('log-lines').textContent.includes('99%')")
    assert (page.text_content("#log-lines") or "").splitlines()[0] == f"{HOSTILE}\\x1b]0;gone\\x07\\x08\\u202etxt\\x00"
    assert page.locator("img, script:not([src])").count() == 0
    opened.shoot("job-hostile")
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (e) { return e.name } }"
    )
    assert refused == "TypeError", "markup cannot be put in at all"
    assert [fault for fault in opened.faults if "TrustedHTML" not in fault] == []
    opened.close()


@pytest.mark.slow
def test_a_training_jobs_page_shows_what_each_change_cost(training: LiveJob, browser: Browser) -> None:
    opened = Opened(browser, training.link)
    page = opened.page
    for node in ("live-worker-0", "live-worker-1"):
        opened.when(f"/^[01]$/.test({opened.cell(node, 'rank')})")
    # A change costs beyond a usual step, so there must have been some.
    opened.when("document.querySelector('[data-chart=loss] canvas')")
    page.fill("#workers", "3")
    page.click("[data-action=workers]")
    opened.when(f"{opened.cell('live-worker-2', 'rank')} === '2'")
    stall = "document.querySelector('[data-table=marks] tr [data-cell=stall]').textContent.endsWith('ms')"
    first = "document.querySelector('[data-table=marks] [data-cell=text]').textContent"
    opened.when(f"{first} === 'worker-2 joined' && {stall}")
    os.kill(training.pid("live-worker-1"), signal.SIGKILL)
    opened.when(f"{first} === 'worker-3 joined' && {stall}")
    drain = page.locator('[data-key="live-worker-2"] [data-drain]')
    drain.click()
    drain.click()
    opened.when(f"{first} === 'worker-2 is drained' && {stall}")
    assert (page.text_content("[data-table=marks] [data-state=crash] [data-cell=stall]") or "").endswith("ms")
    opened.when(f"Number({opened.text('loss')}) > 0 && {opened.text('last_stall')}.endsWith('ms')")
    opened.shoot("job-light")
    page.emulate_media(color_scheme="dark")
    opened.when("getComputedStyle(document.body).backgroundColor === 'rgb(18, 22, 27)'")
    opened.shoot("job-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    opened.when("document.documentElement.scrollWidth <= 390")
    opened.shoot("job-phone")
    assert opened.faults == []
    opened.close()
