"""The memory of a parameter server: where it goes is not underestimated, and what is given is never too little."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.core.memory_growth import after_oom, forecast, least
from elastane.model.errors import InvalidInput
from elastane.model.quantity import Memory
from elastane.model.sizing import MemoryReading

MIB = 2**20


def grown(start: float, slope: float, power: float, count: int, each: float, noise: float = 0.0) -> list[MemoryReading]:
    draw = random.Random(count)
    return [
        MemoryReading(
            samples=each * number,
            bytes=int((start + slope * (each * number) ** power) * (1 + noise * draw.uniform(-1, 1))),
        )
        for number in range(1, count + 1)
    ]


@given(
    start=st.floats(50 * MIB, 1000 * MIB),
    slope=st.floats(10, 10_000),
    count=st.integers(5, 40),
    further=st.floats(1.0, 10.0),
)
def test_a_table_that_grows_in_a_line_is_foreseen(start: float, slope: float, count: int, further: float) -> None:
    readings = grown(start, slope, 1.0, count, 1e4)
    end = further * 1e4 * count
    told = forecast(readings, end)
    true = start + slope * end
    assert 0.999 * true <= told.bytes_at_end <= 1.25 * true


@given(power=st.floats(0.4, 0.9), slope=st.floats(1e3, 1e5), count=st.integers(8, 40), further=st.floats(1.0, 4.0))
def test_a_table_that_grows_ever_more_slowly_is_foreseen(
    power: float, slope: float, count: int, further: float
) -> None:
    readings = grown(100 * MIB, slope, power, count, 1e4)
    end = further * 1e4 * count
    told = forecast(readings, end)
    true = 100 * MIB + slope * end**power
    assert 0.95 * true <= told.bytes_at_end <= 1.5 * true


@given(
    st.lists(st.builds(MemoryReading, st.floats(0, 1e9), st.integers(0, 2**40)), min_size=1, max_size=20),
    st.floats(0, 1e10),
    st.integers(1, 2**41),
)
def test_never_below_what_was_seen_with_a_margin(readings: list[MemoryReading], end: float, limit: int) -> None:
    told = forecast(readings, end, Memory(limit))
    peak = max(reading.bytes for reading in readings)
    assert told.wanted_bytes >= 1.2 * peak
    assert told.bytes_at_end >= peak
    if told.limit_at_samples is None:
        assert told.bytes_at_end < limit
    else:
        assert told.bytes_at_end >= limit
        assert told.limit_at_samples >= max(reading.samples for reading in readings)
    assert least(Memory(limit), peak).bytes >= max(1.2 * peak, limit)


def test_the_limit_is_foreseen_before_it_is_reached() -> None:
    readings = grown(100 * MIB, 5000.0, 1.0, 10, 1e4, noise=0.01)
    told = forecast(readings, 1e7, Memory.mib(1000))
    true = 900 * MIB / 5000.0
    assert told.limit_at_samples is not None
    assert 0.8 * true <= told.limit_at_samples <= true
    assert forecast(readings, 1.2e5, Memory.mib(1000)).limit_at_samples is None


def test_a_server_that_does_not_grow_is_left_alone() -> None:
    told = forecast([MemoryReading(1e4 * n, 100 * MIB + n % 3) for n in range(1, 20)], 1e9, Memory.mib(130))
    assert told.limit_at_samples is None
    assert told.wanted_bytes == pytest.approx(120 * MIB, rel=0.01)


def test_with_two_readings_nothing_is_known_about_growth() -> None:
    told = forecast([MemoryReading(1, 1 * MIB), MemoryReading(2, 2 * MIB)], 1e9)
    assert told.bytes_at_end == 2 * MIB


@given(st.none() | st.integers(1, 2**40), st.integers(0, 2**40))
def test_out_of_memory_doubles_it(limit: int | None, peak: int) -> None:
    given_ = after_oom(None if limit is None else Memory(limit), peak)
    assert given_.bytes >= 2 * max(limit or 0, peak, 1)


@pytest.mark.parametrize("reading", [MemoryReading(float("nan"), 1), MemoryReading(1, -1), MemoryReading(1e30, 1)])
def test_garbage_is_refused_by_name(reading: MemoryReading) -> None:
    with pytest.raises(InvalidInput, match=r"samples|bytes"):
        forecast([reading], 10)
    with pytest.raises(InvalidInput, match="readings"):
        forecast([], 10)
