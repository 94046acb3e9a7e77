"""JournalCopies: some nodes keep the journal too, for a master that comes after this one and has lost the file.

`find_journal` is that master's first act: it asks the nodes that live, and takes the longest journal that any of them
kept. What the dead master decided in its very last moment may be missing; it is decided anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from elastane.master.journal import Journal, last_time
from elastane.master.rendezvous_server import Tell
from elastane.model.errors import JournalDamaged, JournalLost, MalformedMessage
from elastane.model.ids import NodeName
from elastane.rpc import wire
from elastane.rpc.protos import node_pb2 as pb
from elastane.rpc.server import OnRefused, RpcServer, Send, ServerCertificate

PART_BYTES = 4 << 20
PATIENCE_S = 15.0
"""How long nodes that live may take to come with what they kept."""

FAREWELL_S = 0.5


class JournalCopies:
    """Has `count` of the nodes that attend keep the journal."""

    def __init__(self, journal: Journal, count: int, tell: Tell) -> None:
        self._journal = journal
        self._count = count
        self._tell = tell
        self._here: dict[NodeName, None] = {}
        self._keepers: set[NodeName] = set()
        self._lines: list[bytes] = []
        """What the keepers have yet to be told."""
        journal.on_line.append(self._on_line)
        journal.on_compacted.append(self._on_compacted)

    def attended(self, node: NodeName) -> None:
        self._here[node] = None
        asyncio.get_running_loop().call_soon(self._appoint)  # Once its stream is open for more than the welcome.

    def gone(self, node: NodeName) -> None:
        self._here.pop(node, None)
        self._keepers.discard(node)
        self._appoint()

    def _appoint(self) -> None:
        self._send_lines()
        for node in self._here:
            if len(self._keepers) < self._count and node not in self._keepers:
                self._keepers.add(node)
                self._give_all(node)

    def _give_all(self, node: NodeName) -> None:
        whole = self._journal.whole()
        for start in range(0, len(whole), PART_BYTES):
            part = whole[start : start + PART_BYTES]
            self._tell(node, _keep(part, len(whole) if start == 0 else 0))

    def _on_line(self, line: bytes) -> None:
        if not self._keepers:
            return
        if not self._lines:
            # One message for all that this turn of the loop brings.
            asyncio.get_running_loop().call_soon(self._send_lines)
        self._lines.append(line)

    def _send_lines(self) -> None:
        if self._lines:
            message = _keep(b"".join(self._lines))
            self._lines.clear()
            for node in self._keepers:
                self._tell(node, message)

    def _on_compacted(self) -> None:
        self._lines.clear()
        for node in self._keepers:
            self._give_all(node)


async def find_journal(
    token: str,
    address: str,
    living: Collection[NodeName],
    on_refused: OnRefused,
    certificate: ServerCertificate | None = None,
) -> bytes:
    """The longest journal that a living node keeps. Raises JournalLost if none does, PlatformError."""
    search = _Search(living)
    server = RpcServer(token, on_refused, certificate)
    server.add(pb.DESCRIPTOR.services_by_name["Nodes"], search)
    await server.start(address)
    try:
        await asyncio.wait_for(search.all_answered.wait(), PATIENCE_S)
    except TimeoutError:
        pass  # Those who did not come may be gone.
    finally:
        await server.stop(FAREWELL_S)
    if not search.best:
        raise JournalLost("the master died, its journal is gone, and none of the nodes that live keeps a copy")
    return search.best


class _Search:
    """The `Nodes` service of a master that has nothing but a question."""

    def __init__(self, living: Collection[NodeName]) -> None:
        self.best = b""
        self.all_answered = asyncio.Event()
        self._awaited = set(living)

    async def attend(self, messages: AsyncIterator[pb.NodeMessage], send: Send) -> None:
        first = await anext(messages, None)
        if first is None:
            raise MalformedMessage("a stream without a message, or with one over the size limit")
        hello = wire.checked_hello(first)
        if hello.resumes:
            await send(pb.MasterMessage(give_journal=pb.GiveJournal()))
            self._compare(await _copy(messages))
        self._awaited.discard(NodeName(hello.node))
        if not self._awaited:
            self.all_answered.set()
        # Until then a node that was asked has nothing to come again for.
        await self.all_answered.wait()

    def _compare(self, found: bytes) -> None:
        try:
            if last_time(found) > last_time(self.best):
                self.best = found
        except JournalDamaged:
            pass  # Another node may have a whole one.


async def _copy(messages: AsyncIterator[pb.NodeMessage]) -> bytes:
    """What a node keeps. Raises MalformedMessage for anything else."""
    found = bytearray()
    async for message in messages:
        if message.WhichOneof("body") != "journal_copy":
            raise MalformedMessage(f"{message.WhichOneof('body')} in place of a copy of the journal")
        found += message.journal_copy.lines
        if message.journal_copy.last:
            return bytes(found)
    return b""


def _keep(lines: bytes, whole_bytes: int = 0) -> pb.MasterMessage:
    return pb.MasterMessage(keep_journal=pb.KeepJournal(lines=lines, whole_bytes=whole_bytes))
