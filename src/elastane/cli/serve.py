"""`elastane master`: serve a job whose workers start elsewhere, and say where it is found."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path

from elastane.cli.ports import check_free, say_metrics
from elastane.cli.run import conclude, show_job
from elastane.cli.view import PlainView, say
from elastane.model.environment import ENV_MASTER, ENV_TOKEN_FILE
from elastane.model.errors import InvalidInput
from elastane.model.job_spec import ElasticJob
from elastane.platform.local.launcher import LocalJob

_SHORTEST_TOKEN = 16


async def serve_job(
    job: ElasticJob,
    events: Path | None,
    *,
    port: int = 0,
    token_file: Path | None = None,
    metrics_port: int | None = None,
    tensorboard: Path | None = None,
) -> int:
    """Serve until the job ends; the answer is the exit code. Being stopped is this command's way to end well."""
    token = None if token_file is None else token_in(token_file)
    check_free(port)
    check_free(metrics_port, "metrics-port")
    address = f"127.0.0.1:{port}" if port else ""
    local = LocalJob(job, events, address=address, token=token, metrics_port=metrics_port, tensorboard=tensorboard)
    record = await local.start()
    where = token_file or local.folder.path / "token"
    if token is None:
        write_token(where, record.token)
    say(f"export {ENV_MASTER}={record.address} {ENV_TOKEN_FILE}={shlex.quote(str(where.absolute()))}")
    say_metrics(record, metrics_port)
    end, stopped_by = await show_job(local, record, PlainView())
    code = conclude(end, stopped_by)
    return 0 if end["end"] == "stopped" else code


def token_in(path: Path) -> str | None:
    """The token in a file; None if there is no such file. Raises InvalidInput for one that is no token."""
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'token-file: "{path}" cannot be read: {error}') from None
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(
            f'token-file: "{path}" does not hold a token: one line of at least {_SHORTEST_TOKEN} letters and digits'
        )
    return token


def write_token(path: Path, token: str) -> None:
    """Beside, and renamed: who waits for the file finds all of it. Only this user may read it."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    beside.rename(path)
