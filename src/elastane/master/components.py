"""The components of one job's master: each is created if the job needs it, and told of the others' events.

    node manager        launches nodes (JobManager), or follows those that others start (GuestManager)
    TaskManager         leases shards; with TaskRecovery, those of lost workers go to others
    RendezvousServer    forms worlds, with the all-reduce strategy
    TrainingService     evaluates the model while it is trained
    PSManager           has the parameter servers, with that strategy
    JobResourceOptimizer    sizes a job that launches its nodes, or only observes it, by what the StatsReporter gathers

`model.components` says which of them go together. Two parts are in every master: Attendance, the nodes' streams, and
Control, the commands. Nothing here knows how a component does its work; this file alone knows who hears of what.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from elastane.core.sizing_record import SizingRecord
from elastane.master.attendance import Attendance
from elastane.master.brain_optimizer import BrainOptimizer, run_identity
from elastane.master.closure_feed import ClosureFeed
from elastane.master.control import Control
from elastane.master.event_log import EventLog
from elastane.master.guest_handover import GuestHandover
from elastane.master.guest_manager import GuestManager
from elastane.master.job_manager import JobManager
from elastane.master.job_resource_optimizer import JobResourceOptimizer, kind_of
from elastane.master.journal import Journal
from elastane.master.journal_copies import JournalCopies
from elastane.master.ps_manager import PSManager
from elastane.master.ps_saves import PSSaves
from elastane.master.rendezvous_server import RendezvousServer, Tell
from elastane.master.resource_optimizer import LocalOptimizer
from elastane.master.stats_reporter import StatsReporter
from elastane.master.task_manager import TaskManager
from elastane.master.task_recovery import TaskRecovery
from elastane.master.training_service import TrainingService
from elastane.model.errors import PlatformError
from elastane.model.ids import NodeName
from elastane.model.job_spec import AutoscaleSpec, DistributionStrategy, ElasticJob
from elastane.platform.base import Platform


@dataclass(frozen=True)
class Components:
    """What a master consists of; None is what the job does not need."""

    node_manager: JobManager | GuestManager
    task_manager: TaskManager | None
    rendezvous: RendezvousServer | None
    training_service: TrainingService | None
    ps_manager: PSManager | None
    optimizer: JobResourceOptimizer | None
    attendance: Attendance
    control: Control

    def resume(self) -> None:
        """A master before this one died: go on in its place."""
        if self.rendezvous is not None:
            self.rendezvous.resume()
        if self.training_service is not None:
            self.training_service.resume()
        if self.ps_manager is not None:
            self.ps_manager.resume()


def create_components(
    job: ElasticJob,
    platform: Platform | None,
    events: EventLog,
    tell: Tell,
    journal: Journal,
    versions: Path | None,
) -> Components:
    """Create what the job needs, and wire it. `tell` says something to a node."""
    node_manager = create_node_manager(job, platform, events, journal)
    task_manager = create_task_manager_if_needed(job, node_manager, events, journal)
    rendezvous = create_rendezvous_if_needed(job, node_manager, events, tell, journal)
    training_service = create_training_service_if_needed(
        job, node_manager, task_manager, rendezvous, events, tell, journal, versions
    )
    ps_manager = create_ps_manager_if_needed(job, node_manager, task_manager, events, tell, journal)
    optimizer = create_optimizer_if_needed(job, platform, node_manager, task_manager, ps_manager, events, journal)
    handover = create_handover_if_needed(job, events, tell, journal)
    attendance = Attendance(
        node_manager,
        task_manager,
        rendezvous,
        training_service,
        ps_manager,
        handover,
        events,
        heartbeat_timeout_s=job.spec.heartbeat_timeout_seconds,
        check_replicas=job.spec.check_replicas,
        journal=journal,
    )
    if task_manager is not None:
        follow_for_tasks(job, task_manager, attendance, node_manager)
    if rendezvous is not None:
        follow_for_worlds(rendezvous, attendance, node_manager)
    if training_service is not None:
        follow_for_training(training_service, attendance, node_manager)
    if ps_manager is not None:
        follow_for_servers(ps_manager, attendance, node_manager)
    if optimizer is not None:
        follow_for_statistics(optimizer.stats, attendance, node_manager, ps_manager)
        if rendezvous is not None:
            optimizer.stats.on_figures.append(rendezvous.heard)
    if handover is not None:
        node_manager.on_node_end.append(lambda node, _: handover.left(node.name))
        attendance.on_resumed.append(handover.retell)
    follow_for_nodes(job, node_manager, attendance)
    if job.spec.distribution_strategy is DistributionStrategy.PARAMETER_SERVER:
        follow_for_closures(ClosureFeed(events, tell), attendance, node_manager)
    if job.spec.journal_copies:
        copies = JournalCopies(journal, job.spec.journal_copies, tell)
        follow_for_journal(copies, attendance, node_manager)
    control = Control(
        job,
        node_manager,
        task_manager,
        rendezvous,
        training_service,
        ps_manager,
        optimizer,
        attendance,
        events,
        journal.clock,
    )
    return Components(
        node_manager, task_manager, rendezvous, training_service, ps_manager, optimizer, attendance, control
    )


def create_node_manager(
    job: ElasticJob, platform: Platform | None, events: EventLog, journal: Journal
) -> JobManager | GuestManager:
    """Every job has one, for it keeps the job's end; without the component it hears of no node."""
    if not job.spec.launches_nodes:
        return GuestManager(job.name, events)
    if platform is None:
        raise PlatformError(f'job "{job.name}" launches nodes, but there is no platform for them')
    return JobManager(job, platform, events, journal)


def create_task_manager_if_needed(
    job: ElasticJob, node_manager: JobManager | GuestManager, events: EventLog, journal: Journal
) -> TaskManager | None:
    if not job.spec.components.task_manager:
        return None
    return TaskManager(
        events,
        max_task_retries=job.spec.max_task_retries,
        task_timeout_s=job.spec.task_timeout_seconds,
        on_failed=node_manager.fail,
        journal=journal,
    )


def create_rendezvous_if_needed(
    job: ElasticJob, node_manager: JobManager | GuestManager, events: EventLog, tell: Tell, journal: Journal
) -> RendezvousServer | None:
    if not job.spec.components.rendezvous:
        return None
    role = job.spec.worker
    return RendezvousServer(
        events,
        tell,
        min_size=role.min_replicas,
        max_size=role.max_replicas,
        target=role.replicas,
        journal=journal,
        on_differ=node_manager.fail,
    )


def create_training_service_if_needed(
    job: ElasticJob,
    node_manager: JobManager | GuestManager,
    task_manager: TaskManager | None,
    rendezvous: RendezvousServer | None,
    events: EventLog,
    tell: Tell,
    journal: Journal,
    versions: Path | None,
) -> TrainingService | None:
    if not job.spec.components.training_service or task_manager is None:
        return None
    return TrainingService(
        events,
        tell,
        task_manager,
        versions=versions,
        evaluators_expected=lambda: node_manager.evaluators_expected,
        training=lambda: () if rendezvous is None else rendezvous.world.members,
        on_training_end=lambda: None if rendezvous is None else rendezvous.completed(),
        journal=journal,
    )


def create_ps_manager_if_needed(
    job: ElasticJob,
    node_manager: JobManager | GuestManager,
    task_manager: TaskManager | None,
    events: EventLog,
    tell: Tell,
    journal: Journal,
) -> PSManager | None:
    if job.spec.ps is None or not isinstance(node_manager, JobManager):
        return None
    ps_manager = PSManager(
        job.spec.ps,
        node_manager.servers,
        PSSaves(job.spec.ps.checkpoint, task_manager, events),
        events,
        tell,
        take=node_manager.take,
        on_failed=node_manager.fail,
        journal=journal,
    )
    node_manager.on_start.append(ps_manager.launch)
    node_manager.on_drain_server = ps_manager.retire
    node_manager.servers_may_leave = ps_manager.saves.final
    return ps_manager


def create_optimizer_if_needed(
    job: ElasticJob,
    platform: Platform | None,
    node_manager: JobManager | GuestManager,
    task_manager: TaskManager | None,
    ps_manager: PSManager | None,
    events: EventLog,
    journal: Journal,
) -> JobResourceOptimizer | None:
    if not isinstance(node_manager, JobManager) or platform is None:
        return None
    record = journal.watch("sizing", SizingRecord())
    stats = StatsReporter(
        lambda: node_manager.nodes,
        lambda: None if ps_manager is None else ps_manager.state(),
        lambda: 0.0 if task_manager is None else task_manager.samples_done,
        events,
        journal.clock,
        window_s=(job.spec.autoscale or AutoscaleSpec()).window_seconds,
    )
    local = LocalOptimizer(record, platform.change_cost_s)
    brain = create_brain_optimizer_if_needed(job, record, local, stats, events, journal)
    optimizer = JobResourceOptimizer(
        job,
        record,
        brain or local,
        local,
        stats,
        node_manager,
        ps_manager,
        task_manager,
        events,
        journal.clock,
        platform.room,
    )
    if brain is not None:
        optimizer.on_observed.append(brain.observed)
        optimizer.on_change.append(brain.changed)
    return optimizer


def create_brain_optimizer_if_needed(
    job: ElasticJob,
    record: SizingRecord,
    local: LocalOptimizer,
    stats: StatsReporter,
    events: EventLog,
    journal: Journal,
) -> BrainOptimizer | None:
    spec = job.spec.autoscale
    if spec is None or spec.brain is None:
        return None
    if not record.run:
        record.named(f"{job.name}-{secrets.token_hex(8)}")
    run = run_identity(job, record.run, kind_of(job))
    return BrainOptimizer(spec, run, record, local, lambda: stats.peaks, events, journal.clock)


def create_handover_if_needed(job: ElasticJob, events: EventLog, tell: Tell, journal: Journal) -> GuestHandover | None:
    """For a job whose parameter servers are not ours."""
    foreign = job.spec.distribution_strategy is DistributionStrategy.PARAMETER_SERVER and job.spec.ps is None
    return GuestHandover(events, tell, journal) if foreign else None


def follow_for_closures(closures: ClosureFeed, attendance: Attendance, node_manager: JobManager | GuestManager) -> None:
    attendance.closures = closures
    attendance.on_disconnected.append(closures.gone)
    attendance.on_left.append(lambda node, _: closures.gone(node))
    node_manager.on_node_end.append(lambda node, _: closures.gone(node.name))


def follow_for_tasks(
    job: ElasticJob, task_manager: TaskManager, attendance: Attendance, node_manager: JobManager | GuestManager
) -> None:
    """A worker's own word always counts: on a new stream it starts anew, and a goodbye returns what it held.

    What others know of it (a broken stream, its end) counts with fault tolerance; without, its shards come back by the
    task time-out alone.
    """
    attendance.on_attended.append(lambda node: task_manager.worker_lost(node, None))
    attendance.on_left.append(lambda node, _: task_manager.worker_lost(node, None))
    if job.spec.components.task_fault_tolerance:
        recovery = TaskRecovery(task_manager)
        attendance.on_attended.append(recovery.attended)
        attendance.on_disconnected.append(recovery.disconnected)
        node_manager.on_node_end.append(recovery.ended)


def follow_for_worlds(
    rendezvous: RendezvousServer, attendance: Attendance, node_manager: JobManager | GuestManager
) -> None:
    """A world follows who is here: whose stream is open, and not given up."""
    attendance.on_attended.append(rendezvous.lost)
    attendance.on_resumed.append(rendezvous.retell)
    attendance.on_disconnected.append(rendezvous.lost)
    attendance.on_left.append(
        lambda node, goodbye: rendezvous.left(node, goodbye, trained=not node_manager.is_evaluator(node))
    )
    node_manager.on_node_end.append(lambda node, _: rendezvous.lost(node.name))
    node_manager.on_target.append(rendezvous.set_target)


def follow_for_training(
    training_service: TrainingService, attendance: Attendance, node_manager: JobManager | GuestManager
) -> None:
    """What a node that is gone evaluated, or was to write, others do."""
    attendance.on_attended.append(training_service.lost)
    attendance.on_disconnected.append(training_service.lost)
    attendance.on_left.append(lambda node, _: training_service.lost(node))
    node_manager.on_node_end.append(lambda node, _: training_service.lost(node.name))


def follow_for_servers(ps_manager: PSManager, attendance: Attendance, node_manager: JobManager | GuestManager) -> None:
    """Servers and those who use them: on a new stream both start anew, and say what they have."""
    attendance.on_attended.append(ps_manager.disconnected)
    attendance.on_disconnected.append(ps_manager.disconnected)
    attendance.on_left.append(lambda node, _: ps_manager.disconnected(node))
    node_manager.on_node_end.append(lambda node, _: ps_manager.node_ended(node))


def follow_for_statistics(
    stats: StatsReporter,
    attendance: Attendance,
    node_manager: JobManager | GuestManager,
    ps_manager: PSManager | None,
) -> None:
    attendance.stats = stats
    attendance.on_attended.append(stats.attended)
    attendance.on_resumed.append(stats.resumed)
    attendance.on_disconnected.append(stats.gone)
    attendance.on_left.append(lambda node, _: stats.gone(node))
    node_manager.on_node_end.append(lambda node, _: stats.gone(node.name))
    if ps_manager is not None:
        ps_manager.on_load.append(stats.server_load)


def follow_for_nodes(job: ElasticJob, node_manager: JobManager | GuestManager, attendance: Attendance) -> None:
    """Of guests nothing is known but their streams. A node that was launched may say that it was told to leave."""
    if not job.spec.components.pod_manager:
        return
    attendance.on_left.append(node_manager.left)
    if isinstance(node_manager, GuestManager):
        for node in attendance.awaited:
            node_manager.attended(node)
        attendance.on_attended.append(node_manager.attended)
        attendance.on_disconnected.append(node_manager.disconnected)


def follow_for_journal(copies: JournalCopies, attendance: Attendance, node_manager: JobManager | GuestManager) -> None:
    """Whoever attends may be asked to keep the journal, but for parameter servers: their memory is for rows."""

    def attended(node: NodeName) -> None:
        if not node_manager.is_server(node):
            copies.attended(node)

    attendance.on_attended.append(attended)
    attendance.on_resumed.append(attended)
    attendance.on_disconnected.append(copies.gone)
    attendance.on_left.append(lambda node, _: copies.gone(node))
    node_manager.on_node_end.append(lambda node, _: copies.gone(node.name))
