"""The dashboard over plain HTTP: who is let in, what is refused, and what an action does to a real job."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.dashboards import CONTROL, HOSTILE, HOSTILE_JOB, Dashboard, Visitor, hostile_job
from tests.integration.harness import ROOT, SCRIPT, Jobs


class Shown:
    """A dashboard, a living job of two workers that takes long, and an ended one with hostile texts."""

    def __init__(self, folder: Path) -> None:
        self.jobs = Jobs(folder)
        hostile_job(self.jobs)
        self.job = subprocess.Popen(
            [
                *(sys.executable, "-m", "elastane", "run", "--name", "job", "--workers", "1:4", "--no-progress"),
                *("--autoscale", "--autoscale-window", "600"),
                *(SCRIPT, "--samples=1000000", "--step-ms=20"),
            ],
            env=self.jobs.env,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        self.dashboard = Dashboard(self.jobs)

    def visitor(self) -> Visitor:
        return Visitor(self.dashboard.link)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.jobs.command("status", "job", "--json").stdout)
        return found

    def close(self) -> None:
        self.jobs.command("delete", "job", "--at-once")
        self.job.wait(20)
        assert self.dashboard.close() == 0


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    started = Shown(tmp_path_factory.mktemp("dashboard"))
    visitor = started.visitor().enter()
    while visitor.load("/jobs/job").code != 200 or "worker-0" not in visitor.load("/jobs/job").text:
        assert started.job.poll() is None
    yield started
    started.close()


PATHS = ["/", "/events", "/jobs/job", "/jobs/job/events", "/jobs/job/logs/worker-0", "/static/page.js", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_the_link(shown: Shown, path: str) -> None:
    visitor = shown.visitor()
    for cookie in ("", "elastane-1=x", f"elastane-{visitor.host.rsplit(':')[1]}=made-up"):
        visitor.cookie = cookie
        answer = visitor.ask("GET", path)
        assert answer.code == 401
        assert "worker" not in answer.text
    assert visitor.ask("GET", f"{path}?token=wrong").code == 401
    assert visitor.ask("POST", "/jobs/job/drain", '{"node": "worker-0"}').code == 401


def test_the_link_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(shown: Shown) -> None:
    visitor = shown.visitor()
    answer = visitor.ask("GET", "/?" + shown.dashboard.link.split("?")[1])
    assert answer.code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    token = shown.dashboard.link.split("token=")[1]
    assert token not in str(answer.headers)
    assert visitor.ask("GET", f"//evil.example/x?token={token}").headers["location"] == "/evil.example/x"


def test_every_answer_has_the_strict_headers(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    for answer in (visitor.load("/jobs/job"), visitor.load("/static/page.js"), shown.visitor().load("/")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    page = visitor.load("/jobs/job").text
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|https?://", page)


def test_a_name_that_is_not_this_machines_is_refused(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    for host in ("evil.example", f"evil.example:{visitor.host.rsplit(':')[1]}", "127.0.0.1.evil.example", ""):
        assert visitor.ask("GET", "/", Host=host).code == 421
    tunnelled = visitor.ask("GET", "/jobs/job", Host="localhost:8080")
    assert tunnelled.code == 200


def test_an_action_of_another_origin_or_replayed_is_refused_and_changes_nothing(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    visitor.load("/jobs/job")
    wanted = shown.status()["workers_wanted"]
    more = {"workers": wanted + 1}
    for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1", f"https://{visitor.host}.evil.example"):
        assert visitor.act("/jobs/job/scale", more, Origin=origin).code == 403
    assert visitor.act("/jobs/job/scale", more, Sec_Fetch_Site="cross-site").code == 403
    assert visitor.act("/jobs/job/scale", more, X_Elastane_Nonce="").code == 403
    other = shown.visitor().enter()
    other.load("/jobs/job")
    assert visitor.act("/jobs/job/scale", more, X_Elastane_Nonce=other.nonce).code == 403
    assert visitor.ask("GET", "/jobs/job/scale").code == 405
    assert visitor.ask("DELETE", "/jobs/job").code == 405
    assert shown.status()["workers_wanted"] == wanted

    answer = visitor.act("/jobs/job/scale", more)
    assert (answer.code, answer.json["said"]) == (200, f"asked for {wanted + 1} workers")
    assert visitor.act("/jobs/job/scale", {"workers": 4}).code == 403, "the same nonce again"
    assert shown.status()["workers_wanted"] == wanted + 1
    visitor.nonce = answer.json["nonce"]
    assert visitor.act("/jobs/job/scale", {"workers": wanted}).code == 200


def test_what_cannot_be_done_is_said_in_one_line(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    visitor.load("/jobs/job")

    def refused(path: str, body: Any) -> tuple[int, str]:
        answer = visitor.act(path, body)
        visitor.nonce = answer.json["nonce"]
        return answer.code, answer.json["error"]

    assert refused("/jobs/job/scale", {"workers": 99}) == (409, 'workers: 99 is above max 4 in job "job"')
    code, text = refused("/jobs/job/drain", {"node": HOSTILE + CONTROL})
    assert code == 409
    assert CONTROL not in text
    assert refused("/jobs/job/autoscaling", {"paused": "yes"})[0] == 400
    assert refused("/jobs/job/scale", {"workers": "3"})[0] == 400
    assert refused("/jobs/job/scale", {"workers": True})[0] == 400
    assert refused("/jobs/job/scale", ["workers"])[0] == 400
    assert refused("/jobs/job/scale", {"workers": 1, "more": "x" * 5000})[0] == 400
    assert refused("/jobs/none/scale", {"workers": 1})[0] == 404
    assert refused(f"/jobs/{quote(HOSTILE_JOB)}/scale", {"workers": 1})[1].endswith("has ended")


def test_a_job_that_sizes_itself_can_be_paused_and_resumed(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    visitor.load("/jobs/job")
    for paused in (True, False):
        answer = visitor.act("/jobs/job/autoscaling", {"paused": paused})
        assert answer.code == 200
        visitor.nonce = answer.json["nonce"]
        assert shown.status()["autoscaling_paused"] is paused


def test_files_outside_are_not_found(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    for path in (
        *("/static/../app.py", "/static/%2e%2e/app.py", "/static/vendor/", "/static/vendor/README.md"),
        *("/jobs/job/logs/..%2Fjob", "/jobs/job/logs/%2e%2e", "/jobs/..%2F..", "/jobs/none", "/jobs/job/logs/none"),
    ):
        assert visitor.load(path).code == 404, path


def test_hostile_texts_are_escaped_on_the_page(shown: Shown) -> None:
    visitor = shown.visitor().enter()
    page = visitor.load(f"/jobs/{quote(HOSTILE_JOB)}").text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in page
    assert "<img" not in page
    assert "alert(2)</script>" not in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page)
    assert HOSTILE_JOB not in visitor.load("/").text
    lines = visitor.load(f"/jobs/{quote(HOSTILE_JOB)}/logs/{quote(HOSTILE)}").json["lines"]
    assert lines == [f"{HOSTILE}\\x1b]0;gone\\x07\\x08\\u202etxt\\x00", "red", " 99%", "\ufffd\ufffd"]


def messages(visitor: Visitor, path: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The first so many messages of a stream."""
    connection = http.client.HTTPConnection(visitor.host, timeout=10)
    connection.request("GET", path, headers={"Cookie": visitor.cookie})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    seen: list[tuple[str, dict[str, Any]]] = []
    while len(seen) < count:
        kind = response.readline().decode().removeprefix("event: ").strip()
        seen.append((kind, json.loads(response.readline().decode().removeprefix("data: "))))
        response.readline()
    connection.close()
    return seen


@pytest.mark.slow
def test_a_job_that_has_ended_shows_its_whole_life(jobs: Jobs) -> None:
    done = jobs.run("--samples=4000", "--step-ms=8", options=("--no-progress",))
    assert done.code == 0, done.stderr
    dashboard = Dashboard(jobs)
    try:
        ((_, whole),) = messages(Visitor(dashboard.link).enter(), "/jobs/job/events", 1)
    finally:
        dashboard.close()
    assert whole["text"]["state"] == "succeeded"
    assert [mark["text"] for mark in whole["marks"]] == ["worker-0 joined"]
    assert max(whole["series"]["samples"][1]) > 0
    assert max(whole["series"]["workers"][1]) == 1


def test_a_stream_brings_the_whole_and_then_changes(shown: Shown) -> None:
    seen = messages(shown.visitor().enter(), "/jobs/job/events", 3)
    assert [kind for kind, _ in seen] == ["whole", "change", "change"]
    first = seen[0][1]
    assert first["text"]["state"] == "running"
    assert "job-worker-0" in first["tables"]["nodes"]["set"]
    assert len(first["series"]["workers"][0]) == len(first["series"]["workers"][1])


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_a_job_has_its_dashboard_while_it_runs_and_no_longer(tmp_path: Path, how: str) -> None:
    jobs = Jobs(tmp_path)
    hostile_job(jobs)
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "elastane",
                "run",
                "--name",
                "one",
                "--workers",
                "1:2",
                "--dashboard",
                "--no-progress",
            ),
            *(SCRIPT, "--samples=1000000"),
        ],
        env=jobs.env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    link = next(found[1] for line in process.stdout if (found := re.search("dashboard: (http.*)", line)))
    record = json.loads((tmp_path / "state/jobs/one/job.json").read_text())
    assert record["token"] not in link
    visitor = Visitor(link).enter()
    assert visitor.ask("GET", "/").headers["location"] == "/jobs/one"
    assert visitor.load("/jobs/one").code == 200
    assert visitor.load(f"/jobs/{quote(HOSTILE_JOB)}").code == 404
    children = {child.cmdline()[3]: child for child in psutil.Process(process.pid).children()}
    children["elastane.master"].kill()
    answer = visitor.act("/jobs/one/scale", {"workers": 2})
    while answer.code == 503:  # Another master takes its place.
        visitor.nonce = answer.json["nonce"]
        answer = visitor.act("/jobs/one/scale", {"workers": 2})
    assert answer.code == 200
    if how == "deleted":
        jobs.command("delete", "one", "--at-once")
    else:
        process.kill()
    process.stdout.read()
    assert process.wait(20) == (1 if how == "deleted" else -9)
    assert psutil.wait_procs([children["elastane.dashboard"]], timeout=10)[1] == []
    process.stdout.close()


def test_without_its_libraries_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['starlette'] = None; from elastane.cli.app import main; main()"
    for words in (["dashboard"], ["run", "--dashboard", SCRIPT]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "ELASTANE_STATE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr == "error: dashboard: starlette is not installed; install elastane[dashboard]\n"


def test_a_port_that_is_taken_is_said_so(shown: Shown) -> None:
    port = shown.visitor().host.rsplit(":")[1]
    done = shown.jobs.command("dashboard", "--port", port)
    assert done.returncode == 2
    assert done.stderr == f'error: dashboard: cannot listen at "127.0.0.1", port {port}: Address already in use\n'
