"""The codec of the data frames: what is written is read back, and anything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.model.errors import MalformedMessage
from elastane.ps import frames
from elastane.ps.frames import Flag, Hello, Keys, Op, Parts, Peer, Pull, Push

_U32 = st.integers(0, 2**32 - 1)
_I64 = st.integers(-(2**63), 2**63 - 1)


def joined(parts: Parts) -> bytearray:
    return bytearray(b"".join(parts))


@st.composite
def keys(draw: st.DrawFn) -> Keys:
    counts = draw(st.lists(st.integers(0, 5), max_size=5))
    tables = draw(st.lists(_U32, min_size=len(counts), max_size=len(counts)))
    ids = draw(st.lists(_I64, min_size=sum(counts), max_size=sum(counts)))
    return Keys(np.array(tables, np.uint32), np.array(counts, np.uint32), np.array(ids, np.int64))


@st.composite
def pushes(draw: st.DrawFn) -> Push:
    drawn = draw(keys())
    values = draw(st.lists(st.floats(width=32, allow_nan=False), max_size=30))
    return Push(
        client=draw(st.integers(0, 2**64 - 1)),
        sequence=draw(st.integers(0, 2**62)),
        step=draw(_I64),
        weight=draw(st.floats(0, 1e6)),
        keys=drawn,
        lrs=np.full(len(drawn.tables), 0.5, np.float32),
        values=np.array(values, np.float32),
    )


def same_keys(one: Keys, other: Keys) -> bool:
    pairs = ((one.tables, other.tables), (one.counts, other.counts), (one.ids, other.ids))
    return all(mine.tolist() == theirs.tolist() for mine, theirs in pairs)


@given(st.sampled_from(Op), st.integers(0, 127), _U32, st.integers(0, 1000))
def test_a_header_is_read_back(op: Op, flags: int, request: int, length: int) -> None:
    header = frames.read_header(frames.pack_header(op, request, length, Flag(flags)), 1000)
    assert header == (op, Flag(flags), request, length)


@given(st.sampled_from(Op), _U32, _U32, st.integers(0, 127))
def test_a_header_with_one_wrong_bit_or_too_long_a_body_is_refused(op: Op, request: int, length: int, bit: int) -> None:
    good = frames.pack_header(op, request, length)
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedMessage):
        frames.read_header(bad, 2**32)
    with pytest.raises(MalformedMessage):
        frames.read_header(good, length - 1)


@given(st.sampled_from(Peer), st.integers(0, 2**64 - 1), _U32, st.integers(1, 2**16))
def test_a_hello_is_read_by_the_holder_of_the_same_token_only(kind: Peer, number: int, life: int, buckets: int) -> None:
    hello = Hello(kind, number, life, buckets)
    body = joined(frames.write_hello(hello, "secret"))
    assert frames.read_hello(body, "secret") == hello
    assert b"secret" not in body
    with pytest.raises(MalformedMessage, match="wrong token"):
        frames.read_hello(body, "another")
    with pytest.raises(MalformedMessage):
        frames.read_hello(body[:-1], "secret")


@given(_I64, _I64, keys())
def test_a_pull_is_read_back(step: int, wait_for: int, drawn: Keys) -> None:
    read = frames.read_pull(joined(frames.write_pull(Pull(step, wait_for, drawn))))
    assert (read.step, read.wait_for) == (step, wait_for)
    assert same_keys(read.keys, drawn)
    assert read.keys.ids.flags.aligned


@given(pushes())
def test_a_push_is_read_back(push: Push) -> None:
    read = frames.read_push(joined(frames.write_push(push)))
    assert (read.client, read.sequence, read.step, read.weight) == (
        push.client,
        push.sequence,
        push.step,
        push.weight,
    )
    assert same_keys(read.keys, push.keys)
    assert read.lrs.tolist() == push.lrs.tolist()
    assert read.values.tolist() == push.values.tolist()
    assert read.keys.ids.flags.aligned
    assert read.values.flags.aligned


@given(_I64, keys(), st.data())
def test_a_cut_or_longer_pull_is_refused(step: int, drawn: Keys, data: st.DataObject) -> None:
    body = joined(frames.write_pull(Pull(step, -1, drawn)))
    with pytest.raises(MalformedMessage):
        frames.read_pull(body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(MalformedMessage):
        frames.read_pull(body + b"longer")


@given(st.binary(max_size=300))
def test_random_bodies_are_read_or_refused_and_never_more(body: bytes) -> None:
    for read in (
        frames.read_pull,
        frames.read_push,
        frames.read_tick,
        frames.read_applied,
        frames.read_scales,
        lambda data: frames.read_refusal(data, 7),
        lambda data: frames.read_bucket(data, 7),
        lambda data: frames.read_hello(data, "secret"),
    ):
        try:
            read(body)
        except MalformedMessage:
            continue


@given(st.lists(st.integers(0, 99), max_size=20), st.binary(max_size=40), st.binary(max_size=16))
def test_a_refusal_is_read_back(positions: list[int], owner_map: bytes, rest: bytes) -> None:
    body = joined(frames.write_refusal(np.array(positions, np.uint32), owner_map)) + rest
    read, read_map, at = frames.read_refusal(body, 100)
    assert (read.tolist(), read_map, bytes(body[at:])) == (positions, owner_map, rest)
    assert at % 8 == 0


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 2**62), max_size=5), st.integers(0, 6))
def test_what_servers_say_about_a_bucket_is_read_back(applied: dict[int, int], bucket: int) -> None:
    rest = frames.write_applied(list(applied), list(applied.values()))
    read_bucket, epoch, read_rest = frames.read_bucket(joined(frames.write_bucket(bucket, 9, rest)), 7)
    assert (read_bucket, epoch, frames.read_applied(read_rest)) == (bucket, 9, applied)
    shares = dict.fromkeys(applied, 0.25)
    assert frames.read_scales(joined(frames.write_scales(3, shares))) == (3, shares)
    assert frames.read_tick(joined(frames.write_tick(-1, 2.5))) == (-1, 2.5)
