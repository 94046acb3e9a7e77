"""Data in lockstep: whatever workers join, leave and die, each sample is in exactly one finished round."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.core.lockstep import (
    Position,
    StepLedger,
    count,
    merged,
    newly_done,
    put_back,
    split,
    subtract,
    take,
    without,
)
from elastane.model.dataset import DatasetSpec
from elastane.model.ids import DatasetName
from elastane.model.world import Place
from elastane.worker.lockstep import LockstepFeed, Round

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def numbers(some: object) -> set[int]:
    return {number for start, end in some for number in range(start, end)}  # type: ignore[attr-defined]


@given(spans, spans)
def test_spans_are_sets_of_numbers(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    assert numbers(merged(some)) == numbers(some)
    assert count(merged(some)) == len(numbers(some))
    assert numbers(subtract(merged(some), others)) == numbers(some) - numbers(others)


@given(spans, st.integers(1, 7), st.integers(1, 5))
def test_parts_are_even_and_nothing_is_left_out(some: list[tuple[int, int]], parts: int, unit: int) -> None:
    whole = merged(some)
    found = split(whole, parts, unit)
    assert merged(span for part in found for span in part) == whole
    assert sum(count(part) for part in found) == count(whole)
    if unit == 1:
        sizes = [count(part) for part in found]
        assert max(sizes) - min(sizes) <= 1
    assert all(sum(count(part) for part in found[:n]) % unit == 0 for n in range(parts) if count(found[n]))


@given(st.integers(0, 50), spans, st.integers(1, 30), st.integers(1, 20))
def test_what_is_taken_is_of_one_epoch_and_can_be_put_back(
    start: int, left: list[tuple[int, int]], most: int, epoch_size: int
) -> None:
    position = Position(start, subtract(merged(left), [(start, 1000)]))
    end = 3 * epoch_size
    taken, rest = take(position, most, epoch_size, max(end, start))
    assert count(taken) <= most
    assert len({number // epoch_size for number in numbers(taken)}) <= 1
    assert not numbers(taken) & numbers(rest.left)
    assert rest.start - count(rest.left) == position.done + count(taken)
    assert without(position, taken) == rest
    assert put_back(rest, taken).done == position.done
    assert newly_done(position, rest) == merged(taken)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[int], bool, bool]]:
    """Rounds: the size of the world, how often each rank takes, whether one dies, whether the last just came."""
    size = st.integers(1, 4)
    takes = st.lists(st.integers(0, 3), min_size=4, max_size=4)
    return draw(st.lists(st.tuples(size, takes, st.booleans(), st.booleans())))


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(1, 40), st.integers(1, 3), st.integers(1, 5), st.sampled_from([None, 1, 5, 16]))
def test_each_sample_is_in_one_finished_round(
    history: list[tuple[int, list[int], bool, bool]], size: int, epochs: int, batch_size: int, batch: int | None
) -> None:
    spec = DatasetSpec(DatasetName("numbers"), 1, size=size, epochs=epochs, lockstep=True)
    feed = LockstepFeed(spec, batch_size)
    ledger = StepLedger(spec)
    seen: Counter[int] = Counter()
    position = Position()
    rounds = 0
    while not feed.is_finished(position):
        world, takes, dies, joined = history[rounds] if rounds < len(history) else (2, [1] * 4, False, False)
        rounds += 1
        assert rounds < 1000
        members = [Round(feed, position, Place(1, rank, world), batch, 1) for rank in range(world)]
        if joined and world > 1:
            for rank, member in enumerate(members):
                member.replan(Place(1, rank, world), (), range(world - 1))
        for rank, member in enumerate(members):
            for _ in range(max(1, takes[rank]) if batch is None else 100):
                if rounds > len(history) or takes[rank]:
                    member.next_batch()
        if dies and world > 1:
            members = members[1:]
        # Until a round of fixed size has all its samples, the survivors agree on who holds what, and take the rest.
        for _ in range(3):
            taken = [member.taken for member in members]
            if not dies and len(taken) == world and members[0].is_complete(taken):
                break
            dies = False
            world = len(members)
            held = merged(span for member in members for span in member.held)
            for rank, member in enumerate(members):
                member.replan(Place(2, rank, world), held)
                while batch is not None and member.pieces_left:
                    member.next_batch()
        taken = [member.taken for member in members]
        assert members[0].is_complete(taken)
        after = {member.position_after(taken) for member in members}
        assert len(after) == 1, "replicas disagree on the position"
        for member in members:
            seen.update(numbers(member.held))
        position = after.pop()
        shards = ledger.report(position)
        assert ledger.committed_samples == sum(seen.values())
        assert all(shard.end <= size for shard in shards)
    assert seen == Counter(range(size * epochs))
    assert ledger.finished
