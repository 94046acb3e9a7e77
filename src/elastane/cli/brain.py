"""`elastane brain`: serve the Brain, and say where it is found."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from elastane.cli.options import MetricsPortOption
from elastane.cli.ports import check_free
from elastane.cli.view import say
from elastane.model.environment import ENV_BRAIN, ENV_BRAIN_TOKEN_FILE
from elastane.model.errors import InvalidInput
from elastane.platform.local.registry import jobs_folder
from elastane.rpc.log_lines import log_as_json_lines


def brain(
    database: Annotated[
        str | None,
        typer.Option(
            help="postgresql://USER@HOST/NAME, or a file for SQLite; by default a file in this user's state folder.",
            metavar="URL|FILE",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port to listen on; by default any that is free.", min=0, max=65535)
    ] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The file with the token: read if it is there, else written; by default in this user's state folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
) -> None:
    """Remember every job, so that the next one like it starts at a good size.

    It makes or migrates its database, prints what masters need to find it, and serves until Ctrl-C or SIGTERM. Jobs go
    on without it while it is away, and tell it afterwards what it missed.
    """
    asyncio.run(_serve(database, port, token_file, metrics_port))


def brain_folder() -> Path:
    """Where this user's Brain has its token and, unless it is told otherwise, its database."""
    return jobs_folder().with_name("brain")


async def _serve(database: str | None, port: int, token_file: Path | None, metrics_port: int | None) -> None:
    """Serve until SIGTERM or Ctrl-C, and finish what was begun. Raises InvalidInput, DatabaseUnavailable."""
    from elastane.cli.serve import token_in, write_token

    try:
        from elastane.brain.app import BrainServer
        from elastane.brain.metrics import BrainMetrics
        from elastane.brain.planners import start_planners
        from elastane.brain.store import Store
    except ImportError as error:
        raise InvalidInput(f"brain: {error.name} is not installed; install elastane[brain]") from None
    from elastane.prometheus.page import MetricsPage

    log_as_json_lines(sys.stderr)
    where = token_file or brain_folder() / "token"
    token = token_in(where)
    check_free(port)
    check_free(metrics_port, "metrics-port")
    store = Store(database or str(brain_folder() / "brain.sqlite"))
    if token is None:
        token = secrets.token_urlsafe(32)
        _make_folder(where.parent)
        write_token(where, token)
    metrics = BrainMetrics()
    server = BrainServer(store, token, start_planners, on_answered=metrics.answered)
    address = await server.start(f"127.0.0.1:{port}" if port else "")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    say(f"export {ENV_BRAIN}={address} {ENV_BRAIN_TOKEN_FILE}={shlex.quote(str(where.absolute()))}")
    page = MetricsPage(lambda: metrics.collect(server.service))
    if metrics_port is not None:
        say(f"metrics of the Brain: at http://{await page.start(f'127.0.0.1:{metrics_port}')}/metrics")
    await stop.wait()
    await page.stop()
    await server.stop()
    store.close()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f'token-file: "{folder}" cannot be made: {error.strerror}') from None
