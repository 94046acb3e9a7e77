"""What a master refuses: wrong tokens, messages that are too large, truncated, random or senseless."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import pytest

from elastane.model.ids import DatasetName, NodeName
from elastane.rpc.messages import MAX_MESSAGE_BYTES
from elastane.rpc.protos import control_pb2, node_pb2
from tests.integration.memory_master import TOKEN, MemoryMaster

SCALE = "/elastane.v1.Control/Scale"
ATTEND = "/elastane.v1.Nodes/Attend"
GOOD = control_pb2.ScaleRequest(workers=3).SerializeToString()


@pytest.mark.parametrize("path", [SCALE, ATTEND])
@pytest.mark.parametrize("token", [None, "", "the-wrong-token", TOKEN + "x"])
async def test_a_call_without_the_right_token_is_refused(master: MemoryMaster, path: str, token: str | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await master.call(path, GOOD, token)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert [refusal["reason"] for refusal in master.events("message_refused")] == ["wrong or missing token"]
    assert master.state() == master.settled


async def test_a_peer_that_tries_again_and_again_is_logged_once(master: MemoryMaster) -> None:
    async with grpc.aio.insecure_channel(master.address) as channel:
        for _ in range(20):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(SCALE)(GOOD, metadata=(("authorization", "Bearer guess"),))
    assert len(master.events("message_refused")) == 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x00" * (MAX_MESSAGE_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\x08", grpc.StatusCode.INVALID_ARGUMENT),  # a field without its value
        (b"\xff" * 40, grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x08\x03\x50\x01", grpc.StatusCode.INVALID_ARGUMENT),  # a good request and an unknown field
    ],
    ids=["oversized", "truncated", "random", "unknown field"],
)
async def test_a_bad_message_is_refused_logged_once_and_changes_nothing(
    master: MemoryMaster, data: bytes, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await master.call(SCALE, data)
    assert caught.value.code() is code
    assert len(master.events("message_refused")) == 1
    assert master.state() == master.settled


async def test_random_bytes_never_change_anything(master: MemoryMaster) -> None:
    rng = random.Random(7)
    for _ in range(300):
        data = rng.randbytes(rng.randrange(1, 60))
        with pytest.raises(grpc.aio.AioRpcError):
            await master.call(ATTEND, data)
        assert master.state() == master.settled


async def test_bytes_that_are_not_even_http_are_dropped(master: MemoryMaster) -> None:
    host, port = master.address.split(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", random.Random(3).randbytes(100_000)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012  # either call may notice
            await writer.drain()
            await reader.readexactly(1_000_000)
        writer.close()
    assert master.state() == master.settled
    assert await master.call(SCALE, GOOD) == b""
    assert len(master.master.job_manager.workers.group.nodes) == 3


def _message(**body: Any) -> node_pb2.NodeMessage:
    return node_pb2.NodeMessage(**body)


HELLO = _message(hello=node_pb2.Hello(protocol=1, node="ctr-worker-0"))


async def _converse(master: MemoryMaster, *messages: node_pb2.NodeMessage) -> tuple[list[Any], grpc.StatusCode, str]:
    """Say these things on one stream; the answers, and how the stream ended."""
    async with grpc.aio.insecure_channel(master.address) as channel:
        stream = channel.stream_stream(ATTEND)(metadata=(("authorization", f"Bearer {TOKEN}"),))
        for message in messages:
            await stream.write(message.SerializeToString())
        await stream.done_writing()
        answers = []
        try:
            async for data in stream:
                answers.append(node_pb2.MasterMessage.FromString(data))
        except grpc.aio.AioRpcError:
            pass
        return answers, await stream.code(), await stream.details()


@pytest.mark.parametrize(
    ("messages", "code", "reason"),
    [
        ([_message(heartbeat=node_pb2.Heartbeat())], "INVALID_ARGUMENT", "the first message of a stream must be"),
        ([_message(hello=node_pb2.Hello(protocol=9, node="x"))], "INVALID_ARGUMENT", "protocol 9 is not 1"),
        ([_message(hello=node_pb2.Hello(protocol=1, node="x"))], "FAILED_PRECONDITION", 'node "x" is not expected'),
        ([HELLO, HELLO], "INVALID_ARGUMENT", "hello in the middle of a stream"),
        ([HELLO, node_pb2.NodeMessage()], "INVALID_ARGUMENT", "an empty message in the middle of a stream"),
        (
            [HELLO, _message(lease_request=node_pb2.LeaseRequest(dataset="d", count=10**6))],
            "INVALID_ARGUMENT",
            "a request for 1000000 leases",
        ),
        (
            [HELLO, _message(define_dataset=node_pb2.DefineDataset(name="d", shard_size=1, epochs=1))],
            "INVALID_ARGUMENT",
            "a DefineDataset without a source",
        ),
    ],
)
async def test_what_makes_no_sense_on_a_stream_ends_it(
    master: MemoryMaster, messages: list[node_pb2.NodeMessage], code: str, reason: str
) -> None:
    _, ended, details = await _converse(master, *messages)
    assert ended.name == code
    assert details.startswith(reason)
    assert master.state() == master.settled


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (_message(lease_request=node_pb2.LeaseRequest(dataset="d", count=1)), 'data set "d" is not defined'),
        (_message(define_dataset=node_pb2.DefineDataset(name="d", size=2**60, shard_size=1, epochs=1)), "data set"),
        (_message(define_dataset=node_pb2.DefineDataset(name="d", size=5, shard_size=0, epochs=1)), "data set"),
        (_message(commit=node_pb2.Commit(dataset="d")), 'data set "d" is not defined'),
    ],
)
async def test_a_request_that_cannot_be_met_is_answered_and_the_stream_goes_on(
    master: MemoryMaster, message: node_pb2.NodeMessage, reason: str
) -> None:
    answers, _, _ = await _converse(master, HELLO, message, _message(goodbye=node_pb2.Goodbye()))
    assert [answer.WhichOneof("body") for answer in answers] == ["welcome", "refused", "farewell"]
    assert answers[1].refused.reason.startswith(reason)
    assert master.state() == master.settled


async def test_a_commit_of_what_is_not_leased_is_refused(master: MemoryMaster) -> None:
    define = _message(define_dataset=node_pb2.DefineDataset(name="d", size=5, shard_size=5, epochs=1))
    commit = _message(commit=node_pb2.Commit(dataset="d", progress=[node_pb2.Progress(task=1, upto=5)]))
    answers, _, _ = await _converse(master, HELLO, define, commit, _message(goodbye=node_pb2.Goodbye()))
    assert answers[2].refused.reason == "task 1 is not leased to ctr-worker-0"
    ledger = master.master.task_manager.ledgers[DatasetName("d")]
    assert ledger.committed_samples == 0
    assert NodeName("ctr-worker-0") not in master.master.task_manager.committed_by
