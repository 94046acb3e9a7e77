"""What a worker says again after its master died."""

from __future__ import annotations

from elastane.rpc.protos import node_pb2 as pb
from elastane.worker.said_before import SaidBefore


def request(count: int = 1) -> pb.NodeMessage:
    return pb.NodeMessage(lease_request=pb.LeaseRequest(dataset="data", count=count))


def commit(task: int, upto: int) -> pb.NodeMessage:
    entry = pb.Progress(task=task, upto=upto)
    return pb.NodeMessage(commit=pb.Commit(dataset="data", progress=[entry]))


def grant(*tasks: int) -> pb.Leases:
    leases = [pb.Lease(task=task, start=0, end=10) for task in tasks]
    return pb.Leases(dataset="data", state=pb.Leases.GRANTED, lease=leases)


def resumed(said: SaidBefore) -> pb.ResumeLeases:
    (found,) = [message.resume_leases for message in said.again() if message.WhichOneof("body") == "resume_leases"]
    return found


def test_what_is_held_and_how_far_it_is() -> None:
    said = SaidBefore()
    said.note(request())
    said.answered(grant(1, 2))
    said.note(commit(1, 4))
    assert list(resumed(said).held) == [1, 2]
    assert [(entry.task, entry.upto) for entry in resumed(said).progress] == [(1, 4)]


def test_a_finished_task_is_told_until_the_master_must_have_heard_of_it() -> None:
    said = SaidBefore()
    said.answered(grant(1))
    said.note(request())
    said.note(commit(1, 10))
    said.answered(grant(2))
    assert [(entry.task, entry.upto) for entry in resumed(said).progress] == [(1, 10)]
    assert list(resumed(said).held) == [2]
    said.note(request())
    said.answered(grant(3))
    assert not resumed(said).progress


def test_a_request_is_made_again_until_it_is_answered_with_more_than_wait() -> None:
    said = SaidBefore()
    said.note(request(3))
    said.answered(pb.Leases(dataset="data", state=pb.Leases.WAIT))
    assert request(3) in list(said.again())
    said.answered(grant(1))
    assert request(3) not in list(said.again())


def test_what_was_given_back_is_not_held() -> None:
    said = SaidBefore()
    said.answered(grant(1, 2))
    said.note(pb.NodeMessage(give_back=pb.GiveBack(dataset="data", task=[1])))
    assert list(resumed(said).held) == [2]


def test_the_last_words_about_the_world_come_in_an_order_that_makes_sense() -> None:
    said = SaidBefore()
    ready = pb.NodeMessage(world_ready=pb.WorldReady(version=3))
    moved = pb.NodeMessage(world_moved=pb.WorldMoved(version=2))
    joined = pb.NodeMessage(join_world=pb.JoinWorld())
    for message in (ready, moved, joined, pb.NodeMessage(heartbeat=pb.Heartbeat())):
        said.note(message)
    assert list(said.again()) == [joined, moved, ready]
