"""Jobs by number: each number is always the same job. The numbers of the two sets are disjoint."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from benchmarks.sizing_replay.truths import Additive, Queueing, Reducing, Saturating, Step, Truth, Worker
from elastane.model.sizing import Budget, JobKind, JobSize

SETS = {"choose": 0, "judge": 1_000_000}
"""Constants were chosen on the one; the figures are of the other."""
CORES = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Disturbance:
    """A time in which one worker is slow, or from which on one row is hot."""

    begin_s: float
    end_s: float
    slowness: float = 1.0
    hot: float = 0.0


@dataclass(frozen=True)
class ReplayedJob:
    """A job: its nature, its work, what may be chosen, what a change costs, and what goes wrong."""

    number: int
    kind: JobKind
    truth: Truth
    batch_size: float
    samples: float
    budget: Budget
    request: JobSize
    """What its user asked for."""
    start: JobSize
    """Where a policy that sizes the job by itself begins."""
    change_s: float
    """Training that a change of workers costs; one of servers costs twice as much."""
    launch_s: float
    """How long new nodes take to come, while the training goes on."""
    noise: float
    hot: float
    disturbances: tuple[Disturbance, ...]

    def share(self, size: JobSize, now_s: float) -> float:
        """The hottest server's share of the load."""
        if not size.ps:
            return 0.0
        hot = max([self.hot, *(one.hot for one in self.disturbances if one.begin_s <= now_s < one.end_s)])
        return hot + (1 - hot) / size.ps

    def step(self, size: JobSize, now_s: float) -> Step:
        """What a step takes now."""
        return self.truth.step(size, self.share(size, now_s))

    def samples_per_s(self, size: JobSize, now_s: float) -> float:
        """The job's speed now."""
        speed = size.workers * self.batch_size / self.step(size, now_s).whole_s
        for one in self.disturbances:
            if one.slowness > 1 and one.begin_s <= now_s < one.end_s:
                # With servers the others go on; in all-reduce everybody waits.
                parts = size.workers if self.kind is JobKind.PARAMETER_SERVER else 1
                speed *= 1 - (1 - 1 / one.slowness) / parts
        return speed

    def cost_s(self, before: JobSize, after: JobSize) -> float:
        servers = (before.ps, before.ps_cpu) != (after.ps, after.ps_cpu)
        return self.change_s * (2 if servers else 1)

    def best_size(self, now_s: float) -> JobSize:
        """What an oracle would choose at this moment."""
        return _best_size(self, tuple(one.hot for one in self.disturbances if one.begin_s <= now_s < one.end_s), now_s)


@cache
def _best_size(job: ReplayedJob, hot: tuple[float, ...], now_s: float) -> JobSize:  # noqa: ARG001  # `hot` is a key.
    budget = job.budget
    choices = product(
        range(budget.min_workers, budget.max_workers + 1),
        range(budget.min_ps, budget.max_ps + 1) if job.start.ps else [0],
        budget.worker_cpus or [job.start.worker_cpu],
        budget.ps_cpus or [job.start.ps_cpu],
    )
    sizes = [size for size in (JobSize(*chosen) for chosen in choices) if budget.allows(size)]
    return max(sizes, key=lambda size: job.samples_per_s(size, now_s))


def make_job(set_name: str, number: int) -> ReplayedJob:
    """The job of a number in a set."""
    draw = random.Random(SETS[set_name] + number)
    by_servers = draw.random() < 0.7
    chooses_cores = draw.random() < 0.4
    worker = _worker(draw)
    max_workers = draw.choice([8, 12, 16, 24, 32, 48, 64])
    max_ps = draw.choice([2, 4, 6, 8, 12, 16]) if by_servers else 0
    cores = draw.choice([2.0, 4.0, 8.0])
    server_cores = draw.choice([2.0, 4.0]) if by_servers else None
    budget = Budget(
        max_workers=max_workers,
        max_ps=max_ps,
        min_ps=1 if by_servers else 0,
        cpu=cores * max_workers * draw.uniform(0.6, 1.2),
        worker_cpus=CORES if chooses_cores else (),
        ps_cpus=CORES if chooses_cores and by_servers else (),
    )
    share = _log_uniform(draw, 0.5, 2.0)
    truth = _with_servers(draw, worker, max_workers, max_ps, share) if by_servers else _reducing(draw, worker)
    start = JobSize(2, 1 if by_servers else 0, cores, server_cores)
    request = JobSize(
        round(_log_uniform(draw, 1, max_workers / 2)),
        round(_log_uniform(draw, 1, max_ps)) if by_servers else 0,
        cores,
        server_cores,
    )
    while not budget.allows(request):
        request = JobSize(max(request.workers - 1, 1), max(request.ps - 1, budget.min_ps), cores, server_cores)
    job = ReplayedJob(
        number=number,
        kind=JobKind.PARAMETER_SERVER if by_servers else JobKind.ALLREDUCE,
        truth=truth,
        batch_size=draw.choice([64.0, 256.0, 1024.0]),
        samples=1.0,
        budget=budget,
        request=request,
        start=start,
        change_s=_log_uniform(draw, 3, 30),
        launch_s=_log_uniform(draw, 15, 90),
        noise=_log_uniform(draw, 0.01, 0.08),
        hot=draw.uniform(0.1, 0.5) if by_servers and draw.random() < 0.25 else 0.0,
        disturbances=(),
    )
    return _with_work(draw, job)


def _with_work(draw: random.Random, job: ReplayedJob) -> ReplayedJob:
    """So much work that the oracle needs between half an hour and eight, and what goes wrong meanwhile."""
    best_s = _log_uniform(draw, 1800, 8 * 3600)
    disturbances = []
    if draw.random() < 0.3:
        begin_s = draw.uniform(0, best_s)
        disturbances.append(Disturbance(begin_s, begin_s + draw.uniform(300, 1800), slowness=draw.uniform(1.5, 4)))
    if job.start.ps and draw.random() < 0.2:
        disturbances.append(Disturbance(draw.uniform(0, 0.7 * best_s), math.inf, hot=draw.uniform(0.2, 0.5)))
    work = best_s * job.samples_per_s(job.best_size(0.0), 0.0)
    return replace(job, samples=work, disturbances=tuple(disturbances))


def _worker(draw: random.Random) -> Worker:
    whole_s = _log_uniform(draw, 0.05, 2.0)
    input_part = draw.uniform(0.3, 0.8) if draw.random() < 0.25 else 0.0
    parallel = draw.uniform(0.3, 0.95)
    alone_s = whole_s * (1 - input_part)
    shared = _log_uniform(draw, 4, 40) if draw.random() < 0.2 else 1e9
    return Worker(
        fixed_s=alone_s * (1 - parallel),
        parallel_s=alone_s * parallel * 4,  # As on four cores.
        cores_power=draw.uniform(0.6, 1.0),
        input_s=whole_s * input_part,
        shared_steps_per_s=shared / whole_s,
    )


def _with_servers(draw: random.Random, worker: Worker, max_workers: int, max_ps: int, share: float) -> Truth:
    compute_s = worker.fixed_s + worker.parallel_s / 4 + worker.input_s
    # With all servers of the budget, on two cores each, they would be full at this part of the workers.
    cpu_s = share * compute_s * 2 * max_ps / max_workers
    kind = draw.choice(["additive", "queueing", "queueing", "saturating", "saturating"])
    latency_s = compute_s * draw.uniform(0.0, 0.2)
    if kind == "additive":
        each_s = _log_uniform(draw, 1e-4, 1e-2) * compute_s
        return Additive(worker, cpu_s, draw.uniform(0, 0.3) * cpu_s, each_s, draw.uniform(0, 0.01) * compute_s)
    if kind == "queueing":
        network_s = compute_s / (max_workers * _log_uniform(draw, 0.7, 10))
        return Queueing(worker, cpu_s, draw.uniform(0.7, 1.0), network_s, latency_s)
    return Saturating(worker, cpu_s, latency_s, draw.uniform(3, 10))


def _reducing(draw: random.Random, worker: Worker) -> Truth:
    compute_s = worker.fixed_s + worker.parallel_s / 4 + worker.input_s
    return Reducing(
        worker,
        jitter=draw.uniform(0.0, 0.1),
        volume_s=compute_s * _log_uniform(draw, 0.03, 1.0),
        latency_s=compute_s * _log_uniform(draw, 0.001, 0.1),
        hidden=draw.uniform(0, 0.6),
        rack=draw.choice([8, 16, 1000]),
    )


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))
