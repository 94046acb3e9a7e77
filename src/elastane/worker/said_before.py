"""SaidBefore: what a worker said to a master that may have died before it wrote it down.

All of it may be said again without harm: progress is told as a position, not as a count; a lease that the worker does
not name is returned; and a word about a world that has passed means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from elastane.rpc.protos import node_pb2 as pb

_LAST_WORDS = (
    "join_world",
    "leave_world",
    "world_moved",
    "world_ready",
    "world_broken",
    "join_servers",
    "server_map_learned",
    "goodbye",
)
"""Messages of which the last one counts, in the order in which they make sense."""


class _Leases:
    """One data set's leases as this worker knows them."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        """The end of each task that was granted and is neither finished nor given back."""
        self.progress: dict[int, int] = {}
        """What was committed of each task that is held, or was finished since the last answer."""
        self.request: pb.NodeMessage | None = None
        self.heard: set[int] = set()
        """Tasks whose end was committed before the request that is not answered yet."""

    def granted(self, leases: pb.Leases) -> None:
        for lease in leases.lease:
            self.held[lease.task] = lease.end
        # The master handles messages in their order: it had heard of what was said before the request.
        for task in self.heard:
            self.progress.pop(task, None)
        self.heard = set()
        if leases.state != pb.Leases.WAIT:
            self.request = None

    def asked(self, request: pb.NodeMessage) -> None:
        self.request = request
        self.heard = {task for task in self.progress if task not in self.held}

    def committed(self, commit: pb.Commit) -> None:
        for entry in commit.progress:
            self.progress[entry.task] = entry.upto
            if self.held.get(entry.task) == entry.upto:
                del self.held[entry.task]

    def given_back(self, give_back: pb.GiveBack) -> None:
        for task in give_back.task:
            self.held.pop(task, None)


class SaidBefore:
    """Follows what is written to the stream, and says again what the next master must know."""

    def __init__(self) -> None:
        self._leases: dict[str, _Leases] = {}
        self._positions: dict[str, pb.NodeMessage] = {}
        self._last: dict[str, pb.NodeMessage] = {}

    def note(self, message: pb.NodeMessage) -> None:
        """This is being said."""
        body = message.WhichOneof("body")
        match body:
            case "lease_request":
                self._of(message.lease_request.dataset).asked(message)
            case "commit":
                self._of(message.commit.dataset).committed(message.commit)
            case "give_back" if message.give_back.dataset in self._leases:
                self._of(message.give_back.dataset).given_back(message.give_back)
            case "data_position":
                self._positions[message.data_position.dataset] = message
            case None:
                pass
            case _ if body in _LAST_WORDS:
                self._last[body] = message

    def answered(self, leases: pb.Leases) -> None:
        """The master has answered a request for leases."""
        self._of(leases.dataset).granted(leases)

    def again(self) -> Iterator[pb.NodeMessage]:
        """All that the next master must hear."""
        for dataset, leases in self._leases.items():
            progress = [pb.Progress(task=task, upto=upto) for task, upto in leases.progress.items()]
            resumed = pb.ResumeLeases(dataset=dataset, held=leases.held, progress=progress)
            yield pb.NodeMessage(resume_leases=resumed)
            if leases.request is not None:
                yield leases.request
        yield from self._positions.values()
        yield from (self._last[word] for word in _LAST_WORDS if word in self._last)

    def _of(self, dataset: str) -> _Leases:
        return self._leases.setdefault(dataset, _Leases())
