"""Which commands gain by a warm start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastane.platform.local.warm_start import Launch, imports_torch


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("import torch", True),
        ("import json, torch.nn as nn", True),
        ("from torch.utils import data", True),
        ("from elastane.torch import trainer", True),
        ("from elastane import torch", True),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", True),
        ("import elastane", False),
        ("import torchless", False),
        ("from . import torch", False),
        ("if False:\n    import torch", False),
        ("def main():\n    import torch", False),
        ("import torch; this is no Python", False),
    ],
)
def test_only_an_import_that_is_always_reached_counts(tmp_path: Path, text: str, does: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert imports_torch((sys.executable, str(script), "--lr", "0.1")) is does


def test_only_a_script_of_this_interpreter_counts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch")
    assert not imports_torch(("/elsewhere/python", str(script)))
    assert not imports_torch((sys.executable, "-m", str(script)))
    assert not imports_torch((sys.executable,))
    assert not imports_torch((sys.executable, str(tmp_path / "absent.py")))


def test_launches_that_differ_by_name_and_choice_of_cores_are_alike() -> None:
    first = Launch("job-worker-0", ("train",), {"ELASTANE_NODE": "job-worker-0", "A": "1"}, frozenset({0}))
    assert first.is_like(
        Launch("job-worker-1", ("train",), {"ELASTANE_NODE": "job-worker-1", "A": "1"}, frozenset({1}))
    )
    assert not first.is_like(Launch("job-worker-1", ("train",), {"A": "2"}, frozenset({0})))
    assert not first.is_like(Launch("job-worker-1", ("train",), {"A": "1"}, frozenset({0, 1})))
    assert not first.is_like(Launch("job-worker-1", ("train", "-x"), {"A": "1"}, frozenset({0})))
