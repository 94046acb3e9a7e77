"""The replay of one job under one policy: from event to event, with a constant speed between two."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.sizing_replay.jobs import ReplayedJob
from benchmarks.sizing_replay.policies import Plan, Policy
from elastane.model.sizing import Change, JobSize, Window

WINDOW_S = 20.0
WARM_UP_S = 10.0
"""After a change, before the next window begins."""
ASKED_EACH = 10
"""A policy is asked after each of so many windows at a size, and then after every so many of them."""


@dataclass(frozen=True)
class Outcome:
    """How a job went."""

    completed_s: float
    plans: int
    rollbacks: int
    last_size: JobSize
    last_share: float
    """The speed at its end, beside that of the best size at that time."""
    plans_to_ninety: int | None
    """How many plans it took to nine tenths of the best speed; None if it never came there."""


class Replay:
    """One job under one policy."""

    def __init__(self, job: ReplayedJob, policy: Policy) -> None:
        self._job = job
        self._policy = policy
        self._noise = random.Random(7 * job.number + 3)
        self._now_s = 0.0
        self._done = 0.0
        self._size = policy.first_size(job)
        self._windows: list[Window] = []
        self._changes: list[Change] = []
        self._here = 0
        self._to_ninety: int | None = None
        self._plans = 0

    def run(self) -> Outcome:
        self._see_ninety()
        self._train(WARM_UP_S)
        while not self._finished:
            begun_s, done = self._now_s, self._done
            self._train(WINDOW_S)
            if self._finished:
                break
            self._observe(begun_s, (self._done - done) / WINDOW_S)
            self._here += 1
            if self._here <= ASKED_EACH or self._here % ASKED_EACH == 0:
                remaining = self._job.samples - self._done
                plan = self._policy.decide(self._job, self._windows, self._changes, remaining, self._now_s)
                if plan is not None:
                    self._carry_out(plan)
        job = self._job
        best = job.samples_per_s(job.best_size(self._now_s), self._now_s)
        return Outcome(
            completed_s=self._now_s,
            plans=self._plans,
            rollbacks=sum(change.rolled_back for change in self._changes),
            last_size=self._size,
            last_share=job.samples_per_s(self._size, self._now_s) / best,
            plans_to_ninety=self._to_ninety,
        )

    @property
    def _finished(self) -> bool:
        return self._done >= self._job.samples * (1 - 1e-9)

    def _train(self, duration_s: float) -> None:
        """Train for so long, or to the end of the job."""
        end_s = self._now_s + duration_s
        edges = [edge for one in self._job.disturbances for edge in (one.begin_s, one.end_s)]
        while self._now_s < end_s and not self._finished:
            until_s = min([end_s, *(edge for edge in edges if edge > self._now_s)])
            speed = self._job.samples_per_s(self._size, self._now_s)
            left_s = (self._job.samples - self._done) / speed
            step_s = min(until_s - self._now_s, left_s)
            self._done += speed * step_s
            self._now_s = until_s if step_s < left_s else self._now_s + left_s

    def _carry_out(self, plan: Plan) -> None:
        before, job = self._size, self._job
        if not job.budget.allows(plan.size):
            raise ValueError(f"{plan.size} is outside of {job.budget}")
        grows = any((getattr(plan.size, what) or 0) > (getattr(before, what) or 0) for what in ("workers", "ps"))
        resized = (plan.size.worker_cpu, plan.size.ps_cpu) != (before.worker_cpu, before.ps_cpu)
        if grows or resized:
            self._train(job.launch_s)
        if self._finished:
            return
        cost_s = job.cost_s(before, plan.size)
        self._now_s += cost_s
        if plan.is_rollback:
            self._changes[-1] = replace(self._changes[-1], rolled_back=True)
        self._changes.append(Change(self._now_s, before, plan.size, plan.prediction, cost_s, reason=plan.reason))
        self._size = plan.size
        self._plans += 1
        self._here = 0
        self._see_ninety()
        self._train(WARM_UP_S)

    def _see_ninety(self) -> None:
        job = self._job
        best = job.samples_per_s(job.best_size(self._now_s), self._now_s)
        if self._to_ninety is None and job.samples_per_s(self._size, self._now_s) >= 0.9 * best:
            self._to_ninety = self._plans

    def _observe(self, begun_s: float, samples_per_s: float) -> None:
        job, size = self._job, self._size
        seen = samples_per_s * math.exp(self._noise.gauss(0, job.noise))
        step = job.step(size, begun_s)
        step_s = size.workers * job.batch_size / seen

        def part(seconds: float) -> float:
            return min(seconds / step.whole_s * math.exp(self._noise.gauss(0, 0.1)), 1.0) * step_s

        used = None
        if size.ps and size.ps_cpu is not None:
            busy = samples_per_s / job.batch_size * step.server_cores * math.exp(self._noise.gauss(0, 0.03))
            used = min(busy, size.ps_cpu)
        self._windows.append(
            Window(
                at_s=self._now_s,
                size=size,
                batch_size=job.batch_size,
                samples_per_s=seen,
                step_s=step_s,
                input_wait_s=part(step.input_s),
                pull_s=part(step.server_s / 2),
                push_s=part(step.server_s / 2),
                sync_s=part(step.sync_s),
                hottest_share=job.share(size, begun_s),
                ps_cpu_used=used,
                duration_s=WINDOW_S,
            )
        )


def replay(job: ReplayedJob, policies: Sequence[Policy]) -> dict[str, Outcome]:
    """One job under each policy."""
    return {policy.name: Replay(job, policy).run() for policy in policies}
