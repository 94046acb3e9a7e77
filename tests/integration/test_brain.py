"""The Brain over the wire, on SQLite and on PostgreSQL: what it stores, what it refuses, and what it advises."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import grpc
import pytest

from elastane.brain import app
from elastane.master.brain_client import BrainClient
from elastane.model.brain import Likeness, ReportedWindow
from elastane.model.errors import BrainUnreachable, InvalidInput
from elastane.model.quantity import Memory
from elastane.model.sizing import Budget, Change, Decision, JobKind, JobSize, NoDecision, Prediction
from elastane.rpc import brain_wire
from elastane.rpc.protos import brain_pb2 as pb
from tests.integration.brains import TOKEN, BrainHere, make_report, make_run, make_window, until

BUDGET = Budget(max_workers=64)
TABLES = ("runs", "windows", "plans", "fits")


async def call(brain: BrainHere, method: str, data: bytes, token: str | None = TOKEN) -> bytes:
    """Send raw bytes as the one message of a call."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(brain.address) as channel:
        answer: bytes = await channel.unary_unary(f"/elastane.v1.Brain/{method}")(data, metadata=metadata, timeout=10)
        return answer


async def refused(
    brain: BrainHere, method: str, message: Any, token: str | None = TOKEN
) -> tuple[grpc.StatusCode, str]:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(brain, method, data, token)
    return caught.value.code(), caught.value.details() or ""


def stored(brain: BrainHere) -> list[int]:
    return [brain.store.count(table) for table in TABLES]


async def test_windows_are_stored_as_they_were_told(brain: BrainHere) -> None:
    told = [ReportedWindow(make_window(float(at_s)), Memory.mib(5), None, step=at_s) for at_s in (1, 2, 3)]
    async with brain.client(make_run("a")) as client:
        brain.clock.now += 3
        for report in told:
            client.report(report)
        await until(lambda: client.waiting == 0)
    assert client.acknowledged == 3
    known = brain.store.find("a")
    assert known is not None
    assert brain.store.windows_of(known.id) == tuple(told)


async def test_the_second_run_of_a_job_begins_where_the_first_ended(brain: BrainHere) -> None:
    await brain.tell(make_run("first"), (2, 4, 8))
    brain.clock.now += 3600
    async with brain.client(make_run("second")) as client:
        advice = await client.plan(BUDGET, 1e6, with_history=True)
    assert isinstance(advice.decision, Decision)
    assert abs(advice.decision.size.workers - 8) <= 0.1 * 8
    assert "8 workers" in advice.decision.reason
    assert advice.like is not None
    assert (advice.like.how, advice.like.runs) == (Likeness.CODE_AND_DATA, 1)
    assert advice.history.last_size == JobSize(8)
    assert {prior.window.size.workers for prior in advice.history.windows} == {2, 4, 8}


async def test_the_second_run_begins_inside_its_own_limits(brain: BrainHere) -> None:
    await brain.tell(make_run("first"), (2, 8))
    async with brain.client(make_run("second")) as client:
        advice = await client.plan(Budget(max_workers=6), 1e6)
    assert isinstance(advice.decision, Decision)
    assert advice.decision.size.workers == 6


async def test_code_and_data_come_before_user_and_model_before_kind(brain: BrainHere) -> None:
    await brain.tell(make_run("of-kind", user="eve", model="deep", code="x", data="y"), (5,))
    await _expect(brain, "asks-1", Likeness.KIND, 5)
    await brain.tell(make_run("of-user", code="x", data="y"), (6,))
    await _expect(brain, "asks-2", Likeness.USER_AND_MODEL, 6)
    await brain.tell(make_run("of-code", user="eve", model="deep"), (7,))
    await _expect(brain, "asks-3", Likeness.CODE_AND_DATA, 7)


async def _expect(brain: BrainHere, run: str, how: Likeness, workers: int) -> None:
    async with brain.client(make_run(run)) as client:
        advice = await client.plan(BUDGET, None)
    assert isinstance(advice.decision, Decision)
    assert advice.like is not None
    assert (advice.like.how, advice.decision.size.workers) == (how, workers)


async def test_a_first_run_of_its_kind_is_told_that_nothing_is_known(brain: BrainHere) -> None:
    await brain.tell(make_run("servers", kind=JobKind.PARAMETER_SERVER), (4,))
    async with brain.client(make_run("first")) as client:
        advice = await client.plan(BUDGET, 1e6)
    assert isinstance(advice.decision, NoDecision)
    assert (advice.plan, advice.like) == (0, None)
    assert "no job like this one" in advice.decision.reason


async def test_a_running_job_is_advised_from_its_own_windows_and_the_outcome_is_kept(brain: BrainHere) -> None:
    async with brain.client(make_run("a")) as client:
        for workers, at_s in ((1, 10.0), (1, 20.0), (1, 30.0), (2, 40.0), (2, 50.0), (2, 60.0)):
            brain.clock.now += 10
            client.report(make_report(at_s, workers))
        advice = await client.plan(BUDGET, 1e9)
        assert isinstance(advice.decision, Decision)
        assert 2 < advice.decision.size.workers <= 4
        assert advice.plan > 0
        change = Change(62.0, JobSize(2), advice.decision.size, advice.decision.prediction, 2.0, reason="why")
        brain.clock.now += 10
        client.outcome(1, change, advice.plan)
        advice_after = await client.plan(BUDGET, 1e9)
        assert isinstance(advice_after.decision, NoDecision)
        assert "0 of 3 stable windows" in advice_after.decision.reason
        client.outcome(1, replace(change, realised_samples_per_s=3900.0), advice.plan)
        assert await client.finish("succeeded")
    known = brain.store.find("a")
    assert known is not None
    (kept,) = brain.store.changes_of(known.id)
    assert kept == replace(change, realised_samples_per_s=3900.0, reason=advice.decision.reason)
    assert stored(brain) == [1, 6, 1, 1]


GARBAGE = [
    ("samples_per_s", math.nan, "samples_per_s: nan"),
    ("samples_per_s", -5.0, "samples_per_s: -5"),
    ("samples_per_s", 1e30, r"samples_per_s: 1e\+30"),
    ("step_s", math.inf, "step_s: inf"),
    ("pull_s", -0.5, "pull_s: -0.5"),
    ("worker_cpu_used", 1e9, r"worker_cpu_used: 1e\+09"),
    ("hottest_share", 1.5, "hottest_share: 1.5"),
    ("at_s", 1e6, r"at_s: 1e\+06 cannot be true, it is from the future"),
    ("size", JobSize(0), "size.workers: 0"),
    ("size", JobSize(2, worker_cpu=math.nan), "size.worker_cpu: nan"),
]


@pytest.mark.parametrize(("field", "value", "said"), GARBAGE)
async def test_garbage_is_refused_by_name_and_changes_nothing(
    brain: BrainHere, field: str, value: Any, said: str
) -> None:
    good, bad = make_report(10.0), ReportedWindow(replace(make_window(20.0), **{field: value}))
    async with brain.client(make_run("a")) as client:
        brain.clock.now += 30
        client.report(good)
        before = await client.plan(BUDGET, 1e6)
        with pytest.raises(InvalidInput, match=said):
            client.report(bad)
        # A client that does not check sends the bad row between good ones.
        rows = [brain_wire.row_to_wire(number, row) for number, row in ((91, good), (92, bad), (93, good))]
        code, details = await refused(brain, "Report", pb.ReportRequest(run="a", sender=1, row=rows))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert re.search(f"^row 92: {said}", details)
        assert await client.plan(BUDGET, 1e6) == before
    assert stored(brain) == [1, 1, 0, 0]


@pytest.mark.parametrize("token", [None, "", "the-wrong-token", TOKEN + "x"])
async def test_a_call_without_the_right_token_is_refused(brain: BrainHere, token: str | None) -> None:
    for method in ("Register", "Report", "Plan", "Outcome", "Finish"):
        code, _ = await refused(brain, method, brain_wire.run_to_wire(make_run("a"), 0.0), token)
        assert code is grpc.StatusCode.UNAUTHENTICATED
    assert stored(brain) == [0, 0, 0, 0]


async def test_a_client_with_a_wrong_token_goes_on_alone(brain: BrainHere) -> None:
    said: list[tuple[bool, str]] = []
    client = BrainClient(brain.address, "wrong-token", make_run("a"), lambda: 100.0, lambda *word: said.append(word))
    client.start()
    client.report(make_report())
    with pytest.raises(BrainUnreachable):
        await client.plan(BUDGET, 1e6)
    assert not await client.finish("succeeded")
    await client.close()
    assert said == [(False, "wrong or missing token")]
    assert stored(brain) == [0, 0, 0, 0]


def _register(**more: Any) -> pb.RegisterRequest:
    request = brain_wire.run_to_wire(make_run("b"), 0.0)
    request.MergeFrom(pb.RegisterRequest(**more))
    return request


def _plan(assumed_cost_s: float | None = None, **limits: Any) -> pb.PlanRequest:
    allowed = pb.Limits(**{"min_workers": 1, "max_workers": 4, **limits})
    return pb.PlanRequest(run="a", now_s=1.0, limits=allowed, assumed_cost_s=assumed_cost_s)


def _outcome(**more: Any) -> pb.OutcomeRequest:
    size = pb.Size(workers=1)
    fields = {"run": "a", "number": 1, "at_s": 1.0, "before": size, "after": size, "cost_s": 1.0}
    return pb.OutcomeRequest(**{**fields, **more})


@pytest.mark.parametrize(
    ("method", "message", "said"),
    [
        ("Register", _register(kind="magic"), 'kind: "magic" is not one of'),
        ("Register", _register(run="x" * 201), "run: a text of 201 characters"),
        ("Register", _register(user="a\0b"), "user: 'a\\x00b' holds a NUL"),
        ("Register", _register(config_json="[1]"), 'config_json: "[1]" is not a JSON object'),
        ("Register", _register(config_json="[" * 60_000), "is not a JSON object"),
        ("Register", _register(age_s=-1.0), "age_s: -1"),
        ("Register", _register(age_s=math.nan), "age_s: nan"),
        ("Report", pb.ReportRequest(run="a", sender=0), "sender 0"),
        ("Report", pb.ReportRequest(run="a", sender=2**64 - 1), "sender 18446744073709551615"),
        ("Report", pb.ReportRequest(run="a", sender=1, row=[pb.WindowRow()] * 1001), "a report of 1001 rows"),
        ("Report", pb.ReportRequest(run="a", sender=1, row=[pb.WindowRow()]), "row 0: number: 0"),
        ("Plan", _plan(min_workers=5), "limits.workers: 5 to 4"),
        ("Plan", _plan(max_workers=10**6), "limits.workers: 1 to 1000000"),
        ("Plan", _plan(cpu=math.nan), "limits.cpu: nan"),
        ("Plan", _plan(worker_cpus=[-1.0]), "limits.cpus: -1"),
        ("Plan", pb.PlanRequest(run="a"), "limits.workers: 0 to 0"),
        ("Plan", _plan(assumed_cost_s=math.nan), "assumed_cost_s: nan"),
        ("Outcome", _outcome(number=0), "number: 0"),
        ("Outcome", _outcome(cost_s=-1.0), "cost_s: -1"),
        ("Outcome", _outcome(at_s=1e6), "it is from the future"),
        ("Outcome", _outcome(realised_samples_per_s=math.inf), "realised_samples_per_s: inf"),
        ("Outcome", _outcome(after=pb.Size()), "size.workers: 0"),
        ("Finish", pb.FinishRequest(run="a", exit_reason="x" * 201), "exit_reason: a text of 201"),
        ("Finish", b"\x08", "1 bytes are not a FinishRequest"),
        ("Finish", pb.FinishRequest(run="a").SerializeToString() + b"\x50\x01", "does not know"),
    ],
)
async def test_a_message_that_makes_no_sense_is_refused_and_changes_nothing(
    brain: BrainHere, method: str, message: Any, said: str
) -> None:
    await call(brain, "Register", brain_wire.run_to_wire(make_run("a"), 0.0).SerializeToString())
    code, details = await refused(brain, method, message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said in details
    assert stored(brain) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Report", pb.ReportRequest(run="nobody", sender=1)),
        ("Plan", pb.PlanRequest(run="nobody", limits=pb.Limits(min_workers=1, max_workers=4))),
        ("Outcome", _outcome(run="nobody")),
        ("Finish", pb.FinishRequest(run="nobody", exit_reason="succeeded")),
    ],
)
async def test_a_run_that_is_not_registered_is_refused(brain: BrainHere, method: str, message: Any) -> None:
    code, details = await refused(brain, method, message)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert 'run "nobody" is not registered' in details


async def test_a_brain_that_has_too_many_plans_to_make_says_so(
    brain: BrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brain.client(make_run("a")) as client:
        await client.plan(BUDGET, 1e6)
        monkeypatch.setattr(app, "MOST_PLANS_WAITING", 0)
        with pytest.raises(BrainUnreachable, match="decide without the Brain"):
            await client.plan(BUDGET, 1e6)


async def test_a_busy_brain_says_again_that_a_run_stays_until_it_has_changed(
    brain: BrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brain.client(make_run("a")) as client:
        brain.clock.now += 100
        client.report(make_report(10.0))
        first = await client.plan(BUDGET, 1e6)
        client.report(make_report(20.0))
        monkeypatch.setattr(app, "MANY_PLANS_WAITING", 0)
        assert await client.plan(BUDGET, 1e6) == first
        assert "1 of 3 stable windows" in first.decision.reason
        assert "2 of 3 stable windows" in (await client.plan(Budget(max_workers=5), 1e6)).decision.reason
        client.report(make_report(30.0, 4))
        client.outcome(1, Change(20.0, JobSize(2), JobSize(4), Prediction(1.0, 1.0, 1.0), 1.0))
        assert "at 4 workers" in (await client.plan(Budget(max_workers=5), 1e6)).decision.reason
        client.report(make_report(40.0, 4))
        brain.clock.now += 61
        assert "2 of 3 stable windows at 4 workers" in (await client.plan(Budget(max_workers=5), 1e6)).decision.reason


async def test_a_prediction_without_windows_is_stored_as_a_plan(brain: BrainHere) -> None:
    await brain.tell(make_run("first"), (4,))
    async with brain.client(make_run("second")) as client:
        advice = await client.plan(BUDGET, 1e6)
        assert isinstance(advice.decision, Decision)
        assert isinstance(advice.decision.prediction, Prediction)
        change = Change(0.0, JobSize(4), JobSize(4), advice.decision.prediction, 0.0, realised_samples_per_s=4100.0)
        client.outcome(1, change, advice.plan)
        await until(lambda: client.waiting == 0)
        assert await client.finish("succeeded")
    assert stored(brain) == [2, 3, 1, 1]
