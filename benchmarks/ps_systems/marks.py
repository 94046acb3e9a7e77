"""How a run tells the driver how far it is, and what it came to."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What one run came to; the driver adds what the processes cost."""

    samples: int
    began: float
    ended: float
    """The clock's time at which training of the measured samples began and ended."""
    pull_ms: float
    push_ms: float
    auc: float


class Marks:
    """Files by which a run tells the driver how far it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> float:
        """The measured samples begin now."""
        return self._mark("began")

    def end(self) -> float:
        return self._mark("ended")

    def finish(self, outcome: Outcome) -> None:
        written = self._folder / "outcome.part"
        written.write_text(json.dumps(asdict(outcome)))
        written.rename(self._folder / "outcome.json")

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def outcome(self) -> Outcome | None:
        file = self._folder / "outcome.json"
        return Outcome(**json.loads(file.read_text())) if file.exists() else None

    def _mark(self, name: str) -> float:
        (self._folder / name).touch()
        return time.time()
