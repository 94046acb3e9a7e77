"""The stream between a worker and its master: it breaks, is opened anew, and nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from elastane.model.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN
from elastane.model.ids import NodeName
from elastane.model.node import ExitReason
from elastane.model.plan import ScalePlan
from elastane.rpc.protos import control_pb2, node_pb2
from tests.integration.harness import ROOT, SCRIPT, every_sample_once
from tests.integration.memory_master import TOKEN, MemoryMaster

SAMPLES = 3000


@asynccontextmanager
async def proxy(target: str, cut_after_bytes: int) -> AsyncIterator[str]:
    """A relay to `target` whose first connection is cut once so many bytes went up."""
    connections = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: float) -> None:
        try:
            while data := await reader.read(4096):
                budget -= len(data)
                if budget < 0:
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        budget = cut_after_bytes if connections == 1 else float("inf")
        up_reader, up_writer = await asyncio.open_connection(*target.split(":"))
        up = asyncio.create_task(relay(reader, up_writer, budget))
        down = asyncio.create_task(relay(up_reader, writer, float("inf")))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        writer.close()
        up_writer.close()
        await asyncio.gather(up, down)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}"
    server.close()


async def worker(address: str, node: str, *arguments: str) -> tuple[int | None, str]:
    """Run the counting script as a node of this name; its exit code and what it printed."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", ENV_MASTER: address, ENV_TOKEN: TOKEN, ENV_NODE: node}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SCRIPT, f"--samples={SAMPLES}", *arguments),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_broken_stream_is_opened_anew_and_every_sample_still_counts_once(master: MemoryMaster) -> None:
    async with proxy(master.address, cut_after_bytes=3000) as detour:
        ended = await asyncio.gather(
            worker(detour, "ctr-worker-0", "--step-ms=2"), worker(master.address, "ctr-worker-1", "--step-ms=2")
        )
    for (code, output), name in zip(ended, ("ctr-worker-0", "ctr-worker-1"), strict=True):
        assert code == 0, output
        master.platform.end(NodeName(name), ExitReason.DONE)
    outcome = await master.running
    assert outcome.end == "succeeded"
    assert [event["node"] for event in master.events("node_disconnected")] == ["ctr-worker-0"]
    assert [event["node"] for event in master.events("node_attended")].count("ctr-worker-0") == 2
    assert "lost the master" in ended[0][1]
    committed = Counter(
        (event["epoch"], position)
        for event in master.events("samples_committed")
        for position in range(event["start"], event["end"])
    )
    assert committed == every_sample_once(SAMPLES)


async def test_a_node_that_was_given_up_is_told_and_ends(master: MemoryMaster) -> None:
    master.master.job_manager.lost(NodeName("ctr-worker-0"), "test")
    code, output = await worker(master.address, "ctr-worker-0")
    assert code == 1
    assert 'RequestRefused: node "ctr-worker-0" is not expected here' in output


async def test_a_second_stream_of_a_node_takes_the_place_of_the_first(master: MemoryMaster) -> None:
    hello = node_pb2.NodeMessage(hello=node_pb2.Hello(protocol=1, node="ctr-worker-0")).SerializeToString()
    beat = node_pb2.NodeMessage(heartbeat=node_pb2.Heartbeat()).SerializeToString()
    async with grpc.aio.insecure_channel(master.address) as channel:
        streams = []
        for _ in range(2):
            stream = channel.stream_stream("/elastane.v1.Nodes/Attend")(
                metadata=(("authorization", f"Bearer {TOKEN}"),)
            )
            await stream.write(hello)
            await stream.read()
            streams.append(stream)
        await streams[0].write(beat)
        assert await streams[0].read() is grpc.aio.EOF
        assert master.master.attendance.attends(NodeName("ctr-worker-0"))
        streams[1].cancel()


async def test_a_master_without_news_rests(master: MemoryMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    group = master.master.job_manager.workers.group
    looks = 0
    launch_due = group.launch_due

    def counted(now: float) -> ScalePlan:
        nonlocal looks
        looks += 1
        return launch_due(now)

    monkeypatch.setattr(group, "launch_due", counted)
    await asyncio.sleep(0.3)
    assert looks <= 1


async def test_the_master_ends_though_a_watcher_and_a_node_stay(master: MemoryMaster) -> None:
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    async with grpc.aio.insecure_channel(master.address) as channel:
        node = channel.stream_stream("/elastane.v1.Nodes/Attend")(metadata=metadata)
        await node.write(
            node_pb2.NodeMessage(hello=node_pb2.Hello(protocol=1, node="ctr-worker-0")).SerializeToString()
        )
        await node.read()
        request = control_pb2.WatchRequest(status_interval_s=60).SerializeToString()
        watcher = channel.unary_stream("/elastane.v1.Control/Watch")(request, metadata=metadata)
        await watcher.read()
        master.master.job_manager.stop(at_once=False)
        outcome = await master.running
        await asyncio.wait_for(master.master.close(), timeout=10)
    assert outcome.end == "stopped"
