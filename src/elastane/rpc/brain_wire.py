"""The messages of the Brain to nouns and back, with every value checked on the way in."""

from __future__ import annotations

import json
import math

from elastane.model.brain import Advice, Likeness, LikeRuns, ReportedWindow, RunIdentity
from elastane.model.errors import InvalidInput, MalformedMessage
from elastane.model.quantity import Memory
from elastane.model.sizing import (
    MOST_CPU,
    MOST_SERVERS,
    MOST_WORKERS,
    Budget,
    Change,
    Decision,
    History,
    JobKind,
    JobSize,
    NoDecision,
    Prediction,
    PriorWindow,
    Window,
    check_size,
    check_window,
)
from elastane.rpc.protos import brain_pb2 as pb

MOST_ROWS = 1000
MOST_NAME = 200
MOST_CONFIG = 65_536
MOST_REASON = 2000
MOST_NUMBER = 2**63 - 1
"""What a database's integer holds."""
MOST_MEMORY = 2**60
MOST_AGE_S = 1e9
FUTURE_SLACK_S = 60.0
"""The Brain's clock and a job's drift apart, by this much in weeks."""


def run_to_wire(run: RunIdentity, age_s: float) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        run=run.run,
        job=run.job,
        user=run.user,
        model=run.model,
        kind=run.kind,
        code=run.code,
        data=run.data,
        config_json=run.config_json,
        age_s=age_s,
    )


def run_from_wire(message: pb.RegisterRequest) -> tuple[RunIdentity, float]:
    """The run, and its age in seconds. Raises InvalidInput with the field and its value."""
    _check_number("age_s", message.age_s, 0.0, MOST_AGE_S)
    return (
        checked_run(
            RunIdentity(
                run=message.run,
                job=message.job,
                user=message.user,
                model=message.model,
                kind=_kind(message.kind),
                code=message.code,
                data=message.data,
                config_json=message.config_json,
            )
        ),
        message.age_s,
    )


def checked_run(run: RunIdentity) -> RunIdentity:
    """Raises InvalidInput with the field and its value."""
    for name in ("run", "job", "user"):
        if not getattr(run, name):
            raise InvalidInput(f"{name}: it is empty")
    for name in ("run", "job", "user", "model", "code", "data"):
        check_text(name, getattr(run, name), MOST_NAME)
    check_text("config_json", run.config_json, MOST_CONFIG)
    try:
        is_object = isinstance(json.loads(run.config_json), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidInput(f'config_json: "{run.config_json[:40]}" is not a JSON object')
    return run


def check_text(name: str, text: str, most: int) -> None:
    """Raises InvalidInput for a text that is too long, or that a database cannot hold."""
    if len(text) > most:
        raise InvalidInput(f"{name}: a text of {len(text)} characters; at most {most} are allowed")
    if "\0" in text:
        raise InvalidInput(f"{name}: {text[:40]!r} holds a NUL character")


def size_to_wire(size: JobSize) -> pb.Size:
    return pb.Size(workers=size.workers, ps=size.ps, worker_cpu=size.worker_cpu, ps_cpu=size.ps_cpu)


def size_from_wire(message: pb.Size) -> JobSize:
    """Raises InvalidInput with the field and its value."""
    size = JobSize(
        workers=message.workers,
        ps=message.ps,
        worker_cpu=message.worker_cpu if message.HasField("worker_cpu") else None,
        ps_cpu=message.ps_cpu if message.HasField("ps_cpu") else None,
    )
    check_size(size)
    return size


def row_to_wire(number: int, reported: ReportedWindow) -> pb.WindowRow:
    window = reported.window
    return pb.WindowRow(
        number=number,
        at_s=window.at_s,
        duration_s=window.duration_s,
        size=size_to_wire(window.size),
        batch_size=window.batch_size,
        samples_per_s=window.samples_per_s,
        step_s=window.step_s,
        input_wait_s=window.input_wait_s,
        pull_s=window.pull_s,
        push_s=window.push_s,
        sync_s=window.sync_s,
        hottest_share=window.hottest_share,
        worker_cpu_used=window.worker_cpu_used,
        ps_cpu_used=window.ps_cpu_used,
        worker_memory_bytes=None if reported.worker_memory is None else reported.worker_memory.bytes,
        ps_memory_bytes=None if reported.ps_memory is None else reported.ps_memory.bytes,
        step=reported.step,
        fixed_global_batch=window.fixed_global_batch,
    )


def row_from_wire(message: pb.WindowRow, now_s: float) -> ReportedWindow:
    """Raises InvalidInput with the row's number, the field and its value."""
    try:
        return _checked(_reported(message), now_s)
    except InvalidInput as error:
        raise InvalidInput(f"row {message.number}: {error}") from None


def checked_report(reported: ReportedWindow, now_s: float) -> ReportedWindow:
    """Raises InvalidInput with the field and its value, also for what the wire cannot carry."""
    for name in ("worker_memory", "ps_memory"):
        memory = getattr(reported, name)
        if memory is not None and not 0 <= memory.bytes <= MOST_MEMORY:
            raise InvalidInput(f"{name}: {memory.bytes} bytes cannot be true, allowed are 0 to {MOST_MEMORY}")
    if reported.step is not None and not 0 <= reported.step <= MOST_NUMBER:
        raise InvalidInput(f"step: {reported.step} cannot be true, allowed are 0 to {MOST_NUMBER}")
    check_window(reported.window, now_s)
    return reported


def _checked(reported: ReportedWindow, now_s: float) -> ReportedWindow:
    return checked_report(reported, now_s + FUTURE_SLACK_S)


def _reported(message: pb.WindowRow) -> ReportedWindow:
    if not 1 <= message.number <= MOST_NUMBER:
        raise InvalidInput(f"number: {message.number} is not from 1 to {MOST_NUMBER}")
    return ReportedWindow(
        window=Window(
            at_s=message.at_s,
            duration_s=message.duration_s,
            size=size_from_wire(message.size),
            batch_size=message.batch_size,
            samples_per_s=message.samples_per_s,
            step_s=message.step_s,
            input_wait_s=message.input_wait_s,
            pull_s=message.pull_s,
            push_s=message.push_s,
            sync_s=message.sync_s,
            hottest_share=message.hottest_share,
            worker_cpu_used=message.worker_cpu_used if message.HasField("worker_cpu_used") else None,
            ps_cpu_used=message.ps_cpu_used if message.HasField("ps_cpu_used") else None,
            fixed_global_batch=message.fixed_global_batch,
        ),
        worker_memory=Memory(message.worker_memory_bytes) if message.HasField("worker_memory_bytes") else None,
        ps_memory=Memory(message.ps_memory_bytes) if message.HasField("ps_memory_bytes") else None,
        step=message.step if message.HasField("step") else None,
    )


def checked_rows(message: pb.ReportRequest) -> pb.ReportRequest:
    """Raises MalformedMessage for too many rows, or a sender that is none."""
    if len(message.row) > MOST_ROWS:
        raise MalformedMessage(f"a report of {len(message.row)} rows; at most {MOST_ROWS} are allowed")
    if not 1 <= message.sender <= MOST_NUMBER:
        raise MalformedMessage(f"sender {message.sender} is not from 1 to {MOST_NUMBER}")
    return message


def budget_to_wire(budget: Budget) -> pb.Limits:
    return pb.Limits(
        min_workers=budget.min_workers,
        max_workers=budget.max_workers,
        min_ps=budget.min_ps,
        max_ps=budget.max_ps,
        cpu=budget.cpu,
        worker_cpus=budget.worker_cpus,
        ps_cpus=budget.ps_cpus,
    )


def plan_request(
    run: RunIdentity,
    now_s: float,
    budget: Budget,
    remaining_samples: float | None,
    *,
    with_history: bool,
    assumed_cost_s: float | None = None,
) -> pb.PlanRequest:
    return pb.PlanRequest(
        run=run.run,
        now_s=now_s,
        limits=budget_to_wire(budget),
        remaining_samples=remaining_samples,
        with_history=with_history,
        assumed_cost_s=assumed_cost_s,
    )


def checked_cost(message: pb.PlanRequest) -> float | None:
    """What the run assumes a change to cost. Raises InvalidInput."""
    if not message.HasField("assumed_cost_s"):
        return None
    _check_number("assumed_cost_s", message.assumed_cost_s, 0.0, MOST_AGE_S)
    return message.assumed_cost_s


def checked_plan_request(message: pb.PlanRequest) -> tuple[Budget, float | None]:
    """The budget and the remaining samples. Raises InvalidInput with the field and its value."""
    limits = message.limits
    for role, low, high, least, most in (
        ("workers", limits.min_workers, limits.max_workers, 1, MOST_WORKERS),
        ("ps", limits.min_ps, limits.max_ps, 0, MOST_SERVERS),
    ):
        if not least <= low <= high <= most:
            raise InvalidInput(f"limits.{role}: {low} to {high} cannot be, allowed are {least} to {most}")
    for cpu in (*limits.worker_cpus, *limits.ps_cpus):
        _check_number("limits.cpus", cpu, 1e-3, MOST_CPU)
    if len(limits.worker_cpus) + len(limits.ps_cpus) > 100:
        raise InvalidInput("limits.cpus: more than 100 are given")
    _check_number("now_s", message.now_s, 0.0, MOST_AGE_S)
    remaining = message.remaining_samples if message.HasField("remaining_samples") else None
    if remaining is not None:
        _check_number("remaining_samples", remaining, 0.0, 1e18)
    cpu_limit = limits.cpu if limits.HasField("cpu") else None
    if cpu_limit is not None:
        _check_number("limits.cpu", cpu_limit, 1e-3, MOST_CPU * MOST_WORKERS)
    budget = Budget(
        max_workers=limits.max_workers,
        min_workers=limits.min_workers,
        max_ps=limits.max_ps,
        min_ps=limits.min_ps,
        cpu=cpu_limit,
        worker_cpus=tuple(limits.worker_cpus),
        ps_cpus=tuple(limits.ps_cpus),
    )
    return budget, remaining


def advice_to_wire(advice: Advice) -> pb.Planned:
    message = pb.Planned(plan=advice.plan, reason=advice.decision.reason)
    if isinstance(decision := advice.decision, Decision):
        message.size.CopyFrom(size_to_wire(decision.size))
        message.forecast.CopyFrom(_forecast(decision.prediction))
        message.observations = decision.observations
        message.rollback = decision.is_rollback
        if decision.before is not None:
            message.before.CopyFrom(size_to_wire(decision.before))
        if decision.present_samples_per_s is not None:
            message.present_samples_per_s = decision.present_samples_per_s
        if decision.pays_back_s is not None:
            message.pays_back_s = decision.pays_back_s
    if (like := advice.like) is not None:
        message.like.CopyFrom(
            pb.LikeRuns(
                how=like.how,
                runs=like.runs,
                worker_memory_bytes=None if like.worker_memory is None else like.worker_memory.bytes,
                ps_memory_bytes=None if like.ps_memory is None else like.ps_memory.bytes,
                last_size=None if like.last_size is None else size_to_wire(like.last_size),
            )
        )
    for number, prior in enumerate(advice.history.windows, 1):
        message.prior.add(window=row_to_wire(number, ReportedWindow(prior.window)), weight=prior.weight)
    return message


def advice_from_wire(message: pb.Planned) -> Advice:
    """Raises InvalidInput for what no Brain would answer."""
    like = None
    if message.HasField("like"):
        found = message.like
        like = LikeRuns(
            how=_likeness(found.how),
            runs=found.runs,
            worker_memory=Memory(found.worker_memory_bytes) if found.HasField("worker_memory_bytes") else None,
            ps_memory=Memory(found.ps_memory_bytes) if found.HasField("ps_memory_bytes") else None,
            last_size=size_from_wire(found.last_size) if found.HasField("last_size") else None,
        )
    prior = []
    for item in message.prior:
        _check_number("weight", item.weight, 0.0, 1.0)
        prior.append(PriorWindow(row_from_wire(item.window, MOST_AGE_S).window, item.weight))
    return Advice(
        decision=_decision(message),
        plan=message.plan,
        like=like,
        history=History(tuple(prior), None if like is None else like.last_size),
    )


def _decision(message: pb.Planned) -> Decision | NoDecision:
    if not message.plan:
        return NoDecision(message.reason)
    return Decision(
        size=size_from_wire(message.size),
        reason=message.reason,
        prediction=_prediction(message.forecast),
        before=size_from_wire(message.before) if message.HasField("before") else None,
        present_samples_per_s=message.present_samples_per_s if message.HasField("present_samples_per_s") else None,
        pays_back_s=message.pays_back_s if message.HasField("pays_back_s") else None,
        observations=message.observations,
        is_rollback=message.rollback,
    )


def change_to_wire(run: RunIdentity, number: int, change: Change, plan: int) -> pb.OutcomeRequest:
    return pb.OutcomeRequest(
        run=run.run,
        number=number,
        plan=plan,
        at_s=change.at_s,
        before=size_to_wire(change.before),
        after=size_to_wire(change.after),
        forecast=_forecast(change.predicted),
        cost_s=change.cost_s,
        realised_samples_per_s=change.realised_samples_per_s,
        rolled_back=change.rolled_back,
        reason=change.reason,
    )


def change_from_wire(message: pb.OutcomeRequest, now_s: float) -> Change:
    """Raises InvalidInput with the field and its value."""
    if not 1 <= message.number <= MOST_NUMBER or message.plan > MOST_NUMBER:
        raise InvalidInput(f"number: {message.number} of plan {message.plan} is not from 1 to {MOST_NUMBER}")
    check_text("reason", message.reason, MOST_REASON)
    realised = message.realised_samples_per_s if message.HasField("realised_samples_per_s") else None
    return checked_change(
        Change(
            at_s=message.at_s,
            before=size_from_wire(message.before),
            after=size_from_wire(message.after),
            predicted=_prediction(message.forecast),
            cost_s=message.cost_s,
            realised_samples_per_s=realised,
            rolled_back=message.rolled_back,
            reason=message.reason,
        ),
        now_s + FUTURE_SLACK_S,
    )


def checked_change(change: Change, now_s: float) -> Change:
    """Raises InvalidInput with the field and its value."""
    check_size(change.before)
    check_size(change.after)
    _check_number("cost_s", change.cost_s, 0.0, MOST_AGE_S)
    _check_number("at_s", change.at_s, 0.0, MOST_AGE_S)
    for name in ("samples_per_s", "low", "high"):
        _check_number(f"predicted.{name}", getattr(change.predicted, name), 0.0, 1e12)
    if change.realised_samples_per_s is not None:
        _check_number("realised_samples_per_s", change.realised_samples_per_s, 0.0, 1e12)
    if change.at_s > now_s + 1:
        raise InvalidInput(f"at_s: {change.at_s:g} cannot be true, it is from the future, now is {now_s:g}")
    return change


def _forecast(prediction: Prediction) -> pb.Forecast:
    return pb.Forecast(samples_per_s=prediction.samples_per_s, low=prediction.low, high=prediction.high)


def _prediction(message: pb.Forecast) -> Prediction:
    return Prediction(message.samples_per_s, message.low, message.high)


def _kind(text: str) -> JobKind:
    if text not in tuple(JobKind):
        raise InvalidInput(f'kind: "{text[:40]}" is not one of {", ".join(JobKind)}')
    return JobKind(text)


def _likeness(text: str) -> Likeness:
    if text not in tuple(Likeness):
        raise InvalidInput(f'how: "{text[:40]}" is not one of {", ".join(Likeness)}')
    return Likeness(text)


def _check_number(name: str, value: float, least: float, most: float) -> None:
    if not math.isfinite(value) or not least <= value <= most:
        raise InvalidInput(f"{name}: {value:g} cannot be true, allowed are {least:g} to {most:g}")
