"""From raw figures to windows: the warm-up after each change is cut, outliers are dropped, the rest becomes medians."""

from __future__ import annotations

from dataclasses import dataclass

from elastane.model.sizing import Reading, Window


@dataclass(frozen=True)
class WindowRules:
    """How readings become windows."""

    readings: int = 8
    """How many make a window."""
    warm_up_s: float = 3.0
    """Readings of the first seconds at a size do not count."""


RULES = WindowRules()


class StableWindows:
    """Takes the readings of one job as they come, and gives a window whenever there is one."""

    def __init__(self, rules: WindowRules = RULES) -> None:
        self._rules = rules

    def add(self, reading: Reading, now_s: float) -> Window | None:
        """Take a reading; raise InvalidInput, and change nothing, if it cannot be true."""
        raise NotImplementedError

    def changing(self, at_s: float) -> None:
        """The job changes (its size, a lost node): what was gathered of the open window, and the warm-up, is cut."""
        raise NotImplementedError
