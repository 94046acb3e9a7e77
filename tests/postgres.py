"""A real PostgreSQL server of our own: in a temporary folder, on a free port of loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_USER = "postgres"


class Postgres:
    """A server that runs; `database()` makes an empty one on it."""

    def __init__(self, folder: Path, port: int, settings: tuple[str, ...]) -> None:
        self._folder = folder
        self._port = port
        self._settings = settings
        self._made = 0

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = " ".join(f"-c {setting}" for setting in (f"port={self._port}", *self._settings))
        _run("pg_ctl", "-D", str(self._folder / "data"), "-l", str(self._folder / "log"), "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop the server as a crash would: without a last checkpoint."""
        _run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-m", "immediate", "stop")

    def database(self) -> str:
        """The URL of a new, empty database."""
        self._made += 1
        name = f"brain_{self._made}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self._port}/{database}"


@contextmanager
def postgres(*settings: str) -> Iterator[Postgres]:
    """A server with these settings; it listens on 127.0.0.1 alone, and is gone with its folder at the end."""
    folder = Path(tempfile.mkdtemp(prefix="elastane-postgres-"))
    try:
        owner = _owner()
        if owner is not None:
            shutil.chown(folder, owner, owner)
        _run("initdb", "-D", str(folder / "data"), "-U", _USER, "-A", "trust", "--no-sync")
        server = Postgres(
            folder,
            _free_port(),
            ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *settings),
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _binary(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"PostgreSQL's {name} is not on this machine; `make setup` as root installs it")
    return path


def _owner() -> str | None:
    """Whose the server is, if not this user's: PostgreSQL refuses to run as root. Its package makes this user."""
    return _USER if os.geteuid() == 0 else None


def _run(binary: str, *arguments: str) -> None:
    owner = _owner()
    # Another process changes the user: a fork of this one, when gRPC has threads in it, may die.
    as_owner = [] if owner is None else ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups"]
    # Not through a pipe: the server that pg_ctl starts would keep it open.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [*as_owner, _binary(binary), *arguments],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
        output.seek(0)
        if done.returncode != 0:
            raise RuntimeError(f"{binary} failed with {done.returncode}: {output.read()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
