"""A real Chromium, that reaches nothing but this machine, and notes all that goes wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@pytest.fixture(scope="module")  # Playwright occupies the thread with a loop of its own, which others must find free.
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("Chromium is not on this machine; `make setup` as root installs it")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


class Opened:
    """A page of a dashboard. `faults` are console errors, exceptions, dialogs, and requests to anywhere else."""

    def __init__(self, browser: Browser, link: str) -> None:
        self.origin = link[: link.index("/", len("http://"))]
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.faults: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("dialog", lambda dialog: self._fault_and(dialog.dismiss, f"dialog: {dialog.message}"))
        self.page.route(lambda url: not url.startswith(f"{self.origin}/"), self._foreign)
        self.page.goto(link)
        self.page.wait_for_selector("#link:not(.lost):not(:empty)")

    def _console(self, message: object) -> None:
        kind, text = message.type, message.text  # type: ignore[attr-defined]
        if kind in ("error", "warning"):
            self.faults.append(f"{kind}: {text}")

    def _foreign(self, route: Route) -> None:
        self._fault_and(route.abort, f"foreign request: {route.request.url}")

    def _fault_and(self, then: object, text: str) -> None:
        self.faults.append(text)
        then()  # type: ignore[operator]

    def when(self, condition: str) -> float:
        """Wait until this holds in the page; the answer is when it did, in seconds."""
        found = self.page.wait_for_function(f"() => ({condition}) ? Date.now() : 0", polling="raf", timeout=20_000)
        return float(found.json_value()) / 1000

    def cell(self, node: str, name: str) -> str:
        """JavaScript for the text of a cell of a node."""
        row = f"document.querySelector('[data-table=nodes] [data-key=\"{node}\"]')"
        return f"{row}?.querySelector('[data-cell={name}]').textContent"

    def text(self, name: str) -> str:
        return f"document.querySelector('[data-text={name}]').textContent"

    def shoot(self, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path

    def close(self) -> None:
        self.page.close()
