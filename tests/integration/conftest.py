from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.builders import make_job
from tests.integration.harness import Jobs
from tests.integration.memory_master import MemoryMaster


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
