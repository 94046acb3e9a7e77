"""Every kind of event has a sentence for people and a row in the docs."""

from __future__ import annotations

import re
from pathlib import Path

from elastane.cli.lines import _LINES
from elastane.master.event_log import _DATA

ROOT = Path(__file__).parents[2]


def emitted_kinds() -> set[str]:
    sources = (ROOT / "src" / "elastane" / "master").glob("*.py")
    return {kind for source in sources for kind in re.findall(r'emit\(\s*"(\w+)"', source.read_text())}


def test_every_kind_has_a_sentence() -> None:
    assert set(_LINES) == emitted_kinds() - _DATA


def test_every_kind_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(emitted_kinds())
