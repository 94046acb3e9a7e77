from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.builders import make_job
from tests.integration.brains import BrainHere, BrainProcess
from tests.integration.harness import Jobs
from tests.integration.memory_master import MemoryMaster
from tests.postgres import Postgres, postgres


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MemoryMaster]:
    """A master of two workers, which nobody has joined yet."""
    started = MemoryMaster(make_job(minReplicas=2, maxReplicas=8), tmp_path / "events.jsonl")
    await started.start()
    yield started
    await started.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server for all tests, each of which has a database of its own."""
    with postgres("fsync=off") as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind: a test with this runs on both."""
    if request.param == "sqlite":
        return str(tmp_path / "brain.sqlite")
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.database()


@pytest.fixture
async def brain(database: str) -> AsyncIterator[BrainHere]:
    started = BrainHere(database)
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
def brain_process(database: str, tmp_path: Path) -> Iterator[BrainProcess]:
    process = BrainProcess(database, tmp_path)
    process.start()
    yield process
    process.close()
