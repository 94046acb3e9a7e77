"""A real master's metrics, of nodes that exist only in memory: what each number is, and what others may call things."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.master import JobMaster
from elastane.master.metrics import MOST_DATASETS
from elastane.model.evaluation import EvaluationSpec, Goal
from elastane.model.ids import NodeName
from elastane.model.job_spec import load_job
from elastane.model.node import ExitReason
from elastane.model.sizing import Decision, JobSize, Prediction, Window
from elastane.prometheus.of_master import MASTER
from elastane.testing import MemoryPlatform
from tests.builders import job_document, make_dataset
from tests.scraping import Scraped, fetch, promtool

HOSTILE = 'a"b\\c\nd{} 1'
W0, W1 = NodeName("ctr-worker-0"), NodeName("ctr-worker-1")


class Master:
    """A master of two workers, and its page."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        document = job_document(replicas=2, maxReplicas=4, resource={"memory": "1Gi"})
        document["spec"] |= spec
        self.platform = MemoryPlatform()
        self.events = EventLog()
        journal = Journal(folder / "journal")
        self.master = JobMaster(
            load_job(document), "the-right-token", self.platform, self.events, journal, versions=folder / "versions"
        )
        self.parts = self.master._components

    async def start(self) -> None:
        self.address = await self.master.serve_metrics("127.0.0.1:0")
        await self.master.serve()
        self.running = asyncio.create_task(self.master.run())
        await self.until("elastane_nodes", 2, role="worker", status="running")

    async def until(self, name: str, value: float, **labels: str) -> Scraped:
        async with asyncio.timeout(10):
            while (found := await self.scraped()).value(name, job="ctr", **labels) != value:
                continue
        return found

    async def scraped(self) -> Scraped:
        found = await asyncio.to_thread(fetch, self.address)
        found.check(MASTER)
        return found

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.master.close(0)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Master]:
    started = Master(tmp_path)
    await started.start()
    yield started
    await started.close()


async def test_a_data_sets_name_may_be_any_text(master: Master) -> None:
    tasks = master.master.task_manager
    tasks.define(W0, make_dataset(100, name=HOSTILE))
    granted: list[Any] = []
    tasks.lease(W0, make_dataset(name=HOSTILE).name, 3, granted.extend)
    (task, other, third), _ = granted
    tasks.commit(W0, task.dataset, [(task.id, task.shard.end)])
    tasks.give_back(W0, task.dataset, [other.id], None)
    tasks.give_back(W0, task.dataset, [third.id], "ValueError")
    found = await master.scraped()
    labels = {"job": "ctr", "dataset": HOSTILE}
    assert found.value("elastane_samples_committed_total", **labels) == 10
    assert found.value("elastane_dataset_epoch_committed_samples", **labels) == 10
    assert found.value("elastane_tasks_leased_total", **labels) == 3
    assert found.value("elastane_shards_leased", **labels) == 0
    assert found.by("elastane_shards_returned_total", "reason") == {"given_back": 1, "failed": 1}
    assert found.value("elastane_node_samples_committed_total", job="ctr", node="worker-0", role="worker") == 10
    promtool("check", "metrics", text=found.text)


async def test_of_many_data_sets_the_newest_are_shown(master: Master) -> None:
    for number in range(MOST_DATASETS + 5):
        master.master.task_manager.define(W0, make_dataset(10, name=f"d{number}"))
    shown = (await master.scraped()).by("elastane_dataset_epoch", "dataset")
    assert list(shown) == [f"d{number}" for number in range(5, MOST_DATASETS + 5)]


async def test_nodes_that_end_are_counted_by_reason_and_have_no_lines_of_their_own(master: Master) -> None:
    master.platform.end(W1, ExitReason.PREEMPTED)
    found = await master.until("elastane_node_relaunches_total", 1, role="worker")
    found = await master.until("elastane_nodes", 2, role="worker", status="running")
    assert found.value("elastane_nodes", job="ctr", role="worker", status="failed") == 1
    assert found.value("elastane_node_exits_total", job="ctr", role="worker", reason="preempted") == 1
    assert found.by("elastane_node_memory_limit_bytes", "node") == {"worker-0": 2.0**30, "worker-2": 2.0**30}
    assert found.by("elastane_node_attending", "node") == {"worker-0": 0, "worker-2": 0}


async def test_evaluations_are_told_by_metric_also_without_a_number(master: Master) -> None:
    service = master.parts.training_service
    assert service is not None
    assert "elastane_evaluation_running" not in (await master.scraped()).families
    service.define(
        W0, EvaluationSpec(50, 10, ("auc", HOSTILE), every_steps=10, best=Goal.parse("auc:max")), evaluator=False
    )
    rules = service.rules
    assert rules is not None
    for step, auc in ((10, 0.75), (20, 0.5)):
        rules.taken(step, 0.0)
        assert (await master.scraped()).value("elastane_evaluation_running", job="ctr") == 1
        rules.evaluated(step, {"auc": auc, HOSTILE: math.nan}, 0.0)
    found = await master.scraped()
    assert found.value("elastane_evaluation_running", job="ctr") == 0
    assert found.value("elastane_evaluation_samples", job="ctr") == 50
    assert found.by("elastane_evaluation_step", "version") == {"last": 20, "best": 10}
    assert found.value("elastane_evaluation_metric", job="ctr", metric="auc", version="last") == 0.5
    assert found.value("elastane_evaluation_metric", job="ctr", metric="auc", version="best") == 0.75
    assert math.isnan(found.value("elastane_evaluation_metric", job="ctr", metric=HOSTILE, version="last"))


async def test_plans_are_told_by_what_became_of_them(tmp_path: Path) -> None:
    master = Master(tmp_path, autoscale={})
    await master.start()
    optimizer = master.parts.optimizer
    assert optimizer is not None
    record = optimizer.record
    first = await master.scraped()
    assert first.value("elastane_autoscale_enabled", job="ctr") == 1
    assert first.value("elastane_plan_pending", job="ctr") == 0
    assert "elastane_plan_realised_samples_per_second" not in first.families
    decision = Decision(JobSize(4), "because", Prediction(300.0, 250.0, 350.0), JobSize(2), 200.0)
    record.began(decision, 10.0, 0.0)
    master.events.emit("sizing_decided", line="because", stage="running", workers=4, ps=0)
    assert (await master.scraped()).value("elastane_plan_pending", job="ctr") == 1
    record.settled(JobSize(4), 12.0, 100.0)
    master.events.emit("sizing_settled", workers=4, ps=0, cost_s=1.5)
    record.observed(Window(at_s=20.0, size=JobSize(4), batch_size=10, samples_per_s=280.0, step_s=0.1))
    back = Decision(JobSize(2), "back", Prediction(200.0, 200.0, 200.0), JobSize(4), 280.0, is_rollback=True)
    record.began(back, 30.0, 500.0)
    record.killed_for_memory()
    master.events.emit("plan_refused", reason="no", line="because")
    found = await master.scraped()
    assert found.by("elastane_plans_total", "outcome") == {
        "decided": 1,
        "settled": 1,
        "refused": 1,
        "applied": 0,
        "rolled_back": 1,
    }
    predicted = found.by("elastane_plan_predicted_samples_per_second", "bound")
    assert predicted == {"expected": 300, "low": 250, "high": 350}
    assert found.value("elastane_plan_realised_samples_per_second", job="ctr") == 280
    assert found.value("elastane_plan_cost_seconds", job="ctr") == 1.5
    assert found.value("elastane_oom_kills_total", job="ctr") == 1
    assert sum(found.by("elastane_sizing_stage", "stage").values()) == 1
    await master.close()


async def test_a_checkpoint_of_the_servers_has_its_time(tmp_path: Path) -> None:
    master = Master(tmp_path, distributionStrategy="parameter_server", parameterServer={"replicas": 1, "buckets": 16})
    await master.start()
    assert "elastane_servers_saved_timestamp_seconds" not in (await master.scraped()).families
    master.events.emit("servers_saved", folder="x", steps=1)
    found = await master.scraped()
    saved, began = (
        found.value("elastane_servers_saved_timestamp_seconds", job="ctr"),
        found.value("process_start_time_seconds"),
    )
    assert saved > began
    assert found.value("elastane_servers_wanted", job="ctr") == 1
    assert found.value("elastane_buckets", job="ctr") == 16
    await master.close()
