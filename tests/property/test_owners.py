"""The owner map: merges in any order end the same, and its bytes are checked before use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.core.owners import (
    UNOWNED,
    Changes,
    Entry,
    OwnerMap,
    ServerAddress,
    ServerId,
    is_decision,
    next_term,
    next_turn,
    recovery,
)
from elastane.model.errors import MalformedMessage

N = 4
_ids = st.integers(0, 5).map(ServerId)
_entries = st.builds(Entry, st.integers(0, 40), st.none() | _ids, st.none() | _ids)
_addresses = st.builds(
    ServerAddress, st.sampled_from(["127.0.0.1", "::1"]), st.integers(0, 65535), st.text(max_size=8), st.integers(0, 3)
)
_maps = st.builds(
    OwnerMap, st.lists(_entries, min_size=N, max_size=N).map(tuple), st.dictionaries(_ids, _addresses, max_size=4)
)


@given(_maps, _maps, _maps)
def test_merges_in_any_order_end_the_same(a: OwnerMap, b: OwnerMap, c: OwnerMap) -> None:
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) is a
    assert a.merge(b).merge(a) == a.merge(b)


@given(_maps, _maps)
def test_no_bucket_ever_goes_back_to_an_older_entry(a: OwnerMap, b: OwnerMap) -> None:
    for before, other, after in zip(a.entries, b.entries, a.merge(b).entries, strict=True):
        assert after.epoch == max(before.epoch, other.epoch)
        assert after in {before, other}


@given(_maps)
def test_a_map_comes_back_from_the_wire_as_it_was(owner_map: OwnerMap) -> None:
    assert OwnerMap.from_bytes(owner_map.to_bytes()) == owner_map
    assert OwnerMap.from_bytes(memoryview(owner_map.to_bytes())) == owner_map


@given(_maps, st.data())
def test_a_cut_or_longer_map_is_refused(owner_map: OwnerMap, data: st.DataObject) -> None:
    whole = owner_map.to_bytes()
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedMessage):
        OwnerMap.from_bytes(whole[:length])
    with pytest.raises(MalformedMessage):
        OwnerMap.from_bytes(whole + b"x")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_a_map(data: bytes) -> None:
    try:
        OwnerMap.from_bytes(data)
    except MalformedMessage:
        return
    assert OwnerMap.from_bytes(data).to_bytes()


@given(_maps, _maps, st.sets(st.integers(0, N - 1)))
def test_changes_of_some_buckets_do_to_them_what_the_whole_map_does(a: OwnerMap, b: OwnerMap, some: set[int]) -> None:
    changes = b.part(some)
    assert Changes.from_bytes(changes.to_bytes()) == changes
    merged = a.merge_changes(changes)
    whole = a.merge(b)
    for bucket in range(N):
        assert merged.entries[bucket] == (whole if bucket in some else a).entries[bucket]
    for entry in changes.entries.values():
        for server in (entry.owner, entry.backup):
            if server is not None and server in b.servers:
                assert merged.servers[server] == whole.servers[server]
    assert merged.merge_changes(changes) is merged


@given(_maps, st.data())
def test_cut_changes_are_refused(owner_map: OwnerMap, data: st.DataObject) -> None:
    whole = owner_map.part(range(N)).to_bytes()
    with pytest.raises(MalformedMessage):
        Changes.from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(MalformedMessage, match="above 2"):
        OwnerMap.empty(2).merge_changes(owner_map.part(range(N)))


@given(st.integers(0, 1 << 40), st.integers(0, 1000))
def test_what_the_master_decides_stands_above_what_the_servers_do_meanwhile(epoch: int, turns: int) -> None:
    later = epoch
    for _ in range(turns % 50):
        later = next_turn(later)
    assert next_term(epoch) > epoch
    assert is_decision(next_term(epoch))
    assert not is_decision(next_turn(next_term(epoch)))
    assert next_term(epoch) > later or later >> 20 > epoch >> 20


@given(_maps, _ids)
def test_after_a_death_every_bucket_of_the_dead_is_promoted_or_restored(owner_map: OwnerMap, dead: ServerId) -> None:
    alive = {ServerId(number) for number in range(6)}
    promoted, lost, alone = recovery(owner_map, alive, dead)
    decided = owner_map.with_entries({**promoted, **alone})
    for bucket, entry in enumerate(owner_map.entries):
        if entry.owner == dead:
            assert (bucket in promoted) != (bucket in lost)
        assert decided.entries[bucket].owner != dead or bucket in lost
        assert decided.entries[bucket].backup != dead or bucket in lost
        assert decided.entries[bucket].epoch >= entry.epoch


def test_a_map_of_another_number_of_buckets_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="8 buckets does not fit one of 4"):
        OwnerMap.empty(4).merge(OwnerMap.empty(8))


def test_the_first_placement_goes_round_the_servers() -> None:
    address = ServerAddress("127.0.0.1", 1)
    owner_map = OwnerMap.spread(5, {ServerId(7): address, ServerId(3): address}, next_term(0))
    assert owner_map.owned_by(ServerId(3)) == [0, 2, 4]
    assert owner_map.owned_by(ServerId(7)) == [1, 3]
    assert OwnerMap.empty(2).entries == (UNOWNED, UNOWNED)
    later = owner_map.with_entries({0: Entry(next_turn(owner_map.entries[0].epoch), ServerId(7), ServerId(3))})
    assert later.backed_up_by(ServerId(3)) == [0]
    assert later.with_entries({0: owner_map.entries[0]}) == later
    assert later.with_server(ServerId(9), address).without_server(ServerId(7)).servers.keys() == {3, 9}
