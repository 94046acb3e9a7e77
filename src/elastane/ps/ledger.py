"""What one server knows of every bucket: whose it is, what it has of it itself, and which pushes it has had."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from elastane.core.owners import Entry, OwnerMap, ServerAddress, ServerId

NOBODY = -1
_MOST_CLIENTS = 4096


class State(enum.IntEnum):
    """What a server has of a bucket."""

    NOTHING = 0
    RECEIVING = 1
    """A copy that is not whole yet."""
    REPLICA = 2
    """A whole copy, which its owner keeps up to date."""
    OWNED = 3
    HANDING = 4
    """It has told another server to take it, and has not heard that it did."""


class Ledger:
    """The state of all buckets on one server. The caller has the lock; the arrays may be read without it."""

    def __init__(self, n_buckets: int, me: ServerId) -> None:
        self.me = me
        self.map = OwnerMap.empty(n_buckets)
        self.state = np.zeros(n_buckets, np.uint8)
        self.serving = np.zeros(n_buckets, np.uint8)
        """1 where this server owns the bucket: what kernels look at."""
        self.source = np.full(n_buckets, NOBODY, np.int32)
        """The server that keeps this one's copy up to date."""
        self.backup = np.full(n_buckets, NOBODY, np.int32)
        """The server that must have a push before it is acknowledged."""
        self.joining = np.full(n_buckets, NOBODY, np.int32)
        """The server that the bucket is being copied to."""
        self.joined = np.zeros(n_buckets, np.bool_)
        """Whether that one has been told that it is the backup, so that it must have every push too."""
        self.moves = 0
        """Counts what a pull must notice: buckets that this server stopped to own."""
        self._applied: dict[int, npt.NDArray[np.int64]] = {}
        self._map_bytes = b""

    @property
    def n_buckets(self) -> int:
        return len(self.state)

    def map_bytes(self) -> bytes:
        """The map for the wire."""
        if not self._map_bytes:
            self._map_bytes = self.map.to_bytes()
        return self._map_bytes

    def learn(self, owner_map: OwnerMap) -> list[int]:
        """Merge a map; the answer are the buckets whose entry changed."""
        before = self.map
        self.map = before.merge(owner_map)
        if self.map is before:
            return []
        self._map_bytes = b""
        return [
            bucket
            for bucket, (old, new) in enumerate(zip(before.entries, self.map.entries, strict=True))
            if old is not new and old != new
        ]

    def note(self, bucket: int, entry: Entry) -> None:
        """Put a newer entry into the map."""
        self.map = self.map.with_entries({bucket: entry})
        self._map_bytes = b""

    def note_all(self, entries: dict[int, Entry]) -> None:
        """Put newer entries into the map."""
        self.map = self.map.with_entries(entries)
        self._map_bytes = b""

    def note_server(self, server: ServerId, address: ServerAddress) -> None:
        """Put an address into the map."""
        self.map = self.map.with_server(server, address)
        self._map_bytes = b""

    def put(self, bucket: int, state: State, source: int = NOBODY) -> None:
        """Set what this server has of a bucket."""
        leaves = self.state[bucket] == State.OWNED and state != State.OWNED
        self.serving[bucket] = state == State.OWNED
        if leaves:  # After it is not served, and before it is dropped: a pull that saw the old count sees the new one.
            self.moves += 1
        self.state[bucket] = state
        self.source[bucket] = source
        if state != State.OWNED:
            self.backup[bucket] = self.joining[bucket] = NOBODY
            self.joined[bucket] = False

    def peers(self) -> list[int]:
        """The servers to which pushes are forwarded."""
        found = set(np.unique(self.backup).tolist()) | set(np.unique(self.joining).tolist())
        return sorted(found - {NOBODY})

    def needs(self, peer: int) -> npt.NDArray[np.bool_]:
        """The buckets whose pushes this peer must have before they are acknowledged."""
        needs: npt.NDArray[np.bool_] = (self.backup == peer) | ((self.joining == peer) & self.joined)
        return needs

    def applied(self, client: int) -> npt.NDArray[np.int64]:
        """The last sequence of this client in each bucket."""
        found = self._applied.pop(client, None)
        if found is None:
            found = np.full(self.n_buckets, -1, np.int64)
            while len(self._applied) >= _MOST_CLIENTS:  # The one that was silent for the longest time is forgotten.
                del self._applied[next(iter(self._applied))]
        self._applied[client] = found
        return found

    def applied_in(self, bucket: int) -> tuple[list[int], list[int]]:
        """The clients that have pushed into a bucket, and their last sequences."""
        having = [(client, int(last[bucket])) for client, last in list(self._applied.items()) if last[bucket] >= 0]
        return [client for client, _ in having], [last for _, last in having]

    def set_applied(self, bucket: int, sequences: dict[int, int]) -> None:
        """Take over what has been applied to a bucket."""
        for last in self._applied.values():
            last[bucket] = -1
        for client, sequence in sequences.items():
            self.applied(client)[bucket] = sequence

    def held(self) -> OwnerMap:
        """What this server could answer for: what it owns, and of what it has a whole copy."""
        part = OwnerMap.empty(self.n_buckets)
        entries: dict[int, Entry] = {}
        for bucket in np.nonzero(self.state >= State.REPLICA)[0].tolist():
            entry = self.map.entries[bucket]
            if self.state[bucket] == State.HANDING:
                entry = entry._replace(backup=self.me)
            if self.me in {entry.owner, entry.backup}:
                entries[bucket] = entry
        part = part.with_entries(entries)
        address = self.map.servers.get(self.me)
        return part if address is None else part.with_server(self.me, address)
