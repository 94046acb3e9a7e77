"""Leases and commits against one master, and what a training thread waits for its batches.

- operations: clients that lease a shard and commit it, one after the other, on streams to one master process. An
  operation is a lease or a commit. The master's own CPU time says what one costs, whatever else the machine does.
- wait: how long a worker with 10 ms steps spends getting its next batch from a data set that costs nothing itself.
- growth: the cost of an operation in a data set of ten times the shards.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import psutil
import structlog

from benchmarks.report import Report, parser
from elastane.master.event_log import EventLog
from elastane.master.master import JobMaster
from elastane.model.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN
from elastane.model.job_spec import load_job
from elastane.rpc.protos import node_pb2 as pb
from elastane.testing import MemoryPlatform

TOKEN = "benchmark"
SHARD = 1024
STEP_MS = 10.0


@dataclass(frozen=True)
class Master:
    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20


@contextmanager
def master(workers: int) -> Iterator[Master]:
    """A master in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tasks", "--serve", str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Master(process.stdout.readline().strip(), psutil.Process(process.pid))
        process.stdin.close()


async def serve(workers: int) -> None:
    """The master's process: serve until standard input closes. Its log goes to a file, as a real master's does."""
    log = open(os.devnull, "w")  # noqa: ASYNC230, SIM115  # as long as the process
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=log))
    job = load_job(
        {
            "metadata": {"name": "bench"},
            "spec": {"worker": {"replicas": workers, "template": {"spec": {"containers": [{"command": ["-"]}]}}}},
        }
    )
    served = JobMaster(job, TOKEN, MemoryPlatform(), EventLog())
    address = await served.serve()
    running = asyncio.create_task(served.run())
    while len(served.job_manager.workers.group.nodes) < workers:
        await asyncio.sleep(0.01)
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    await served.close()


async def client(channel: grpc.aio.Channel, number: int, dataset: str, shards: int, until: float) -> int:
    """Lease and commit on one stream; the answer is how many operations that made."""
    stream = channel.stream_stream("/elastane.v1.Nodes/Attend")(metadata=(("authorization", f"Bearer {TOKEN}"),))

    async def say(**body: object) -> None:
        await stream.write(pb.NodeMessage(**body).SerializeToString())  # type: ignore[arg-type]

    async def hear() -> pb.MasterMessage:
        return pb.MasterMessage.FromString(await stream.read())

    await say(hello=pb.Hello(protocol=1, node=f"bench-worker-{number}"))
    await hear()
    await say(define_dataset=pb.DefineDataset(name=dataset, size=shards * SHARD, shard_size=SHARD, epochs=1))
    await hear()
    operations = 0
    while time.monotonic() < until:
        await say(lease_request=pb.LeaseRequest(dataset=dataset, count=1))
        leases = (await hear()).leases
        if leases.state != pb.Leases.GRANTED:
            raise RuntimeError("the data ran out: ask for more shards")
        (lease,) = leases.lease
        await say(commit=pb.Commit(dataset=dataset, progress=[pb.Progress(task=lease.task, upto=lease.end)]))
        operations += 2
    await say(goodbye=pb.Goodbye())
    await hear()
    return operations


async def operations_per_second(address: str, clients: int, dataset: str, shards: int, seconds: float) -> float:
    """All clients in this process, each on a connection of its own."""
    until = time.monotonic() + seconds
    # A private subchannel pool keeps clients from sharing one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(clients)]
    started = time.monotonic()
    counts = await asyncio.gather(
        *(client(channel, number, dataset, shards, until) for number, channel in enumerate(channels))
    )
    elapsed = time.monotonic() - started
    for channel in channels:
        await channel.close()
    return sum(counts) / elapsed


def measure_operations(report: Report, repeats: int, seconds: float) -> None:
    settings = [(1, 10**6), (64, 10**6), (1, 10**7)]
    for repeat in range(repeats):
        for clients, shards in settings:
            with master(clients) as served:
                before = served.cpu_s()
                rate = asyncio.run(operations_per_second(served.address, clients, f"r{repeat}", shards, seconds))
                cpu_us = 1e6 * (served.cpu_s() - before) / (rate * seconds)
                row = report.row("operations", clients=clients, shards=f"{shards:.0e}")
                row.add(per_second=rate, master_cpu_us=cpu_us, master_mib=served.memory_mib())


WORKER = """
import json, sys, time
import numpy
import elastane

def step(matrix=numpy.ones((128, 128), numpy.float32)):
    until = time.perf_counter() + 0.010
    while time.perf_counter() < until:
        matrix @ matrix

waits = []
with elastane.join() as job:
    batches = iter(job.batches(range(10**9), 64, shuffle=sys.argv[2] == "True", collate_fn=lambda samples: samples))
    for _ in range(int(sys.argv[1])):
        started = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - started)
        step()
print(json.dumps(waits))
"""


def measure_wait(report: Report, repeats: int, steps: int) -> None:
    for _ in range(repeats):
        for shuffle in (False, True):
            with master(1) as served:
                env = {**os.environ, ENV_MASTER: served.address, ENV_TOKEN: TOKEN, ENV_NODE: "bench-worker-0"}
                output = subprocess.run(
                    [sys.executable, "-c", WORKER, str(steps), str(shuffle)],
                    env=env,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            # The first batches open the stream's way to the master; the steady state comes after.
            waits = sorted(1000 * wait for wait in json.loads(output)[20:])
            row = report.row("wait for a batch of 64", step_ms=STEP_MS, shuffle=shuffle)
            row.add(
                median_ms=waits[len(waits) // 2],
                p99_ms=waits[int(len(waits) * 0.99)],
                median_percent_of_step=100 * waits[len(waits) // 2] / STEP_MS,
            )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--serve", type=int, metavar="WORKERS", help="be the master (used by the benchmark itself)")
    options = made.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return
    report = Report()
    measure_operations(report, repeats=2 if options.quick else 7, seconds=1.0 if options.quick else 4.0)
    measure_wait(report, repeats=1 if options.quick else 5, steps=200 if options.quick else 1000)
    report.show(options.json)


if __name__ == "__main__":
    main()
