"""GuestHandover: tells guests how their change of parameter servers goes. The rules are `core.checkpoint_handover`."""

from __future__ import annotations

from elastane.core.checkpoint_handover import CheckpointHandover
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.rendezvous_server import Tell
from elastane.model.errors import MalformedMessage
from elastane.model.ids import NodeName
from elastane.rpc.protos import node_pb2 as pb

MOST_SERVERS = 1000
LONGEST_ADDRESS = 300


class GuestHandover:
    """The versions of the servers that guests bring along."""

    def __init__(self, events: EventLog, tell: Tell, journal: Journal) -> None:
        self._events = events
        self._tell = tell
        self._rules = journal.watch("handover", CheckpointHandover())
        self._through = 0

    def heard(self, guest: NodeName, message: pb.HandoverWord) -> None:
        """A guest's word. Raises RequestRefused, MalformedMessage."""
        match message.WhichOneof("word"):
            case "join":
                self._rules.join(guest)
            case "set_servers":
                addresses = list(message.set_servers.address)
                if len(addresses) > MOST_SERVERS or any(len(address) > LONGEST_ADDRESS for address in addresses):
                    raise MalformedMessage(f"a set of {len(addresses)} servers; {MOST_SERVERS} are allowed")
                self._rules.set_servers(addresses)
                self._events.emit("servers_set", version=self._rules.version, servers=addresses, node=guest)
            case "reached":
                self._rules.reached(guest, message.reached)
            case "saved":
                self._rules.saved(guest, message.saved)
            case "restored" if message.restored == self._rules.version:
                self._rules.restored(guest, message.restored)
            case "restored":
                pass  # Meanwhile another one is wanted, as it is told now.
            case None:
                raise MalformedMessage("an empty word in a hand-over")
        self._tell_all(also=guest)

    def left(self, guest: NodeName) -> None:
        """A guest is gone."""
        if guest in self._rules.workers:
            self._rules.left(guest)
            self._tell_all()

    def retell(self, guest: NodeName) -> None:
        """A guest comes back after a master died: tell it what it may not have heard."""
        if guest in self._rules.workers:
            self._tell(guest, self._message(guest))

    def _tell_all(self, also: NodeName | None = None) -> None:
        for guest in self._rules.workers:
            self._tell(guest, self._message(guest))
        if also is not None and also not in self._rules.workers:
            told = pb.HandoverState(version=self._rules.version, server=self._rules.servers, needed=self._needed())
            self._tell(also, pb.MasterMessage(handover_state=told))
        if self._rules.through and self._through != self._rules.version:
            self._through = self._rules.version
            self._events.emit("handed_over", version=self._rules.version, servers=list(self._rules.servers))

    def _message(self, guest: NodeName) -> pb.MasterMessage:
        state = self._rules.state_of(guest)
        told = pb.HandoverState(
            version=state.version,
            server=state.servers,
            local=state.local,
            passed=state.passed,
            saves=state.saves,
            saved=state.saved,
            needed=self._needed(),
        )
        return pb.MasterMessage(handover_state=told)

    def _needed(self) -> list[str]:
        return sorted(self._rules.needed())
