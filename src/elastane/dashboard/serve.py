"""Serves the dashboard: listens, says the link, and ends when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

from elastane.dashboard.access import Access
from elastane.dashboard.app import create_app
from elastane.dashboard.jobs import Jobs
from elastane.model.errors import InvalidInput

GRACE_S = 1


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(jobs: Jobs, token: str, host: str, port: int, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Serve until `stop` is set; `say` is given the link once it works. Raises InvalidInput."""
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        create_app(jobs, Access(token, port)),
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
    )
    server = _Server(config)
    looking = asyncio.create_task(jobs.run())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopping = asyncio.create_task(stop.wait())
    try:
        say(link(host, port, token, jobs.only))
        done, _ = await asyncio.wait({looking, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
    finally:
        jobs.close()  # The streams end, so that the server can.
        server.should_exit = True
        looking.cancel()
        stopping.cancel()
        await asyncio.gather(looking, serving, stopping, return_exceptions=True)


def link(host: str, port: int, token: str, only: str | None) -> str:
    """Where the dashboard is found, with what opens it."""
    name = {"": "127.0.0.1", "0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/{f'jobs/{only}' if only else ''}?token={token}"


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises InvalidInput."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        raise InvalidInput(f'dashboard: cannot listen at "{host}", port {port}: {error.strerror}') from None
    return listening
