"""JournalCopy: what a node keeps of the master's journal, for a master that comes after it and has lost it."""

from __future__ import annotations

from collections.abc import Iterator

from elastane.rpc.protos import node_pb2 as pb

PART_BYTES = 4 << 20


class JournalCopy:
    """The lines that this node was told to keep. It does not read them."""

    def __init__(self) -> None:
        self._lines = bytearray()
        self._coming = bytearray()
        self._whole_bytes = 0

    def keep(self, told: pb.KeepJournal) -> None:
        if told.whole_bytes:
            self._coming, self._whole_bytes = bytearray(), told.whole_bytes
        if not self._whole_bytes:
            self._lines += told.lines
            return
        self._coming += told.lines
        if len(self._coming) >= self._whole_bytes:
            # Not before: a master that dies in the middle of telling it must not leave less behind than there was.
            self._lines, self._coming, self._whole_bytes = self._coming, bytearray(), 0

    def parts(self) -> Iterator[pb.NodeMessage]:
        """All of it, as the answer to who asks for it."""
        for start in range(0, max(1, len(self._lines)), PART_BYTES):
            part = bytes(self._lines[start : start + PART_BYTES])
            last = start + PART_BYTES >= len(self._lines)
            yield pb.NodeMessage(journal_copy=pb.JournalCopy(lines=part, last=last))
