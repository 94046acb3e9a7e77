"""A rate over the last few seconds, kept in few numbers however many events there are."""

from __future__ import annotations

from collections import deque


class RateWindow:
    """Counts per second over the last `window_s` seconds, in `buckets` steps."""

    def __init__(self, window_s: float = 10.0, buckets: int = 20) -> None:
        self._window_s = window_s
        self._bucket_s = window_s / buckets
        self._buckets: deque[tuple[float, int]] = deque()

    def add(self, count: int, now: float) -> None:
        if self._buckets and now - self._buckets[-1][0] < self._bucket_s:
            start, total = self._buckets[-1]
            self._buckets[-1] = (start, total + count)
        else:
            self._buckets.append((now, count))
            self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        if not self._buckets:
            return 0.0
        span = max(now - self._buckets[0][0], self._bucket_s)
        return sum(count for _, count in self._buckets) / span

    def _forget(self, now: float) -> None:
        while self._buckets and now - self._buckets[0][0] > self._window_s:
            self._buckets.popleft()
