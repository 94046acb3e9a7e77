"""Rules that a table tells better than a state machine."""

from __future__ import annotations

import random
import signal
from itertools import islice, pairwise

import pytest

from elastane.core.backoff import delays
from elastane.core.exits import exit_reason
from elastane.core.heartbeats import Heartbeats
from elastane.core.nodes import BACKOFF_MOST_S, GroupLimits, JobEnd, NodeGroup
from elastane.core.order import sample_indices
from elastane.core.rate import RateWindow
from elastane.core.shards import PATIENCE, ShardLedger
from elastane.model.ids import JobName, NodeName
from elastane.model.node import ExitReason, NodeExit, NodeResource, NodeType
from elastane.model.quantity import Memory
from tests.builders import make_dataset

WORKER = NodeName("job-worker-0")


@pytest.mark.parametrize(
    ("code", "out_of_memory", "log_tail", "reason"),
    [
        (0, False, "", ExitReason.DONE),
        (1, False, "Traceback...\nValueError: x", ExitReason.ERROR),
        (1, False, "Traceback...\nMemoryError", ExitReason.OOM),
        (1, False, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1. TiB", ExitReason.OOM),
        (1, False, "MemoryError was caught\nValueError: x", ExitReason.ERROR),
        (-signal.SIGSEGV, False, "", ExitReason.ERROR),
        (-signal.SIGKILL, False, "", ExitReason.KILLED),
        (-signal.SIGKILL, True, "", ExitReason.OOM),
        (137, False, "", ExitReason.KILLED),
        (143, False, "", ExitReason.PREEMPTED),
        (-signal.SIGTERM, False, "", ExitReason.PREEMPTED),
        (127, False, "cannot start x: No such file", ExitReason.ERROR),
    ],
)
def test_the_reason_of_an_exit(code: int, out_of_memory: bool, log_tail: str, reason: ExitReason) -> None:
    assert exit_reason(code, out_of_memory=out_of_memory, log_tail=log_tail) is reason


def test_silence_is_known_within_the_limit() -> None:
    beats = Heartbeats(limit_s=10)
    beats.heard(WORKER, 100.0)
    look = 100.0
    while not (silent := beats.silent(look)):
        look += beats.look_every_s
    assert silent == (WORKER,)
    assert look - 100.0 <= 10
    assert beats.silent(look + beats.look_every_s) == ()


def test_a_watcher_that_slept_blames_nobody() -> None:
    beats = Heartbeats(limit_s=10)
    beats.heard(WORKER, 100.0)
    assert beats.silent(100.5) == ()
    assert beats.silent(500.0) == ()
    assert beats.silent(503.0) == ()
    assert beats.silent(507.0) == ()
    assert beats.silent(510.0) == (WORKER,)


def test_delays_grow_with_jitter_up_to_the_limit() -> None:
    found = list(islice(delays(0.1, 5.0, random.Random(1)), 200))
    assert all(0 <= delay <= 5.0 for delay in found)
    assert found[0] <= 0.1
    assert max(found) > 4.0
    assert len(set(found)) == 200


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = RateWindow(window_s=10)
    assert rate.per_second(0.0) == 0
    for tenth in range(1000):
        rate.add(5, tenth / 10)
    assert rate.per_second(100.0) == pytest.approx(50, rel=0.1)
    assert rate.per_second(200.0) == 0


def test_the_order_of_a_seed_and_epoch_never_changes() -> None:
    """The order is part of a job's state: a new version of elastane must give the same one."""
    spec = make_dataset(10, shuffle=True, seed=1)
    assert sample_indices(spec, 0, 0, 10) == [3, 5, 7, 4, 2, 0, 6, 1, 8, 9]
    assert sample_indices(spec, 1, 0, 10) == [1, 7, 9, 8, 4, 3, 0, 2, 5, 6]


def test_an_index_list_is_the_order_unless_it_is_shuffled() -> None:
    assert sample_indices(make_dataset(None, indices=(7, 3, 5)), 0, 1, 3) == [3, 5]
    shuffled = sample_indices(make_dataset(None, indices=(7, 3, 5), shuffle=True), 0, 0, 3)
    assert sorted(shuffled) == [3, 5, 7]


def test_a_shuffle_spreads_the_samples() -> None:
    """The mean distance of neighbours in a random order of n samples is n/3."""
    order = sample_indices(make_dataset(100_000, shuffle=True, seed=3), 0, 0, 100_000)
    distances = [abs(a - b) for a, b in pairwise(order)]
    assert sum(distances) / len(distances) == pytest.approx(100_000 / 3, rel=0.02)


def test_an_endless_stream_never_runs_dry() -> None:
    ledger = ShardLedger(make_dataset(None), max_task_retries=3, min_timeout_s=10)
    for number in range(100):
        (task,) = ledger.lease(WORKER, 1, 0.0)
        assert (task.shard.start, task.shard.end) == (number * 10, number * 10 + 10)
        ledger.commit(WORKER, task.id, task.shard.end, 0.0)
    assert not ledger.finished
    assert ledger.remaining_samples is None


def test_the_time_out_grows_with_the_longest_task() -> None:
    ledger = ShardLedger(make_dataset(), max_task_retries=3, min_timeout_s=10)
    (task,) = ledger.lease(WORKER, 1, 0.0)
    ledger.commit(WORKER, task.id, task.shard.end, 100.0)
    assert ledger.timeout_s == PATIENCE * 100
    ledger.lease(WORKER, 1, 100.0)
    assert ledger.expire(399.0) == ()
    assert [piece.worker for piece in ledger.expire(400.0)] == [WORKER]


def test_the_cost_of_a_ledger_does_not_grow_with_the_data() -> None:
    ledger = ShardLedger(make_dataset(10**12), max_task_retries=3, min_timeout_s=10)
    for _ in range(1000):
        (task,) = ledger.lease(WORKER, 1, 0.0)
        ledger.commit(WORKER, task.id, task.shard.end, 0.0)
    assert len(str(ledger.snapshot())) < 1000


def group(restart_count: int = 3) -> NodeGroup:
    resource = NodeResource(memory=Memory.mib(100))
    return NodeGroup(JobName("job"), NodeType.WORKER, resource, GroupLimits(restart_count=restart_count))


def test_back_off_doubles_up_to_its_limit() -> None:
    nodes = group(restart_count=10_000)
    nodes.scale_to(1, 0.0)
    waits = []
    now = 0.0
    for _ in range(1500):
        nodes.exited(nodes.nodes[-1].name, NodeExit(ExitReason.ERROR), now)
        due = nodes.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
        nodes.launch_due(now)
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) <= BACKOFF_MOST_S + 1e-6


def test_later_nodes_get_the_memory_that_any_came_to_need() -> None:
    nodes = group()
    nodes.scale_to(2, 0.0)
    nodes.exited(NodeName("job-worker-0"), NodeExit(ExitReason.OOM), 0.0)
    nodes.launch_due(10.0)
    nodes.exited(NodeName("job-worker-2"), NodeExit(ExitReason.OOM), 10.0)
    nodes.exited(NodeName("job-worker-1"), NodeExit(ExitReason.OOM), 10.0)
    nodes.scale_to(3, 10.0)
    assert [str(node.resource.memory) for node in nodes.nodes] == ["100Mi", "100Mi", "200Mi", "400Mi", "200Mi", "400Mi"]


def test_a_job_whose_nodes_were_all_let_go_is_stopped_not_succeeded() -> None:
    nodes = group()
    nodes.scale_to(1, 0.0)
    nodes.stop()
    nodes.exited(WORKER, NodeExit(ExitReason.DONE), 0.0)
    assert nodes.outcome is not None
    assert nodes.outcome.end is JobEnd.STOPPED
