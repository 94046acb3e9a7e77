"""A real journal in a file, whose master dies and is followed by another."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TypeVar
from weakref import finalize

from elastane.master.journal import Journal, Rules

R = TypeVar("R", bound=Rules)


class RestartingJournal:
    """Keeps one set of rules."""

    def __init__(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="elastane-journal-")
        self._path = Path(folder.name) / "journal"
        self._journals = [Journal(self._path)]
        finalize(self, _end, self._journals, folder)

    def watch(self, rules: R) -> R:
        return self._journals[-1].watch("rules", rules)

    def restart(self, before: R, fresh: R) -> R:
        """Read the journal into fresh rules, which are then as those before were."""
        self._journals.pop().close()
        self._journals.append(Journal(self._path, compact_after=10))
        assert self._journals[-1].resumed
        restored = self.watch(fresh)
        assert json.dumps(restored.snapshot()) == json.dumps(before.snapshot())
        return restored


def _end(journals: list[Journal], folder: tempfile.TemporaryDirectory[str]) -> None:
    for journal in journals:
        journal.close()
    folder.cleanup()
