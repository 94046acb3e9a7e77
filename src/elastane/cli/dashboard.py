"""`elastane dashboard`, and the dashboard that `elastane run --dashboard` has beside its job."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import typer

from elastane.cli.view import say
from elastane.model.errors import InvalidInput
from elastane.platform.local.registry import JobFolder

END_TIMEOUT_S = 3.0


def dashboard(
    port: Annotated[
        int, typer.Option(help="The port to listen on; by default any that is free.", min=0, max=65535)
    ] = 0,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
) -> None:
    """Show this user's jobs on this machine as web pages, until Ctrl-C or SIGTERM.

    It prints a link: who has it may see the jobs, scale them and drain their nodes.
    """
    check_installed()
    if not _is_loopback(host):
        print(f"warning: whoever can listen on the way to {host} can read the link's token", file=sys.stderr)
    asyncio.run(_serve(host, port))


async def _serve(host: str, port: int) -> None:
    from elastane.dashboard.jobs import Jobs
    from elastane.dashboard.serve import serve

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(Jobs(), secrets.token_urlsafe(32), host, port, stop, say)


def check_installed() -> None:
    """Raises InvalidInput without what the dashboard needs."""
    for name in ("starlette", "uvicorn", "jinja2"):
        if importlib.util.find_spec(name) is None:
            raise InvalidInput(f"dashboard: {name} is not installed; install elastane[dashboard]")


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextlib.asynccontextmanager
async def beside(folder: JobFolder, note: Callable[[str], None]) -> AsyncIterator[None]:
    """Have a dashboard of one job, in a process of its own, and note its link."""
    with (folder.logs / "dashboard.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: a file of the user's that is called like a module of ours must not take its place.
            *("-P", "-m", "elastane.dashboard", folder.name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    telling = asyncio.create_task(_tell_link(process, folder, note))
    try:
        yield
    finally:
        telling.cancel()
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _tell_link(process: asyncio.subprocess.Process, folder: JobFolder, note: Callable[[str], None]) -> None:
    line = b"" if process.stdout is None else await process.stdout.readline()
    if line:
        note(f"dashboard: {line.decode().strip()}")
    else:
        note(f"the dashboard did not start; see `elastane logs {folder.name} dashboard`")
