"""PSManager: the owner of the job's parameter servers, from their launch to their end. The rules are `core.ps_cluster`.

The nodes themselves are a NodeGroup like the workers; who must go or come is decided there, and told to the rules by
comparing the two (`follow_nodes`). What the rules decide goes to the servers and the workers on their streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from elastane.core import rebalance
from elastane.core.nodes import NodeGroup
from elastane.core.owners import OwnerMap, ServerAddress, ServerId
from elastane.core.ps_cluster import PSCluster
from elastane.core.ps_orders import (
    Ask,
    Bury,
    Change,
    Decision,
    ForgetClients,
    Inform,
    InformWorker,
    Order,
    Publish,
    Remove,
    Still,
)
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.ps_saves import PSSaves
from elastane.master.ps_view import ServerLoads, servers_view
from elastane.master.rendezvous_server import Tell
from elastane.master.stats_reporter import ServerState
from elastane.model.errors import MalformedMessage, RequestRefused
from elastane.model.ids import NodeName
from elastane.model.job_spec import ServerSpec
from elastane.model.node import Node, NodeResource, NodeType
from elastane.model.plan import ResourcePlan, ScalePlan
from elastane.rpc import ps_wire
from elastane.rpc.protos import control_pb2
from elastane.rpc.protos import node_pb2 as pb

REBALANCE_EVERY_S = 10.0
"""How often the servers' loads are compared."""
MOST_CLIENTS = 64
"""How many clients one node may have."""
LEAST_ROWS_PER_S = 1000.0
"""Below this, no server is hot, whatever the others do."""


class PSManager:
    """The servers of one job. `take` carries out a ScalePlan; `on_failed` ends the job with a reason."""

    def __init__(
        self,
        spec: ServerSpec,
        group: NodeGroup,
        saves: PSSaves,
        events: EventLog,
        tell: Tell,
        *,
        take: Callable[[ScalePlan], None],
        on_failed: Callable[[str], None],
        journal: Journal,
    ) -> None:
        self.spec = spec
        self.group = group
        self.first_count = spec.replicas
        """How many to launch at the job's start."""
        self._events = events
        self._tell = tell
        self._take = take
        self._on_failed = on_failed
        self._clock = journal.clock
        self._rules = journal.watch("servers", PSCluster(spec.buckets, with_backups=spec.backups))
        self._addresses: dict[int, ServerAddress] = {}
        self._here: set[int] = set()
        self._loads = ServerLoads(spec.buckets)
        self._rebalanced_at = self._clock()
        self._timer: asyncio.TimerHandle | None = None
        self.on_load: list[Callable[[NodeName, pb.ServerLoad], None]] = []
        self.saves = saves
        saves.bind(self)

    # What others ask.

    def launch(self) -> None:
        """Launch the servers, at the job's start; what a checkpoint has is restored."""
        if path := self.saves.newest():
            self._carry_out(self._rules.saved(path, self._clock()))
        self._take(self.group.retire_to(self.first_count, self._clock()))
        self.follow_nodes()

    def scale(self, count: int) -> None:
        """Grow or shrink to so many servers. Raises RequestRefused outside the job's limits."""
        before = self.group.target
        plan = self.group.retire_to(count, self._clock())
        self._events.emit("scaled", role=self.group.type, workers=count, before=before)
        self._take(plan)
        self.follow_nodes()

    def scale_plan(self, plan: ResourcePlan, now: float) -> ScalePlan:
        """What a resource plan means for the servers there are. Raises RequestRefused outside the job's limits.

        Who is one too many works on until its buckets have moved. A server whose resource changes gets a twin; for one
        that has ended, it is for whoever takes its place.
        """
        found = ScalePlan()
        wanted = plan.node_group_resources.get(NodeType.PS)
        if wanted is not None and wanted.count != self.group.target:
            found = self.group.retire_to(wanted.count, now)
        nodes = {node.name: node for node in self.group.nodes if node.name in plan.node_resources}
        for name, node in nodes.items():
            if node.status.final:
                self.group.grant(name, plan.node_resources[name])
            else:
                found = found.joined(self.group.twin(name, plan.node_resources[name], now))
        return found

    def apply(self, plan: ResourcePlan) -> None:
        """Carry a resource plan out, as far as it is about servers. Raises RequestRefused."""
        before = self.group.target
        scale_plan = self.scale_plan(plan, self._clock())
        if self.group.target != before:
            self._events.emit("scaled", role=self.group.type, workers=self.group.target, before=before)
        self._take(scale_plan)
        self.follow_nodes()

    def retire(self, name: str) -> None:
        """Let one server leave, once it holds nothing. Raises RequestRefused."""
        self.group.retire(name)
        self.follow_nodes()

    def migrate(self, name: str, resource: NodeResource) -> None:
        """Have another server with this resource take the place of one. Raises RequestRefused."""
        plan = self.group.twin(name, resource, self._clock())
        twin = plan.launch_nodes[0]
        memory = None if resource.memory is None else str(resource.memory)
        self._events.emit("server_migrates", node=self.group.node(name).name, twin=twin.name, memory=memory)
        self._take(plan)
        self.follow_nodes()

    def save(self) -> None:
        """Make a checkpoint as soon as no bucket is on its way. Raises RequestRefused without a folder."""
        self.saves.ask()
        self._carry_out(self._rules.hold(self._clock()))

    def resume(self) -> None:
        """A master before this one died: go on in its place."""
        self._carry_out(self._rules.resume(self._clock()))
        if self.group.nodes:
            self.follow_nodes()
        else:
            self.launch()  # It died before it had come to this.

    @property
    def settings(self) -> pb.ServerSettings:
        """What holds for all servers, and those who use them."""
        return pb.ServerSettings(buckets=self.spec.buckets, staleness=self.spec.staleness, backups=self.spec.backups)

    def settings_of(self, name: NodeName) -> pb.ServerSettings:
        """The same for one node."""
        settings = self.settings
        for node in self.group.nodes:
            if node.name == name:
                settings.server = node.id
        return settings

    def state(self) -> ServerState:
        """The servers that have buckets, and their loads."""
        return ServerState(
            self._rules.settled, {server: self._loads.rows_per_s(server) for server in set(self._owners())}
        )

    @property
    def rules(self) -> PSCluster:
        """Who has what; to be read only."""
        return self._rules

    def view(self) -> control_pb2.ServersView:
        """The servers as a person sees them."""
        return servers_view(self._rules, self.group, self._loads)

    # What the servers say.

    def handle(self, name: NodeName, message: pb.NodeMessage) -> None:
        """A message of a server, or of one who uses them. Raises MalformedMessage, RequestRefused."""
        match message.WhichOneof("body"):
            case "server_holds":
                self.holds(name, message.server_holds)
            case "buckets_changed":
                self.changed(name, message.buckets_changed)
            case "orders_failed":
                self.failed(name, message.orders_failed)
            case "link_lost":
                self.link_lost(name, message.link_lost)
            case "server_load":
                self.load(name, message.server_load)
            case "part_saved":
                self.saves.part_saved(self._server(name), message.part_saved)
            case "join_servers":
                clients = list(message.join_servers.client)
                if len(clients) > MOST_CLIENTS:
                    raise MalformedMessage(f"{len(clients)} clients of one node; {MOST_CLIENTS} are allowed")
                self._carry_out(self._rules.worker_here(name, clients, self._clock()))
            case "server_map_learned":
                self._carry_out(self._rules.confirmed(name, message.server_map_learned.version, self._clock()))

    def holds(self, name: NodeName, message: pb.ServerHolds) -> None:
        """A server says all that it has: at first, or because it was asked."""
        server = self._server(name)
        owner_map = ps_wire.checked_map(message.owner_map, self.spec.buckets)
        changes, now = ps_wire.changes_of(owner_map), self._clock()
        buried = message.buried if message.HasField("buried") else None
        if buried is not None or server in self._here:
            self._carry_out(self._rules.answered(server, changes, buried, now))
        else:
            self._attends(server, owner_map, changes)

    def _attends(self, server: int, owner_map: OwnerMap, changes: list[Change]) -> None:
        address = owner_map.servers.get(ServerId(server))
        if address is None:
            raise RequestRefused(f"server {server} did not say where it listens")
        self._here.add(server)
        self._addresses[server] = address
        # An order may name any other server, so all must know where all are.
        self._inform(self._here)
        self._carry_out(self._rules.here(server, changes, self._clock()))

    def changed(self, name: NodeName, message: pb.BucketsChanged) -> None:
        """A server says what has become of buckets."""
        changes = ps_wire.changes_from_wire(message, self.spec.buckets)
        self._carry_out(self._rules.learned(self._server(name), changes, self._clock()))

    def failed(self, name: NodeName, message: pb.OrdersFailed) -> None:
        """A server could not carry out orders."""
        buckets = ps_wire.checked_buckets(message, self.spec.buckets)
        self._events.emit("order_failed", node=name, buckets=len(buckets), reason=message.reason)
        if message.fatal:
            self._restore_failed(message.reason)
            return
        for bucket in buckets:
            self._carry_out(self._rules.failed(self._server(name), bucket, self._clock()))

    def _restore_failed(self, reason: str) -> None:
        """A checkpoint cannot be read: before anybody has trained, an older one will do."""
        older = None if self._rules.version else self.saves.older()
        if older is None:
            self._on_failed(f"the parameter servers could not be restored: {reason}")
            return
        self._carry_out(self._rules.saved(older, self._clock()))
        for bucket in range(self.spec.buckets):
            order = self._rules.order_of(bucket)
            if order is not None:
                self._carry_out(self._rules.failed(order.server, bucket, self._clock()))

    def link_lost(self, name: NodeName, message: pb.LinkLost) -> None:
        self._events.emit("server_link_lost", node=name, peer=message.peer, reason=message.reason[:200])
        self._carry_out(self._rules.link_lost(self._server(name), message.peer, self._clock()))

    def load(self, name: NodeName, message: pb.ServerLoad) -> None:
        """A server says what it has to do, and what it takes."""
        server = self._server(name)
        self._loads.heard(server, ps_wire.checked_load(message, self.spec.buckets), self._clock())
        for callback in self.on_load:
            callback(name, message)
        if self.saves.due(self._loads.step, self._clock()) and not self._rules.held:
            self.save()
        self._rebalance_by_load()

    def _rebalance_by_load(self) -> None:
        cluster, now = self._rules.training_ps_cluster, self._clock()
        if now < self._rebalanced_at + REBALANCE_EVERY_S:
            return
        self._rebalanced_at = now
        quiet = self._loads.rows_per_s() < LEAST_ROWS_PER_S
        if quiet or not self._rules.settled or self._rules.held or len(cluster) < 2:
            return
        present = [home for home in self._rules.homes.owners if home is not None]
        placed = rebalance.by_load(present, cluster, self._loads.by_bucket())
        moves = [(bucket, to) for bucket, (old, to) in enumerate(zip(present, placed, strict=True)) if old != to]
        if moves:
            self._events.emit("hot_server", buckets=len(moves), servers=sorted({to for _, to in moves}))
            self._carry_out(self._rules.rehome(moves, now))

    # What happens to nodes.

    def follow_nodes(self) -> None:
        """Tell the rules which servers there are, if they do not know."""
        members = {node.id: not node.relaunchable for node in self.group.nodes if not node.status.final}
        for server in set(self._rules.servers) - set(members):
            self._here.discard(server)
            self._addresses.pop(server, None)
            self._loads.forget(server)
            self.saves.server_gone(server)
        leaving = self._rules.pre_dropped_ps
        if members != {server: server in leaving for server in self._rules.servers}:
            self._carry_out(self._rules.roster(list(members.items()), self._clock()))

    def node_ended(self, node: Node) -> None:
        """A node of any kind has ended, or is given up."""
        if node.type is self.group.type:
            self.follow_nodes()
        else:
            self._carry_out(self._rules.worker_ended(node.name, self._clock()))

    def disconnected(self, name: NodeName) -> None:
        """A node's stream broke, or it opens another."""
        server = next((node.id for node in self.group.nodes if node.name == name), None)
        if server is None and name in self._rules.workers:
            self._carry_out(self._rules.worker_away(name, self._clock()))
        elif server in self._here:
            self._here.discard(server)
            self._carry_out(self._rules.away(server, self._clock()))

    # What is decided.

    def saved(self, path: str) -> None:
        """A checkpoint is whole."""
        self._carry_out(self._rules.saved(path, self._clock()))
        self._take(ScalePlan())  # The job may wait for this.

    def not_saved(self) -> None:
        """A checkpoint was given up."""
        self._carry_out(self._rules.release(self._clock()))
        self._take(ScalePlan())

    def tell_server(self, server: int, message: pb.MasterMessage) -> None:
        self._tell(self._names()[server], message)

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        orders: dict[int, list[Order]] = {}
        for decision in decisions:
            if isinstance(decision, Order):
                orders.setdefault(decision.server, []).append(decision)
                continue
            self._give(orders)
            match decision:
                case Bury(server, dead):
                    self.tell_server(server, pb.MasterMessage(bury_server=pb.BuryServer(server=dead)))
                case Ask(server):
                    self.tell_server(server, pb.MasterMessage(ask_server=pb.AskServer()))
                case Inform(servers):
                    self._inform(servers)
                case InformWorker(worker):
                    self._tell(worker, self._map_message(self._rules.version))
                case ForgetClients(server, clients):
                    self.tell_server(server, pb.MasterMessage(forget_clients=pb.ForgetClients(client=clients)))
                case Publish(version):
                    self._publish(version)
                case Remove(server):
                    self._take(self.group.remove(self._names()[server]))
                case Still():
                    self.saves.begin(sorted(set(self._owners())), self._loads.step)
        self._give(orders)
        self._schedule()

    def _give(self, orders: dict[int, list[Order]]) -> None:
        for server, given in orders.items():
            self.tell_server(server, ps_wire.orders_to_wire(given, self._rules.checkpoint))
        orders.clear()

    def _publish(self, version: int) -> None:
        self._events.emit(
            "servers_published",
            version=version,
            servers=sorted(set(self._owners())),
            settled=self._rules.settled,
            leaving=sorted(self._rules.pre_dropped_ps),
        )
        self._inform(self._here)
        message = self._map_message(version)
        for worker in self._rules.workers:
            self._tell(worker, message)

    def _inform(self, servers: Iterable[int]) -> None:
        message = self._map_message(0)
        for server in servers:
            self.tell_server(server, message)

    def _map_message(self, version: int) -> pb.MasterMessage:
        addresses = {ServerId(server): address for server, address in self._addresses.items()}
        owner_map = OwnerMap(tuple(self._rules.entries), addresses)
        return pb.MasterMessage(server_map=pb.ServerMap(version=version, owner_map=owner_map.to_bytes()))

    def _owners(self) -> list[int]:
        return [entry.owner for entry in self._rules.entries if entry.owner is not None]

    def _schedule(self) -> None:
        due = self._rules.next_tick()
        if due is not None and self._timer is None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._rules.tick(self._clock()))

    def _names(self) -> dict[int, NodeName]:
        return {node.id: node.name for node in self.group.nodes}

    def _server(self, name: NodeName) -> int:
        """Raises RequestRefused unless the node is a parameter server."""
        for node in self.group.nodes:
            if node.name == name:
                return node.id
        raise RequestRefused(f'node "{name}" is no parameter server')
