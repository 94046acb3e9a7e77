"""A real dashboard, and a browser's part of it that needs no browser: cookies, origins, nonces."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.integration.harness import ROOT, Jobs

HOSTILE = "<img src=x onerror=alert(1)>"
CONTROL = "\x1b]0;gone\x07\x08\u202etxt\x00"
HOSTILE_JOB = "a<b>job'\"&"


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Dashboard:
    """The `elastane dashboard` process, on the jobs of a state folder."""

    def __init__(self, jobs: Jobs) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "elastane", "dashboard"], env=jobs.env, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.link = self._process.stdout.readline().strip()
        assert self.link.startswith("http://127.0.0.1:"), self.link

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> int:
        self._process.terminate()
        code = self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


@dataclass
class Visitor:
    """Asks as a browser would, with what it was given; every part of it can be left out or changed."""

    link: str
    cookie: str = ""
    nonce: str = ""
    host: str = field(init=False)

    def __post_init__(self) -> None:
        self.host = urlsplit(self.link).netloc

    def enter(self) -> Visitor:
        """Come by the link, and load the page that it leads to."""
        parts = urlsplit(self.link)
        answer = self.ask("GET", f"{parts.path}?{parts.query}")
        assert answer.code == 303, answer.text
        self.cookie = answer.headers["set-cookie"].split(";")[0]
        return self

    def load(self, path: str) -> Answer:
        """Load a page, and keep its nonce."""
        answer = self.ask("GET", path)
        if found := re.search(r'data-nonce="([^"]+)"', answer.text):
            self.nonce = found[1]
        return answer

    def act(self, path: str, body: Any, **headers: str) -> Answer:
        """Do what a button does."""
        given = {"Origin": f"http://{self.host}", "X_Elastane_Nonce": self.nonce, **headers}
        return self.ask("POST", path, json.dumps(body), **given)

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        given = {"Host": self.host, **({"Cookie": self.cookie} if self.cookie else {}), **headers}
        connection = http.client.HTTPConnection(self.host, timeout=10)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name.replace("_", "-"), value)
            content = None if body is None else body.encode()
            if content is not None:
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            response = connection.getresponse()
            text = "" if "event-stream" in response.headers.get("content-type", "") else response.read().decode()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, text)
        finally:
            connection.close()


def hostile_job(jobs: Jobs) -> Path:
    """An ended job's folder whose every text would like to be more than text."""
    folder = jobs.folder / "state" / "jobs" / HOSTILE_JOB
    (folder / "logs").mkdir(parents=True)
    record = {"name": HOSTILE_JOB, "token": "t" * 43, "job": {}, "started_at": "2026-01-01T00:00:00+00:00"}
    (folder / "job.json").write_text(json.dumps(record))
    node = {
        "name": f"{HOSTILE_JOB}-{HOSTILE}",
        "type": "worker",
        "status": "failed",
        "exitReason": f"error {HOSTILE}{CONTROL}",
    }
    status = {
        "job": HOSTILE_JOB,
        "state": "failed",
        "reason": f"<script>alert(2)</script>{CONTROL}",
        "node": [node],
        "dataset": [{"name": f"{HOSTILE}{CONTROL}", "epochs": 1, "epochSize": "10"}],
        "evaluation": {"last": {"step": "3", "metrics": {HOSTILE: 0.5}}},
    }
    (folder / "end.json").write_text(json.dumps({"end": "failed", "reason": "", "error": "", "status": status}))
    events = [
        {"event": "node_ended", "node": f"{HOSTILE_JOB}-{HOSTILE}", "status": "failed", "released": False,
         "reason": f"{HOSTILE}{CONTROL}", "timestamp": "2026-01-01T00:00:01Z"},
        {"event": "evaluation_finished", "step": 3, "metrics": {HOSTILE: 0.5}, "timestamp": "2026-01-01T00:00:02Z"},
        {"event": "world_settled", "version": "no number", "members": 7, "timestamp": "2026-01-01T00:00:03Z"},
    ]  # fmt: skip
    lines = ["Traceback: not JSON", *(json.dumps(event) for event in events)]
    (folder / "logs" / "master.log").write_text("\n".join(lines))
    (folder / "logs" / f"{HOSTILE}.log").write_bytes(
        f"{HOSTILE}{CONTROL}\n\x1b[31mred\x1b[0m\n 10%\r 99%\n".encode() + b"\xff\xfe\n"
    )
    return folder
