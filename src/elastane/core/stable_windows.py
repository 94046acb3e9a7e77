"""From raw figures to windows: the warm-up after each change is cut, outliers are dropped, the rest becomes medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from elastane.model.errors import InvalidInput
from elastane.model.sizing import JobSize, Reading, Window, check_reading

_MEDIANS = ("batch_size", "samples_per_s", "step_s", "input_wait_s", "pull_s", "push_s", "sync_s", "hottest_share")
_KNOWN_MEDIANS = ("worker_cpu_used", "ps_cpu_used")
_SIGMAS_PER_MAD = 1.4826


@dataclass(frozen=True)
class WindowRules:
    """How readings become windows."""

    readings: int = 8
    """How many make a window."""
    warm_up_s: float = 3.0
    """Readings of the first seconds at a size do not count."""
    outlier_sigmas: float = 3.5
    """A reading whose speed is so far from the median is dropped."""
    least_sigma: float = 0.03
    """Of the median: a job that is steadier than this has no outliers."""
    drift: float = 0.2
    """A stretch whose two halves differ by more than this is not stable yet, and its first half is dropped."""
    most_drifts: int = 4
    """So often; then it is taken as it is, for a job that never settles has a speed too."""


RULES = WindowRules()


class StableWindows:
    """Takes the readings of one job as they come, and gives a window whenever there is one."""

    def __init__(self, rules: WindowRules = RULES) -> None:
        self._rules = rules
        self._size: JobSize | None = None
        self._warm_at_s = 0.0
        self._last_at_s = float("-inf")
        self._begun_s = 0.0
        self._open: list[Reading] = []
        self._drifts = 0

    def add(self, reading: Reading, now_s: float) -> Window | None:
        """Take a reading; raise InvalidInput, and change nothing, if it cannot be true."""
        check_reading(reading, now_s)
        if reading.at_s <= self._last_at_s:
            raise InvalidInput(f"at_s: {reading.at_s:g} is not after the reading before, at {self._last_at_s:g}")
        if reading.size != self._size:
            self._restart(reading.at_s)
            self._size = reading.size
        before_s, self._last_at_s = self._last_at_s, reading.at_s
        if reading.at_s < self._warm_at_s:
            return None
        if not self._open:
            # A reading is about the time since the one before, unless that was still in the warm-up.
            self._begun_s = before_s if before_s >= self._warm_at_s else reading.at_s
        self._open.append(reading)
        return self._close() if len(self._open) >= self._rules.readings else None

    def changing(self, at_s: float) -> None:
        """The job changes (its size, a lost node): what was gathered is cut, and so is the warm-up from here."""
        self._restart(at_s)

    def _restart(self, at_s: float) -> None:
        self._open = []
        self._drifts = 0
        self._warm_at_s = max(at_s + self._rules.warm_up_s, self._warm_at_s)

    def _close(self) -> Window | None:
        kept = _without_outliers(self._open, self._rules)
        half = len(kept) // 2
        early, late = (median(one.samples_per_s for one in part) for part in (kept[:half], kept[half:]))
        if abs(late - early) > self._rules.drift * max(early, late) and self._drifts < self._rules.most_drifts:
            self._drifts += 1
            cut = len(self._open) // 2
            self._begun_s = self._open[cut - 1].at_s
            self._open = self._open[cut:]
            return None
        window = _window(kept, self._open[-1].at_s, self._begun_s)
        self._open = []
        self._drifts = 0
        return window


def _without_outliers(readings: Sequence[Reading], rules: WindowRules) -> list[Reading]:
    middle = median(one.samples_per_s for one in readings)
    sigma = _SIGMAS_PER_MAD * median(abs(one.samples_per_s - middle) for one in readings)
    allowed = rules.outlier_sigmas * max(sigma, rules.least_sigma * middle)
    return [one for one in readings if abs(one.samples_per_s - middle) <= allowed]


def _window(readings: Sequence[Reading], at_s: float, begun_s: float) -> Window:
    middles = {name: median(getattr(one, name) for one in readings) for name in _MEDIANS}
    for name in _KNOWN_MEDIANS:
        known = [value for one in readings if (value := getattr(one, name)) is not None]
        middles[name] = median(known) if known else None
    newest = readings[-1]
    return Window(
        at_s=at_s,
        size=newest.size,
        fixed_global_batch=newest.fixed_global_batch,
        duration_s=at_s - begun_s,
        **middles,
    )
