"""What a job's step really takes at a size. Most of these are not what elastane fits: they saturate, they queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from elastane.model.sizing import JobSize


@dataclass(frozen=True)
class Step:
    """The seconds of one step of one worker, by what they are spent on."""

    compute_s: float
    input_s: float = 0.0
    server_s: float = 0.0
    sync_s: float = 0.0
    server_cores: float = 0.0
    """Core-seconds that the hottest server spends on it."""

    @property
    def whole_s(self) -> float:
        return self.compute_s + self.input_s + self.server_s + self.sync_s


class Truth(Protocol):
    """A job's nature. `share` is the hottest server's at this size."""

    def step(self, size: JobSize, share: float) -> Step: ...


@dataclass(frozen=True)
class Worker:
    """What a worker does by itself: part of it on all its cores, though ever less well, and its input.

    Whatever the input of all workers comes from may be shared, and then has a hard end.
    """

    fixed_s: float
    parallel_s: float
    cores_power: float
    input_s: float
    shared_steps_per_s: float

    def alone(self, size: JobSize) -> tuple[float, float]:
        """Compute and input seconds."""
        cores = 1.0 if size.worker_cpu is None else size.worker_cpu
        compute_s = self.fixed_s + self.parallel_s / cores**self.cores_power
        least_s = size.workers / self.shared_steps_per_s
        return compute_s, max(self.input_s, least_s - compute_s)


@dataclass(frozen=True)
class Additive:
    """Servers that answer as the model of elastane says."""

    worker: Worker
    cpu_s: float
    io_s: float
    each_worker_s: float
    each_server_s: float

    def step(self, size: JobSize, share: float) -> Step:
        compute_s, input_s = self.worker.alone(size)
        cores = size.ps_cpu or 1.0
        load = size.workers * share
        server_s = load * (self.cpu_s / cores + self.io_s) + self.each_worker_s * size.workers
        return Step(compute_s, input_s, server_s + self.each_server_s * size.ps, server_cores=self.cpu_s * share)


@dataclass(frozen=True)
class Queueing:
    """Servers with a queue: workers think, then wait their turn at the hottest server and at the network.

    Mean value analysis of the closed network of one class; the other servers' queues are behind the hottest one's.
    """

    worker: Worker
    cpu_s: float
    cores_power: float
    network_s: float
    latency_s: float

    def step(self, size: JobSize, share: float) -> Step:
        compute_s, input_s = self.worker.alone(size)
        think_s = compute_s + input_s + self.latency_s
        demands = (self.cpu_s * share / (size.ps_cpu or 1.0) ** self.cores_power, self.network_s)
        queues = [0.0, 0.0]
        waits = [0.0, 0.0]
        for workers in range(1, size.workers + 1):
            waits = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
            rate = workers / (think_s + sum(waits))
            queues = [rate * wait for wait in waits]
        cores = size.ps_cpu or 1.0
        return Step(compute_s, input_s, self.latency_s + sum(waits), server_cores=demands[0] * cores)


@dataclass(frozen=True)
class Saturating:
    """Servers that are as fast as ever until their cores are busy, and then no faster with any number of workers."""

    worker: Worker
    cpu_s: float
    latency_s: float
    sharpness: float

    def step(self, size: JobSize, share: float) -> Step:
        compute_s, input_s = self.worker.alone(size)
        cores = size.ps_cpu or 1.0
        alone_s = compute_s + input_s + self.latency_s + self.cpu_s * share / cores
        full_s = size.workers * self.cpu_s * share / cores
        whole_s = (alone_s**self.sharpness + full_s**self.sharpness) ** (1 / self.sharpness)
        return Step(compute_s, input_s, whole_s - compute_s - input_s, server_cores=self.cpu_s * share)


@dataclass(frozen=True)
class Reducing:
    """All-reduce: all wait for the slowest; the sum is partly hidden behind the computing; racks are far apart."""

    worker: Worker
    jitter: float
    volume_s: float
    latency_s: float
    hidden: float
    rack: int

    def step(self, size: JobSize, share: float) -> Step:  # noqa: ARG002  # There is no server.
        compute_s, input_s = self.worker.alone(size)
        slowest = 1 + self.jitter * math.sqrt(2 * math.log(size.workers))
        compute_s *= slowest
        if size.workers == 1:
            return Step(compute_s, input_s)
        far = 2.0 if size.workers > self.rack else 1.0
        sync_s = far * (self.volume_s * (size.workers - 1) / size.workers + self.latency_s * math.log2(size.workers))
        return Step(compute_s, input_s, sync_s=max(sync_s - self.hidden * compute_s, 0.2 * sync_s))
