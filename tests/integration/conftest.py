from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Jobs


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)
