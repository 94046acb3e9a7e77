"""The chain of sizing: figures to windows, windows to plans, plans to nodes; real managers, a made-up clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastane.core.size_search import first_size
from elastane.core.sizing_record import OptimizerStage, SizingRecord
from elastane.master.brain_optimizer import Patience
from elastane.master.event_log import EventLog
from elastane.master.job_manager import JobManager
from elastane.master.job_resource_optimizer import JobResourceOptimizer
from elastane.master.journal import Journal
from elastane.master.ps_manager import PSManager
from elastane.master.ps_saves import PSSaves
from elastane.master.resource_optimizer import (
    LocalOptimizer,
    OptimizerConfig,
    ResourceOptimizer,
    ServerMemory,
    memory_moves,
    oom_plan,
)
from elastane.master.stats_reporter import StatsReporter
from elastane.master.task_manager import TaskManager
from elastane.model.errors import InvalidInput, InvalidJobSpec, RequestRefused
from elastane.model.ids import NodeName
from elastane.model.job_spec import load_job
from elastane.model.node import ExitReason, Node, NodeExit, NodeGroupResource, NodeResource, NodeType
from elastane.model.plan import ResourcePlan
from elastane.model.quantity import Memory
from elastane.model.sizing import (
    Budget,
    Decision,
    History,
    JobKind,
    JobSize,
    MemoryReading,
    NoDecision,
    Prediction,
    PriorWindow,
    Window,
    check_window,
)
from elastane.rpc.protos import node_pb2 as pb
from elastane.testing import MemoryPlatform
from tests.builders import job_document, make_dataset

NOTHING = Prediction(1.0, 1.0, 1.0)


class Simulated:
    """A job whose nodes exist only in memory, and whose workers' speed a formula gives."""

    def __init__(
        self,
        step_s: Callable[[int], float],
        journal: Journal | None = None,
        optimizer: ResourceOptimizer | None = None,
    ) -> None:
        document = job_document(minReplicas=1, maxReplicas=8)
        document["spec"]["autoscale"] = {"windowSeconds": 3}
        self.now = 0.0
        self._step_s = step_s
        self.job = load_job(document)
        self.journal = journal or Journal()
        self.events = EventLog()
        self.manager = JobManager(self.job, MemoryPlatform(), self.events, self.journal)
        self.tasks = TaskManager(
            self.events, max_task_retries=3, task_timeout_s=60.0, on_failed=self.manager.fail, journal=self.journal
        )
        if not self.tasks.all_ledgers:
            self.tasks.define(NodeName("ctr-worker-0"), make_dataset(10_000_000, shard_size=1000))
        self.record = self.journal.watch("sizing", SizingRecord())
        self.stats = StatsReporter(
            lambda: self.manager.nodes, lambda: None, lambda: 0.0, self.events, lambda: self.now, window_s=3.0
        )
        self.optimizer = JobResourceOptimizer(
            self.job,
            self.record,
            optimizer or LocalOptimizer(self.record, 2.0),
            LocalOptimizer(self.record, 2.0),
            self.stats,
            self.manager,
            None,
            self.tasks,
            self.events,
            lambda: self.now,
            lambda: None,
        )

    async def begin(self) -> None:
        await self.optimizer.create()
        self.manager.scale(self.manager.first_count)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            working = [node for node in self.manager.workers.group.nodes if node.relaunchable and not node.status.final]
            steps = max(1, round(1.0 / self._step_s(len(working))))
            for node in working:
                figures = pb.StepFigures(span_s=1.0, steps=steps, samples=10 * steps, cpu_s=0.1, memory_bytes=1 << 20)
                self.stats.heard(node.name, figures)
            await self.optimizer.look()


def workers(simulated: Simulated) -> int:
    return simulated.manager.target


async def test_a_job_that_scales_well_is_doubled_until_its_limit() -> None:
    simulated = Simulated(lambda _: 0.02)
    await simulated.begin()
    seen = []
    for _ in range(20):
        await simulated.run(5)
        seen.append(workers(simulated))
    assert sorted(set(seen)) == [1, 2, 4, 8]
    assert seen[-1] == 8
    assert simulated.record.stage is OptimizerStage.RUNNING
    assert len(simulated.record.changes) == 3
    last = simulated.record.changes[-1]
    assert last.realised_samples_per_s == pytest.approx(4000, rel=0.01)


async def test_a_job_that_does_not_gain_goes_back_to_where_it_was_and_keeps_its_chief() -> None:
    simulated = Simulated(lambda count: 0.02 * max(1.0, count / 2))
    await simulated.begin()
    await simulated.run(200)
    group = simulated.manager.workers.group
    assert workers(simulated) <= 3
    released = [node for node in group.nodes if node.is_released]
    assert all(not node.relaunchable for node in released)
    assert all(node.slot != 0 for node in released), "the chief stays"


async def test_what_was_observed_and_decided_outlives_the_master(tmp_path: Path) -> None:
    simulated = Simulated(lambda _: 0.02, Journal(tmp_path / "journal"))
    await simulated.begin()
    await simulated.run(30)
    simulated.journal.close()
    after = Simulated(lambda _: 0.02, Journal(tmp_path / "journal"))
    assert after.record.snapshot() == simulated.record.snapshot()
    assert after.record.changes
    assert workers(after) == workers(simulated)


def test_a_record_comes_back_from_its_snapshot_as_it_was() -> None:
    record = SizingRecord()
    record.named("a-run")
    record.entered(OptimizerStage.RUNNING)
    record.observed(Window(5.0, JobSize(1), 10.0, 500.0, 0.02, duration_s=3.0))
    decision = Decision(JobSize(2), "workers 1->2", NOTHING, JobSize(1), 500.0)
    record.began(decision, 6.0, 1000.0)
    again = SizingRecord()
    again.load(record.snapshot(), 0.0)
    assert again.snapshot() == record.snapshot()
    assert again.pending == record.pending
    record.settled(JobSize(2), 10.0, 2000.0)
    assert record.changes[-1].cost_s == pytest.approx(2.0), "four seconds in which two seconds' work was done"
    record.changed_by_others(JobSize(3), 12.0, "3 workers, not by a plan")
    record.killed_for_memory()
    again.load(record.snapshot(), 0.0)
    assert again.snapshot() == record.snapshot()
    assert again.size == JobSize(3)


async def test_a_size_that_a_person_gave_is_taken_as_it_is() -> None:
    simulated = Simulated(lambda _: 0.02)
    await simulated.begin()
    await simulated.run(3)
    simulated.manager.scale(5)
    await simulated.run(12)
    assert {window.size.workers for window in simulated.record.windows} == {5}


def test_figures_that_can_be_true_become_windows_and_others_name_their_field() -> None:
    simulated = Simulated(lambda _: 0.02)
    simulated.manager.scale(1)
    found: list[Window] = []
    simulated.stats.on_window.append(found.append)
    for second in range(1, 10):
        simulated.now = float(second)
        good = pb.StepFigures(span_s=1.0, steps=50, samples=500, input_wait_s=0.5, cpu_s=0.2, memory_bytes=1 << 20)
        simulated.stats.heard(NodeName("ctr-worker-0"), good)
        bad = pb.StepFigures(span_s=math.nan, steps=50, samples=500)
        with pytest.raises(InvalidInput, match="span_s: nan"):
            simulated.stats.heard(NodeName("ctr-worker-0"), bad)
    assert len(found) == 2
    for window in found:
        check_window(window, simulated.now)
        assert window.samples_per_s == pytest.approx(500)
        assert window.input_wait_s == pytest.approx(0.01)
        assert window.batch_size == 10
        assert window.worker_cpu_used == pytest.approx(0.2)


def test_a_worker_cannot_have_worked_longer_than_time_has_passed() -> None:
    simulated = Simulated(lambda _: 0.02)
    simulated.manager.scale(1)
    simulated.now = 10.0
    simulated.stats.attended(NodeName("ctr-worker-0"))
    simulated.now = 11.0
    with pytest.raises(InvalidInput, match=r"span_s: 60 reaches 59\.0 s into the future"):
        simulated.stats.heard(NodeName("ctr-worker-0"), pb.StepFigures(span_s=60.0, steps=1, samples=1))
    simulated.stats.resumed(NodeName("ctr-worker-0"))
    simulated.stats.heard(NodeName("ctr-worker-0"), pb.StepFigures(span_s=60.0, steps=1, samples=1))


def config(**more: object) -> OptimizerConfig:
    return replace(OptimizerConfig(JobKind.PARAMETER_SERVER, Budget(8, max_ps=4)), **more)  # type: ignore[arg-type]


def growing(count: int, limit: Memory | None) -> ServerMemory:
    readings = tuple(MemoryReading(1000.0 * number, 200_000_000 + 10_000_000 * number) for number in range(count))
    return ServerMemory(NodeResource(memory=limit), readings)


def test_a_server_that_will_come_to_its_limit_is_moved_and_one_that_will_not_stays() -> None:
    limit = Memory(400_000_000)
    name = NodeName("ctr-ps-0")
    soon = config(
        servers={name: growing(12, limit)}, samples_done=11_000.0, remaining_samples=50_000.0, samples_per_s=1000.0
    )
    plan = memory_moves(soon)
    assert (plan.node_resources[name].memory or limit) > Memory(800_000_000)
    assert "ps-0 uses" in plan.reason
    ends_before = replace(soon, remaining_samples=1_000.0)
    assert not memory_moves(ends_before)
    unlimited = replace(soon, servers={name: growing(12, None)})
    assert not memory_moves(unlimited)
    too_few = replace(soon, servers={name: growing(4, limit)})
    assert not memory_moves(too_few)


def test_who_was_killed_for_memory_gets_twice_as_much_and_never_less_than_was_seen() -> None:
    simulated = Simulated(lambda _: 0.02)
    simulated.manager.scale(1)
    group = simulated.manager.workers.group
    node = replace(group.nodes[0], resource=NodeResource(memory=Memory.mib(256)))
    assert oom_plan([node], config()).node_resources[node.name].memory == Memory.mib(512)
    seen = config(peaks={NodeType.WORKER: 600 << 20})
    assert (oom_plan([node], seen).node_resources[node.name].memory or Memory.mib(1)) >= Memory.mib(720)
    unlimited = replace(node, resource=NodeResource())
    plan = oom_plan([unlimited], config())
    assert not plan
    assert "no limit that could be raised" in plan.reason


def test_a_replacement_that_waits_gets_what_was_granted_and_later_workers_as_much() -> None:
    document = job_document(minReplicas=1, maxReplicas=8, resource={"memory": "256Mi"})
    manager = JobManager(load_job(document), MemoryPlatform(), EventLog(), Journal())
    manager.scale(1)
    group = manager.workers.group
    name = group.nodes[0].name
    group.exited(name, NodeExit(ExitReason.OOM), 0.0)
    manager.apply(ResourcePlan(node_resources={name: NodeResource(memory=Memory.mib(900))}))
    assert group.nodes[1].resource.memory == Memory.mib(900)
    manager.scale(2)
    assert group.nodes[2].resource.memory == Memory.mib(900)


def test_a_plan_outside_the_jobs_limits_is_refused_and_changes_nothing() -> None:
    simulated = Simulated(lambda _: 0.02)
    simulated.manager.scale(1)
    plan = ResourcePlan({NodeType.WORKER: NodeGroupResource(9, NodeResource())})
    with pytest.raises(RequestRefused, match="9 is above max 8"):
        simulated.manager.apply(plan)
    assert workers(simulated) == 1


def test_a_size_can_be_asked_about_once_something_was_observed() -> None:
    record = SizingRecord()
    optimizer = LocalOptimizer(record)
    asked = OptimizerConfig(JobKind.ALLREDUCE, Budget(8), wanted=JobSize(4))
    with pytest.raises(InvalidInput):
        asyncio.run(optimizer.generate_resource_plan_with_optimizer(asked))
    record.observed(Window(5.0, JobSize(1), 10.0, 500.0, 0.02, duration_s=3.0))
    record.observed(Window(9.0, JobSize(2), 10.0, 1000.0, 0.02, duration_s=3.0))
    plan = asyncio.run(optimizer.generate_resource_plan_with_optimizer(asked))
    assert plan.node_group_resources[NodeType.WORKER].count == 4
    assert plan.decision is not None
    assert plan.decision.prediction.samples_per_s == pytest.approx(2000, rel=0.2)


def test_servers_of_a_plan_are_launched_retired_and_twinned() -> None:
    document = job_document(minReplicas=1, maxReplicas=8)
    document["spec"] |= {"distributionStrategy": "parameter_server", "parameterServer": {"resource": {"memory": "1Gi"}}}
    job = load_job(document)
    events, journal = EventLog(), Journal()
    manager = JobManager(job, MemoryPlatform(), events, journal)
    assert job.spec.ps is not None
    servers = PSManager(
        job.spec.ps,
        manager.servers,
        PSSaves(None, None, events),
        events,
        lambda _node, _message: None,
        take=manager.take,
        on_failed=manager.fail,
        journal=journal,
    )
    grown = servers.scale_plan(_servers(3), 0.0)
    assert [node.short_name for node in grown.launch_nodes] == ["ps-0", "ps-1", "ps-2"]
    assert not servers.scale_plan(_servers(3), 0.0), "there is nothing to do"
    more = NodeResource(memory=Memory.mib(2048))
    moved = servers.scale_plan(ResourcePlan(node_resources={NodeName("ctr-ps-1"): more}), 0.0)
    assert [(node.short_name, node.resource) for node in moved.launch_nodes] == [("ps-3", more)]
    assert [node.short_name for node in manager.servers.nodes if node.is_retired] == ["ps-1"]
    assert not servers.scale_plan(_servers(2), 0.0).remove_nodes, "who leaves works on until its buckets have moved"
    assert len([node for node in manager.servers.nodes if node.is_retired]) == 2
    killed = NodeName("ctr-ps-0")
    manager.servers.exited(killed, NodeExit(ExitReason.OOM), 0.0)
    servers.scale_plan(ResourcePlan(node_resources={killed: more}), 0.0)
    assert [(node.slot, node.resource) for node in manager.servers.nodes[-1:]] == [(0, more)]
    with pytest.raises(RequestRefused, match="below min 1"):
        servers.scale_plan(_servers(0), 0.0)


def _servers(count: int) -> ResourcePlan:
    return ResourcePlan({NodeType.PS: NodeGroupResource(count, NodeResource())})


@pytest.mark.parametrize("more", [{"taskManager": False}, {"worker": {"guests": True}}])
def test_a_job_that_launches_no_nodes_or_has_no_tasks_cannot_size_itself(more: dict[str, Any]) -> None:
    document = job_document()
    document["spec"] |= {"autoscale": {}, **more}
    with pytest.raises(InvalidJobSpec, match="a job sizes itself only if"):
        load_job(document)


class Broken(LocalOptimizer):
    """One that fails as nobody foresaw."""

    async def generate_oom_recovery_plan(
        self, oom_nodes: Sequence[Node], stage: OptimizerStage, config: OptimizerConfig
    ) -> ResourcePlan:
        raise ZeroDivisionError("planted")


async def test_an_error_of_sizing_does_not_end_the_job() -> None:
    simulated = Simulated(lambda _: 0.02, optimizer=Broken(SizingRecord()))
    simulated.manager.scale(1)
    for callback in simulated.manager.on_node_end:
        callback(simulated.manager.nodes[0], NodeExit(ExitReason.OOM))
    with simulated.events.watch() as lines:
        running = asyncio.create_task(simulated.optimizer.run())
        while '"sizing_failed"' not in (line := await asyncio.wait_for(lines.get(), 10)):
            pass
    assert "ZeroDivisionError: planted" in line
    assert not running.done()
    running.cancel()


def test_the_brain_is_asked_later_each_time_and_at_once_after_a_change() -> None:
    patience, stays = Patience(), NoDecision("stays")
    asked = []
    for now_s in range(300):
        if patience.answer(OptimizerStage.RUNNING, now_s) is None:
            asked.append(now_s)
            patience.stays(OptimizerStage.RUNNING, stays, now_s)
    assert asked == [0, 5, 15, 35, 75, 155, 275]
    assert patience.answer(OptimizerStage.RUNNING, 300) == stays
    assert patience.answer(OptimizerStage.PS_INITIAL, 300) is None
    patience.changed()
    assert patience.answer(OptimizerStage.RUNNING, 300) is None


def test_a_first_size_is_found_among_like_jobs_of_which_some_name_cores() -> None:
    def prior(size: JobSize) -> PriorWindow:
        return PriorWindow(Window(10.0, size, 32.0, 100.0 * size.workers, 0.32, duration_s=5.0), 0.5)

    history = History((prior(JobSize(2)), prior(JobSize(4, worker_cpu=2.0)), prior(JobSize(4))))
    found = first_size(JobKind.ALLREDUCE, Budget(max_workers=8), history)
    assert isinstance(found, Decision)
    assert 1 <= found.size.workers <= 8


async def test_a_paused_job_keeps_its_size_through_a_new_master_until_it_is_told_to_go_on(tmp_path: Path) -> None:
    simulated = Simulated(lambda _: 0.02, Journal(tmp_path / "journal"))
    await simulated.begin()
    simulated.optimizer.pause(True)
    await simulated.run(30)
    assert workers(simulated) == 1
    assert await simulated.optimizer.would_do() == "nothing, it was told to keep its size"
    simulated.journal.close()
    after = Simulated(lambda _: 0.02, Journal(tmp_path / "journal"))
    assert after.record.paused
    after.optimizer.pause(False)
    await after.run(30)
    assert workers(after) > 1


async def test_only_a_job_that_sizes_itself_can_be_paused() -> None:
    simulated = Simulated(lambda _: 0.02)
    simulated.optimizer.acts = False
    with pytest.raises(RequestRefused, match="does not size itself; it was started without --autoscale"):
        simulated.optimizer.pause(True)
