"""The master's side of a coordinator's job: who is told what."""

from __future__ import annotations

import pytest

from elastane.master.closure_feed import ClosureFeed
from elastane.master.event_log import EventLog
from elastane.model.errors import MalformedMessage
from elastane.model.ids import NodeName
from elastane.rpc.protos import node_pb2 as pb

CHIEF, ONE, TWO = (NodeName(f"job-worker-{number}") for number in range(3))


class Told:
    """A feed, and what it has told each node."""

    def __init__(self) -> None:
        self.messages: list[tuple[NodeName, pb.MasterMessage]] = []
        self.feed = ClosureFeed(EventLog(), lambda node, message: self.messages.append((node, message)))

    def serve(self, node: NodeName, address: str, *, leaving: bool = False) -> None:
        self.feed.handle(node, pb.NodeMessage(serve_closures=pb.ServeClosures(address=address, leaving=leaving)))

    def use(self, *addresses: str, over: bool = False) -> None:
        self.feed.handle(CHIEF, pb.NodeMessage(coordinate=pb.Coordinate(using=addresses, over=over)))

    def workers(self) -> tuple[list[str], list[str]]:
        """What the coordinator was told last."""
        told = [message.closure_workers for node, message in self.messages if node == CHIEF]
        return list(told[-1].serving), list(told[-1].leaving)

    def over(self) -> set[NodeName]:
        return {node for node, message in self.messages if message.WhichOneof("body") == "closures_over"}


def test_the_coordinator_hears_of_workers_that_served_before_it_and_after() -> None:
    told = Told()
    told.serve(ONE, "127.0.0.1:1001")
    told.use()
    assert told.workers() == (["127.0.0.1:1001"], [])
    told.serve(TWO, "127.0.0.1:1002")
    assert told.workers() == (["127.0.0.1:1001", "127.0.0.1:1002"], [])


def test_a_leaving_worker_may_go_once_the_coordinator_does_not_use_it() -> None:
    told = Told()
    told.serve(ONE, "127.0.0.1:1001")
    told.use("127.0.0.1:1001")
    told.serve(ONE, "127.0.0.1:1001", leaving=True)
    assert told.workers() == ([], ["127.0.0.1:1001"])
    assert told.over() == set()
    told.use()
    assert told.over() == {ONE}


def test_a_leaving_worker_may_go_if_the_coordinator_is_gone() -> None:
    told = Told()
    told.serve(ONE, "127.0.0.1:1001")
    told.use("127.0.0.1:1001")
    told.serve(ONE, "127.0.0.1:1001", leaving=True)
    told.feed.gone(CHIEF)
    assert told.over() == {ONE}


def test_when_the_coordinator_is_done_every_worker_is_told_also_one_that_comes_late() -> None:
    told = Told()
    told.serve(ONE, "127.0.0.1:1001")
    told.use("127.0.0.1:1001")
    told.use(over=True)
    told.serve(TWO, "127.0.0.1:1002")
    assert told.over() == {ONE, TWO}


def test_a_lost_worker_is_in_neither_list() -> None:
    told = Told()
    told.use()
    told.serve(ONE, "127.0.0.1:1001")
    told.feed.gone(ONE)
    told.serve(TWO, "127.0.0.1:1002")
    assert told.workers() == (["127.0.0.1:1002"], [])


@pytest.mark.parametrize("address", ["", "nowhere", "a" * 300 + ":1", "host:123456", "a b:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(MalformedMessage, match="is not host:port"):
        Told().serve(ONE, address)
