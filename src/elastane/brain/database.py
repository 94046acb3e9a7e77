"""Opening and migrating a database: what differs between SQLite and PostgreSQL is in here."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError

from elastane.core.backoff import delays
from elastane.model.errors import DatabaseUnavailable, InvalidInput

_MIGRATION_LOCK = 0x656C6173
"""The key of PostgreSQL's advisory lock: two Brains that start at once do not both migrate."""

WAL_PATIENCE_S = 5.0


def engine_url(database: str) -> URL:
    """`postgresql://...`, `sqlite:///FILE`, or a path. Raises InvalidInput for anything else."""
    if "://" not in database:
        return URL.create("sqlite", database=database)
    try:
        url = make_url(database)
    except ArgumentError:
        raise InvalidInput("database: this is no URL; write postgresql://user@host/name or a file's path") from None
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise InvalidInput(f'database: "{url.drivername}" is not supported; use postgresql:// or a file\'s path')
    if not url.database or url.database == ":memory:":
        raise InvalidInput("database: what is only in memory is not kept; give a file's path")
    return url


def prepare_sqlite(url: URL) -> None:
    """Make the file's folder, for this user alone. Raises InvalidInput if that cannot be."""
    path = Path(url.database or "")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        raise InvalidInput(f'database: "{path}" cannot be written: {error.strerror}') from None


def begin_as_told(engine: Engine) -> None:
    """Let SQLite's transactions be begun by us: whole ones, also around what alters tables."""

    @event.listens_for(engine, "connect")
    def _connected(connection: object, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        # Readers go on while somebody writes; and a commit is on the disk before it is acknowledged.
        _use_wal(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # A transaction that reads first and then writes may find that it cannot; one that begins as a writer waits.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """When two Brains make a file's first connection at once, SQLite lets neither wait for the other: we do."""
    give_up_at = time.monotonic() + WAL_PATIENCE_S
    for pause_s in delays(0.01, 0.5, random.Random()):  # noqa: S311  # jitter, not a secret
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(pause_s)
        else:
            return


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the schema to a revision, in one transaction. Raises DatabaseUnavailable for one of a newer elastane."""
    config = _config()
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        current = schema_revision(connection)
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if current is not None and current not in known:
            raise DatabaseUnavailable(f'the database is at schema "{current}", of a newer elastane than this')
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def schema_revision(connection: Connection) -> str | None:
    """The revision that the schema is at; None if it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    # A percent sign in the path is no interpolation.
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    return config
