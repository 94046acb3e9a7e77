"""A parameter server: its rows, its connections, and what the one who started it may ask of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elastane.core.owners import OwnerMap, ServerAddress, ServerId
from elastane.model.ps import TableMemory
from elastane.ps import files, frames, keys
from elastane.ps.clocks import LAST_VERSION
from elastane.ps.connections import Connections
from elastane.ps.engine import Engine
from elastane.ps.files import Restored
from elastane.ps.ledger import NOBODY, State
from elastane.ps.ownership import Ownership
from elastane.ps.part_file import SavedPart
from elastane.ps.server_events import OnEvent
from elastane.ps.store import Store, warm_up

_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from others: a request must not wait for a copy's bookkeeping."""


class ParameterServer:
    """Serves the rows of a store to clients and to other servers. Its methods may be called from any thread.

    It owns no bucket until it is told to. `on_event` is called from its threads, and must not wait. `copy_share` is the
    part of the time that it may spend on copies to other servers while there are requests.
    """

    def __init__(
        self,
        store: Store,
        server_id: ServerId,
        token: str,
        n_buckets: int,
        on_event: OnEvent,
        *,
        life: int = 0,
        copy_share: float = 0.1,
        most_body: int = frames.MAX_BODY,
    ) -> None:
        self.store = store
        self._life = life
        self._engine = Engine(store, n_buckets, server_id, on_event)
        self._ownership = Ownership(self._engine, token, copy_share)
        self._connections = Connections(self._engine, self._ownership, token, life, most_body)

    def start(self, port: int = 0, host: str = "127.0.0.1") -> tuple[str, int, str]:
        """Listen at this port or a free one, and on a Unix socket: the answer is the host, the port, and the path."""
        sys.setswitchinterval(_SWITCH_S)
        warm_up()
        keys.warm_up()
        host, port, path = self._connections.start(host, port)
        ledger = self._engine.ledger
        with self._engine.order:
            ledger.note_server(ledger.me, ServerAddress(host, port, path, self._life))
        self._ownership.start(self._life)
        return host, port, path

    def stop(self) -> None:
        """Close all connections and end all threads; requests under way are not answered."""
        self._engine.clocks.close()
        self._ownership.stop()
        self._connections.stop()

    def own(self, buckets: Iterable[int], epoch: int) -> None:
        """Own these buckets, with what is here of them. Raises RequestRefused for an epoch that is not newer."""
        self._ownership.own(buckets, epoch)

    def owned(self) -> OwnerMap:
        """The entries of the buckets that this server owns, or of which it has a whole copy."""
        with self._engine.order:
            return self._engine.ledger.held()

    def known(self) -> OwnerMap:
        """All that this server knows."""
        return self._engine.ledger.map

    def learn(self, owner_map: OwnerMap) -> None:
        """Take newer entries over: what others own by them is dropped, and a backup that is no more not waited for."""
        self._ownership.learn(owner_map)

    def replicate(self, bucket: int, to_server: ServerId) -> None:
        """Copy a bucket to another server, which becomes its backup; Replicated or ReplicationFailed follows."""
        self._ownership.replicate(bucket, to_server)

    def hand_over(self, bucket: int, to_server: ServerId) -> None:
        """Make another server the owner of a bucket; HandedOver or ReplicationFailed follows."""
        self._ownership.hand_over(bucket, to_server)

    def promote(self, bucket: int, epoch: int) -> None:
        """Own a bucket of which a whole copy is here, after its owner died. Raises RequestRefused."""
        self._ownership.promote(bucket, epoch)

    def bury(self, server: ServerId) -> OwnerMap:
        """Apply nothing more that a dead server has sent, not even what has arrived; then answer as `owned`."""
        with self._engine.order:
            self._connections.cut(server)
        self._ownership.bury(server)
        return self.owned()

    def remove_client(self, number: int) -> None:
        """A client is dead: it does not count for the staleness bound any more, whatever it said."""
        self._engine.heed({number: (LAST_VERSION, -1)})

    def save(self, path: Path, part: str) -> SavedPart:
        """Save all buckets that this server owns, as this part of a checkpoint. Raises OSError."""
        with self._engine.order:
            entries = self._engine.ledger.map.entries
            owned = {bucket: entries[bucket].epoch for bucket in np.nonzero(self._engine.ledger.serving)[0].tolist()}
        return files.save_part(self.store, path, part, owned, self._engine.notes_locked)

    def restore(self, buckets: Iterable[int], folder: Path, epoch: int, number: int | None = None) -> Restored | None:
        """Own buckets as the newest checkpoint has them, or that of a number. None: there is none, so they are empty.

        Raises StateLost, CheckpointMisfit, and RequestRefused for an epoch that is not newer.
        """
        wanted = list(buckets)
        self._ownership.give_up(wanted, epoch)
        restored = files.restore(self.store, folder, wanted, number)
        with self._engine.order:
            for bucket in wanted:
                self._engine.recall(bucket, b"" if restored is None else restored.notes[bucket])
            self._ownership.own(wanted, epoch)
        return restored

    def bucket_states(self) -> dict[State, int]:
        """How many buckets it has something of, by what that is."""
        counts = np.bincount(self._engine.ledger.state, minlength=len(State))
        return {state: int(counts[state]) for state in State if state is not State.NOTHING}

    @property
    def copying(self) -> int:
        """How many buckets are being copied to another server."""
        return int(np.count_nonzero(self._engine.ledger.joining != NOBODY))

    @property
    def steps(self) -> int:
        """One more than the highest step that a client has pushed here."""
        return self._engine.steps

    def evict(self, step: int) -> int:
        """Forget rows that their tables need not keep at this step; how many."""
        return self._engine.evict(step)

    def loads(self) -> tuple[npt.NDArray[np.float32], dict[str, TableMemory]]:
        """Rows pulled and pushed in each bucket since this was last asked, and what each table takes."""
        return self.store.loads().astype(np.float32), self.store.memory()
