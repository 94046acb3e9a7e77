"""When checkpoints are made, where, and how many stay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastane.model.errors import InvalidInput

DEFAULT_EVERY_S = 600.0


@dataclass(frozen=True)
class SavePolicy:
    """Save into `folder` every so many steps, every so many seconds, or both; without either, every ten minutes."""

    folder: Path
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise InvalidInput(f"save_every_steps: {self.every_steps} is below 1")
        if self.every_s is not None and not self.every_s > 0:
            raise InvalidInput(f"save_every_s: {self.every_s:g} is not above 0")
        if self.keep < 1:
            raise InvalidInput(f"keep: {self.keep} is below 1; the newest checkpoint always stays")
        if self.every_steps is None and self.every_s is None:
            object.__setattr__(self, "every_s", DEFAULT_EVERY_S)
