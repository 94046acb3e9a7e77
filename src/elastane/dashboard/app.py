"""The dashboard as an ASGI application: pages, their live streams, log tails, and the three actions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.responses import StreamingResponse as Stream
from starlette.routing import Route

from elastane.dashboard.access import Access
from elastane.dashboard.broadcast import Broadcast
from elastane.dashboard.follower import Follower
from elastane.dashboard.guard import Guard, session_of
from elastane.dashboard.jobs import Jobs
from elastane.dashboard.shown import visible
from elastane.model.errors import ElastaneError, InvalidInput, JobNotFound, MasterUnreachable, RequestRefused

MOST_STREAMS = 64
MOST_BODY = 4096
MOST_NODES = 10_000
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_STATIC = ("style.css", "page.js", "charts.js", "icon.svg", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")

Action = Callable[[Follower, dict[str, Any]], Awaitable[str]]


class Pages:
    """Answers requests that the guard let through."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._streams = 0
        self._templates = Environment(
            loader=PackageLoader("elastane.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        folder = files("elastane.dashboard") / "static"
        self._static = {name: (folder / name).read_bytes() for name in _STATIC}

    def routes(self) -> list[Route]:
        actions: dict[str, Action] = {"scale": _scale, "drain": _drain, "autoscaling": _autoscaling}
        return [
            Route("/", self._home),
            Route("/events", self._home_events),
            Route("/jobs/{name}", self._job),
            Route("/jobs/{name}/events", self._job_events),
            Route("/jobs/{name}/logs/{node}", self._log),
            *(
                Route(f"/jobs/{{name}}/{name}", self._action(action), methods=["POST"])
                for name, action in actions.items()
            ),
            Route("/static/{name:path}", self._file),
        ]

    async def _home(self, request: Request) -> Response:
        if self._jobs.only is not None:
            return RedirectResponse(f"/jobs/{quote(self._jobs.only, safe='')}", 303)
        await self._jobs.look()
        return self._page("jobs.html", request, view=self._jobs.view())

    async def _job(self, request: Request) -> Response:
        follower = await self._jobs.get(request.path_params["name"])
        return self._page("job.html", request, name=visible(follower.facts.name), view=follower.view())

    def _page(self, template: str, request: Request, **values: Any) -> Response:
        values |= {
            "nonce": session_of(request.scope).nonce(),
            "alone": self._jobs.only is not None,
            "blank": defaultdict(str),
        }
        return HTMLResponse(self._templates.get_template(template).render(values))

    async def _home_events(self, _: Request) -> Response:
        return self._stream(self._jobs.broadcast)

    async def _job_events(self, request: Request) -> Response:
        follower = await self._jobs.get(request.path_params["name"])
        return self._stream(follower.broadcast)

    def _stream(self, broadcast: Broadcast) -> Response:
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages are open already.\n", 503)

        async def counted() -> AsyncIterator[bytes]:
            self._streams += 1
            try:
                async for message in broadcast.messages():
                    yield message
            finally:
                self._streams -= 1

        return Stream(counted(), media_type="text/event-stream")

    async def _log(self, request: Request) -> Response:
        follower = await self._jobs.get(request.path_params["name"])
        return JSONResponse({"lines": follower.log_tail(request.path_params["node"])})

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_TYPES[name.rsplit(".", 1)[1]])

    def _action(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            nonce = session_of(request.scope).nonce()
            try:
                follower = await self._jobs.get(request.path_params["name"])
                said = await action(follower, await _body(request))
            except ElastaneError as error:
                return JSONResponse({"error": visible(str(error)), "nonce": nonce}, _code(error))
            return JSONResponse({"said": visible(said), "nonce": nonce})

        return answer


async def _scale(follower: Follower, asked: dict[str, Any]) -> str:
    workers, servers = _number(asked, "workers"), _number(asked, "servers")
    if workers is None and servers is None:
        raise InvalidInput("scale: say how many workers, or parameter servers")
    await follower.scale(workers, servers)
    parts = [f"{workers} workers"] if workers is not None else []
    parts += [f"{servers} parameter servers"] if servers is not None else []
    return f"asked for {', '.join(parts)}"


async def _drain(follower: Follower, asked: dict[str, Any]) -> str:
    node = asked.get("node")
    if not isinstance(node, str):
        raise InvalidInput("node: it must be a name")
    await follower.drain(node)
    return f"{node} is leaving"


async def _autoscaling(follower: Follower, asked: dict[str, Any]) -> str:
    paused = asked.get("paused")
    if not isinstance(paused, bool):
        raise InvalidInput("paused: it must be true or false")
    await follower.pause_autoscaling(paused=paused)
    return "the job keeps its size" if paused else "the job sizes itself again"


def _number(asked: dict[str, Any], name: str) -> int | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_NODES:
        raise InvalidInput(f"{name}: {str(value)[:40]} is not a number from 0 to {MOST_NODES}")
    return value


async def _body(request: Request) -> dict[str, Any]:
    """What was asked. Raises InvalidInput."""
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > MOST_BODY:
            raise InvalidInput(f"the request is above {MOST_BODY} bytes")
    try:
        asked = json.loads(content)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise InvalidInput("the request is no JSON object")
    return asked


def _code(error: ElastaneError) -> int:
    if isinstance(error, JobNotFound):
        return 404
    return 400 if isinstance(error, InvalidInput) else 503 if isinstance(error, MasterUnreachable) else 409


async def _not_found(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{visible(str(error))}\n", 404)


async def _missing(_: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 404
    return PlainTextResponse("There is no such page.\n" if code == 404 else "That cannot be asked so.\n", code)


def create_app(jobs: Jobs, access: Access) -> Guard:
    """The whole dashboard, behind its guard."""
    pages = Pages(jobs)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        jobs.close()

    app = Starlette(
        routes=pages.routes(),
        lifespan=lifespan,
        exception_handlers={JobNotFound: _not_found, RequestRefused: _not_found, HTTPException: _missing},
    )
    return Guard(app, access)
