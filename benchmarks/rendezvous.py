"""Many workers join one rendezvous in one window: the time to the published world, to the settled one, and memory.

- joined: from the first join to the next world's publication, through the real server's code in this process.
- settled: from there until every member has said ready and moved.
Members are light: each answers what the server tells it, in memory, without a network.
"""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from collections import deque

import structlog

from benchmarks.report import Report, parser
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.rendezvous_server import RendezvousServer
from elastane.model.ids import NodeName
from elastane.rpc.protos import node_pb2 as pb


class Members:
    """Everyone's answers, given in the order of what was told."""

    def __init__(self) -> None:
        self.told: deque[tuple[NodeName, pb.MasterMessage]] = deque()

    def answer_all(self, server: RendezvousServer) -> None:
        while self.told:
            name, message = self.told.popleft()
            match message.WhichOneof("body"):
                case "next_world":
                    server.ready(name, message.next_world.version)
                case "go_to_world":
                    server.moved(name, message.go_to_world.version, 0, "")


async def memory_mib(size: int) -> float:
    """What the server and the messages on their way take, as Python counts it: slower, so apart from the times."""
    tracemalloc.start()
    try:
        await measure(size)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


async def measure(size: int) -> dict[str, float]:
    members = Members()
    server = RendezvousServer(
        EventLog(),
        lambda node, message: members.told.append((node, message)),
        min_size=1,
        max_size=size,
        target=size,
        journal=Journal(),
        on_differ=print,
    )
    started = time.perf_counter()
    for number in range(size):
        server.join(NodeName(f"bench-worker-{number}"))
    joined = time.perf_counter()
    members.answer_all(server)
    settled = time.perf_counter()
    if len(server.world) != size:
        raise RuntimeError(f"the world has {len(server.world)} members, not {size}")
    return {
        "joined_ms": 1000 * (joined - started),
        "settled_ms": 1000 * (settled - joined),
    }


def main() -> None:
    options = parser(__doc__).parse_args()
    with open(os.devnull, "w") as log:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=log))
        report = Report()
        for _ in range(1 if options.quick else 7):
            for size in (1_000, 10_000):
                report.row("rendezvous", members=size).add(**asyncio.run(measure(size)))
                report.row("rendezvous", members=size).add(peak_mib=asyncio.run(memory_mib(size)))
    report.show(options.json)


if __name__ == "__main__":
    main()
