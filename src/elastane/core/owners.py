"""Which parameter server has which bucket: the owner map, its merge, and its form on the wire.

Every change of a bucket's entry raises its epoch, and of two maps the merge keeps, bucket by bucket, the entry with the
higher epoch. So maps need no order among themselves, they may come late or twice, and a stale one changes nothing.

An epoch has two parts, `term << TERM_BITS | turn`. The servers that hand a bucket over among themselves raise the turn;
the master, when it decides without them (a server died), begins a new term. So what the master decides stands above all
that the servers did before they heard of it, and the two never choose the same epoch for different entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NewType, Self

from elastane.model.errors import MalformedMessage

ServerId = NewType("ServerId", int)
"""The number of a parameter server's slot among the job's nodes, 0 to 65534."""

TERM_BITS = 20
MAX_BUCKETS = 1 << 20
MAX_EPOCH = (1 << 63) - 1

_NOBODY = 0xFFFF
_HEAD = struct.Struct("<4sIH")
_ENTRY = struct.Struct("<HHQ")
_SERVER = struct.Struct("<HIHHH")
_CHANGE = struct.Struct("<IHHQ")
_MAGIC = b"OWN1"
_CHANGES_MAGIC = b"OWC1"


class Entry(NamedTuple):
    """Who has one bucket. The order of the fields makes the higher epoch the greater entry."""

    epoch: int
    owner: ServerId | None
    backup: ServerId | None = None


UNOWNED = Entry(0, None, None)


def next_turn(epoch: int) -> int:
    """The epoch of the next change that the servers of a bucket make among themselves."""
    return epoch + 1


def next_term(epoch: int) -> int:
    """The epoch of a decision of the master: above whatever the servers may have done since this epoch."""
    return ((epoch >> TERM_BITS) + 1) << TERM_BITS


def is_decision(epoch: int) -> bool:
    """Whether it is an epoch of the master's, not of the servers among themselves."""
    return epoch > 0 and epoch % (1 << TERM_BITS) == 0


@dataclass(frozen=True)
class ServerAddress:
    """Where one server listens. `life` counts the starts of the process in this slot; the later one is right."""

    host: str
    port: int
    unix_path: str = ""
    life: int = 0


@dataclass(frozen=True)
class OwnerMap:
    """The owner, backup and epoch of every bucket, and the addresses of the servers. Unchanging."""

    entries: tuple[Entry, ...]
    servers: Mapping[ServerId, ServerAddress] = field(default_factory=dict)

    @classmethod
    def empty(cls, n_buckets: int) -> Self:
        """A map in which nobody has anything."""
        return cls((UNOWNED,) * n_buckets)

    @classmethod
    def spread(cls, n_buckets: int, servers: Mapping[ServerId, ServerAddress], epoch: int) -> Self:
        """The first placement: the buckets one by one over the servers, in the order of their ids, without backups."""
        ids = sorted(servers)
        return cls(tuple(Entry(epoch, ids[bucket % len(ids)]) for bucket in range(n_buckets)), dict(servers))

    @property
    def n_buckets(self) -> int:
        return len(self.entries)

    def merge(self, other: OwnerMap) -> OwnerMap:
        """What is newer of the two, bucket by bucket. The order of merges makes no difference."""
        if self.n_buckets != other.n_buckets:
            raise MalformedMessage(
                f"an owner map of {other.n_buckets} buckets does not fit one of {self.n_buckets}; "
                "the number of buckets is fixed for the job"
            )
        entries = tuple(map(_newer, self.entries, other.entries))
        servers = _newer_addresses(self.servers, other.servers)
        if entries == self.entries and servers is self.servers:
            return self
        return OwnerMap(entries, servers)

    def with_entries(self, changes: Mapping[int, Entry]) -> OwnerMap:
        """This map with these entries, where they are newer."""
        entries = list(self.entries)
        for bucket, entry in changes.items():
            entries[bucket] = _newer(entries[bucket], entry)
        return replace(self, entries=tuple(entries))

    def with_server(self, server: ServerId, address: ServerAddress) -> OwnerMap:
        """This map with this server's address."""
        return replace(self, servers={**self.servers, server: address})

    def without_server(self, server: ServerId) -> OwnerMap:
        """This map without this server's address; its buckets' entries stay as they are."""
        return replace(self, servers={known: where for known, where in self.servers.items() if known != server})

    def owned_by(self, server: ServerId) -> list[int]:
        """The buckets that this server owns."""
        return [bucket for bucket, entry in enumerate(self.entries) if entry.owner == server]

    def backed_up_by(self, server: ServerId) -> list[int]:
        """The buckets of which this server has the second copy."""
        return [bucket for bucket, entry in enumerate(self.entries) if entry.backup == server]

    def part(self, buckets: Iterable[int]) -> Changes:
        """What this map says of some buckets."""
        entries = {bucket: self.entries[bucket] for bucket in buckets}
        named = {server for entry in entries.values() for server in (entry.owner, entry.backup)}
        return Changes(entries, {server: where for server, where in self.servers.items() if server in named})

    def merge_changes(self, changes: Changes) -> OwnerMap:
        """This map with what is newer in the changes. Raises MalformedMessage."""
        if any(bucket >= self.n_buckets for bucket in changes.entries):
            raise MalformedMessage(f"changes of buckets above {self.n_buckets}")
        newer = {
            bucket: entry
            for bucket, entry in changes.entries.items()
            if _entry_order(entry) > _entry_order(self.entries[bucket])
        }
        servers = _newer_addresses(self.servers, changes.servers)
        if not newer and servers is self.servers:
            return self
        entries = list(self.entries)
        for bucket, entry in newer.items():
            entries[bucket] = entry
        return OwnerMap(tuple(entries), servers)

    def to_bytes(self) -> bytes:
        """The map's form on the wire."""
        parts = [_HEAD.pack(_MAGIC, self.n_buckets, len(self.servers))]
        parts += [_ENTRY.pack(_number(entry.owner), _number(entry.backup), entry.epoch) for entry in self.entries]
        return b"".join(parts) + _pack_servers(self.servers)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Read a map from the wire. Raises MalformedMessage."""
        try:
            return cls._parse(bytes(data))
        except (struct.error, UnicodeDecodeError) as error:
            raise MalformedMessage(f"not an owner map: {error}") from None

    @classmethod
    def _parse(cls, data: bytes) -> Self:
        magic, n_buckets, n_servers = _HEAD.unpack_from(data)
        if magic != _MAGIC or not 0 < n_buckets <= MAX_BUCKETS:
            raise MalformedMessage("not an owner map: wrong start")
        at = _HEAD.size
        if len(data) < at + n_buckets * _ENTRY.size:
            raise MalformedMessage(f"not an owner map: {len(data)} bytes do not hold {n_buckets} buckets")
        entries = []
        for owner, backup, epoch in _ENTRY.iter_unpack(data[at : at + n_buckets * _ENTRY.size]):
            if epoch > MAX_EPOCH:
                raise MalformedMessage(f"not an owner map: epoch {epoch} is above {MAX_EPOCH}")
            entries.append(Entry(epoch, _server(owner), _server(backup)))
        return cls(tuple(entries), _parse_servers(data[at + n_buckets * _ENTRY.size :], n_servers))


@dataclass(frozen=True)
class Changes:
    """A part of an owner map: the entries of some buckets, and the addresses of the servers in them."""

    entries: Mapping[int, Entry]
    servers: Mapping[ServerId, ServerAddress] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The form on the wire."""
        parts = [_HEAD.pack(_CHANGES_MAGIC, len(self.entries), len(self.servers))]
        for bucket, entry in self.entries.items():
            parts.append(_CHANGE.pack(bucket, _number(entry.owner), _number(entry.backup), entry.epoch))
        return b"".join(parts) + _pack_servers(self.servers)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Read changes from the wire. Raises MalformedMessage."""
        data = bytes(data)
        try:
            magic, n_entries, n_servers = _HEAD.unpack_from(data)
            end = _HEAD.size + n_entries * _CHANGE.size
            if magic != _CHANGES_MAGIC or len(data) < end:
                raise MalformedMessage("not changes of an owner map")
            entries = {}
            for bucket, owner, backup, epoch in _CHANGE.iter_unpack(data[_HEAD.size : end]):
                if epoch > MAX_EPOCH:
                    raise MalformedMessage(f"not changes of an owner map: epoch {epoch} is above {MAX_EPOCH}")
                entries[bucket] = Entry(epoch, _server(owner), _server(backup))
            return cls(entries, _parse_servers(data[end:], n_servers))
        except (struct.error, UnicodeDecodeError) as error:
            raise MalformedMessage(f"not changes of an owner map: {error}") from None


def recovery(
    believed: OwnerMap, alive: Iterable[ServerId], dead: ServerId
) -> tuple[dict[int, Entry], list[int], dict[int, Entry]]:
    """What the master decides when a server died: who is promoted, what must be restored, who goes on without a backup.

    `believed` must be merged with what every live server said (`ParameterServer.bury`) after the death was known. The
    first part of the answer are entries to promote, the last those whose owner just learns that it has no backup.
    """
    living = set(alive) - {dead}
    promoted: dict[int, Entry] = {}
    lost: list[int] = []
    alone: dict[int, Entry] = {}
    for bucket, entry in enumerate(believed.entries):
        if entry.owner == dead:
            if entry.backup in living:
                promoted[bucket] = Entry(next_term(entry.epoch), entry.backup)
            else:
                lost.append(bucket)
        elif entry.backup == dead:
            alone[bucket] = Entry(next_term(entry.epoch), entry.owner)
    return promoted, lost, alone


def _pack_servers(servers: Mapping[ServerId, ServerAddress]) -> bytes:
    parts = []
    for server in sorted(servers):
        address = servers[server]
        host, path = address.host.encode(), address.unix_path.encode()
        parts.append(_SERVER.pack(server, address.life, address.port, len(host), len(path)) + host + path)
    return b"".join(parts)


def _parse_servers(data: bytes, count: int) -> dict[ServerId, ServerAddress]:
    servers: dict[ServerId, ServerAddress] = {}
    at = 0
    for _ in range(count):
        server, life, port, host_length, path_length = _SERVER.unpack_from(data, at)
        at += _SERVER.size
        end = at + host_length + path_length
        if server == _NOBODY or server in servers or end > len(data):
            raise MalformedMessage("not an owner map: its servers are damaged")
        host, path = data[at : at + host_length].decode(), data[at + host_length : end].decode()
        servers[ServerId(server)] = ServerAddress(host, port, path, life)
        at = end
    if at != len(data):
        raise MalformedMessage(f"not an owner map: {len(data) - at} bytes follow its end")
    return servers


def _newer_addresses(
    known: Mapping[ServerId, ServerAddress], other: Mapping[ServerId, ServerAddress]
) -> Mapping[ServerId, ServerAddress]:
    newer = {
        server: address
        for server, address in other.items()
        if server not in known or _address_order(address) > _address_order(known[server])
    }
    return {**known, **newer} if newer else known


def _newer(one: Entry, other: Entry) -> Entry:
    # Equal epochs of different entries do not occur; if they did, all must still choose the same one.
    return max(one, other, key=_entry_order)


def _entry_order(entry: Entry) -> tuple[int, int, int]:
    return entry.epoch, _number(entry.owner), _number(entry.backup)


def _address_order(address: ServerAddress) -> tuple[int, str, int, str]:
    return address.life, address.host, address.port, address.unix_path


def _number(server: ServerId | None) -> int:
    return _NOBODY if server is None else server


def _server(number: int) -> ServerId | None:
    return None if number == _NOBODY else ServerId(number)
