"""How a newcomer gets the state while the others go on: a snapshot, and the log of the rounds since.

The donor's thread copies one piece of the state after the other, between the steps, and sends each with the round that
it belongs to. In between it sends each round's summed gradients, as soon as they are there. The newcomer applies them
with its own optimizer, to the pieces that it has: each is then one round further, until all are where the donor is.
Nobody stops.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from elastane.model.errors import StateLost
from elastane.torch.buckets import GradientBuckets
from elastane.torch.codec import NotPlain, bytes_of
from elastane.torch.groups import Group, WorldBroken
from elastane.torch.replica import TORN, Replica, Unit, fill

T = TypeVar("T")

CHUNK_BYTES = 8 << 20
"""Small pieces of the state are sent together, up to about so much."""

MOST_META_BYTES = 64 << 20
_LENGTH = struct.Struct("!I")

TRIES = 8
RETRY_S = 0.001
"""A piece that changed while it was read is read again; after so many tries the training thread waits for it once."""


@dataclass(frozen=True)
class Entry:
    """A part of a round, for those who follow. Its tensors are sent as they are; `release` lets them go."""

    meta: dict[str, Any]
    tensors: Sequence[Tensor]
    release: Callable[[], None]


def send_frame(group: Group, rank: int, meta: dict[str, Any], tensors: Sequence[Tensor] = ()) -> None:
    """Send a JSON value and tensors."""
    text = json.dumps(meta).encode()
    # To take a tensor's bytes may copy it from a device: each only when the one before it is on its way.
    group.send(chain([_LENGTH.pack(len(text)) + text], (_buffer(tensor) for tensor in tensors)), rank)


def receive_meta(group: Group, rank: int) -> dict[str, Any]:
    """The JSON value of a frame; its tensors must then be received."""
    head = bytearray(_LENGTH.size)
    group.receive(head, rank)
    (length,) = _LENGTH.unpack(head)
    if not 0 < length <= MOST_META_BYTES:
        raise WorldBroken(f"a frame of {length} bytes")
    text = bytearray(length)
    group.receive(text, rank)
    meta: dict[str, Any] = json.loads(text)
    return meta


def receive_tensor(group: Group, rank: int, target: Tensor) -> None:
    """Fill a tensor with what comes next."""
    if target.is_cuda or not target.is_contiguous():
        staged = torch.empty(target.shape, dtype=target.dtype)
        group.receive(_buffer(staged), rank)
        target.copy_(staged)
    else:
        group.receive(_buffer(target), rank)


def _buffer(tensor: Tensor) -> Any:
    return bytes_of(tensor).numpy()


def send_state(group: Group, rank: int, replica: Replica, between: Callable[[], None] | None = None) -> None:
    """Send the whole state; `between` is called before each piece is read, and may send frames of its own."""
    tag, small = _stable(replica, replica.small)
    send_frame(group, rank, {"kind": "small", "round": tag, "small": small})
    index = 0
    while index < replica.unit_count():
        if between is not None:
            between()
        first = index
        tag, units = _stable(replica, lambda first=first: _copies(replica, first))  # type: ignore[misc]
        payload = _payload(units)
        index += len(units)
        metas = [unit.meta for unit in units]
        send_frame(group, rank, {"kind": "units", "round": tag, "units": metas, "bytes": payload[0].numel()}, payload)


def receive_units(group: Group, rank: int, meta: dict[str, Any], replica: Replica) -> list[int]:
    """Take the pieces of a frame; the answer is their numbers."""
    try:
        if len(meta["units"]) == 1:
            for target in replica.open_unit(meta["units"][0]):
                receive_tensor(group, rank, target)
        else:
            payload = torch.empty(meta["bytes"], dtype=torch.uint8)
            receive_tensor(group, rank, payload)
            targets = [target for unit in meta["units"] for target in replica.open_unit(unit)]
            fill(targets, payload)
    except (NotPlain, KeyError, IndexError, RuntimeError) as error:
        raise WorldBroken(f"a piece of the state does not fit this worker's model: {error}") from error
    return [unit["index"] for unit in meta["units"]]


def receive_state(group: Group, rank: int, replica: Replica) -> None:
    """Take the whole state from another member, when both stand still."""
    with replica.changing():
        replica.rounds = TORN
        small = receive_meta(group, rank)["small"]
        missing = replica.unit_count()
        while missing:
            missing -= len(receive_units(group, rank, receive_meta(group, rank), replica))
        replica.load_small(small)


def bring_level(group: Group, replica: Replica, rounds: Sequence[int]) -> list[int]:
    """Give all members the state of those who are furthest; the answer is who these are.

    `rounds` says how many each rank has finished. Raises StateLost if nobody has a whole state, and WorldBroken.
    """
    furthest = max(rounds)
    if furthest == TORN:
        raise StateLost("trainer: every worker that had the training state is gone; this one had only a part of it")
    sources = [rank for rank, finished in enumerate(rounds) if finished == furthest]
    if furthest == 0:
        sources = sources[:1]  # Nothing was done yet, and models may have begun differently.
    behind = [rank for rank in range(len(rounds)) if rank not in sources]
    for number, rank in enumerate(behind):
        source = sources[number % len(sources)]
        if group.place.rank == source:
            send_state(group, rank, replica)
        elif group.place.rank == rank:
            receive_state(group, source, replica)
    return sources


class Donor:
    """Sends the state to one newcomer, and then the log, in a thread of its own."""

    def __init__(self, group: Group, rank: int, replica: Replica, on_end: Callable[[Donor], None]) -> None:
        self._group = group
        self._rank = rank
        self._replica = replica
        self._on_end = on_end
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._ends = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="elastane-donor", daemon=True)
        self.sends_gradients = replica.why_not_followable is None

    def start(self) -> None:
        """From now on every finished round is to be logged."""
        self._thread.start()

    def log_sums(self, gradients: GradientBuckets, scale: float | None) -> None:
        """Log the summed gradients of the round before they are applied, so that whoever follows does it meanwhile."""
        if self.sends_gradients:
            replica = self._replica
            meta = {"kind": "sums", "round": replica.rounds + 1, "scale": scale, "options": replica.options()}
            self.log(Entry(meta, gradients.flats, gradients.hold()))

    def log_round(self, *, passed: bool) -> None:
        """Log a round that is finished; with `passed`, all move to the next world after it."""
        meta: dict[str, Any] = {"kind": "round", "followed": self.sends_gradients, "passed": passed}
        if self.sends_gradients:
            self.log(Entry(meta | {"small": self._replica.small()}, (self._replica.averaged_values(),), _nothing))
        else:
            self.log(Entry(meta, (), _nothing))

    def log(self, entry: Entry) -> None:
        with self._ends:
            if not self._ended:
                self._entries.put(entry)
                return
        entry.release()  # Nobody will send it: its buffers must not wait for that.

    def stop(self) -> None:
        self._entries.put(None)

    def _run(self) -> None:
        try:
            if self.sends_gradients:
                send_state(self._group, self._rank, self._replica, self._send_waiting)
                self._send_waiting()
            send_frame(self._group, self._rank, {"kind": "caught up"})
            while self._send(self._entries.get()):
                pass
        except WorldBroken:
            pass  # The newcomer is gone, or the world is: the master knows, and tells what comes next.
        finally:
            self._on_end(self)
            with self._ends:
                self._ended = True
            while not self._entries.empty():
                if entry := self._entries.get():
                    entry.release()

    def _send_waiting(self) -> None:
        while not self._entries.empty():
            self._send(self._entries.get())

    def _send(self, entry: Entry | None) -> bool:
        """Send an entry; False after the last one."""
        if entry is None:
            return False
        try:
            send_frame(self._group, self._rank, entry.meta, entry.tensors)
        finally:
            entry.release()
        return not entry.meta.get("passed")


class Follower:
    """Receives the state, and then the log, until the world has moved."""

    def __init__(self, group: Group, donor: int, replica: Replica, buckets: GradientBuckets) -> None:
        self._group = group
        self._donor = donor
        self._replica = replica
        self._buckets = buckets
        self._round_of: dict[int, int] = {}
        """The round that each piece of the state is at."""
        self._round = TORN
        """The round that all but the pieces is at."""
        self._averaged = torch.zeros(sum(b.numel() for b in replica.averaged), dtype=torch.float64)

    def run(self, caught_up: Callable[[], None]) -> None:
        """Follow until the round in which the present world voted to move. Raises WorldBroken."""
        self._replica.rounds = TORN
        while True:
            meta = receive_meta(self._group, self._donor)
            match meta["kind"]:
                case "small":
                    self._replica.load_small(meta["small"])
                    self._replica.rounds = TORN
                    self._round = meta["round"]
                case "units":
                    for index in receive_units(self._group, self._donor, meta, self._replica):
                        self._round_of[index] = meta["round"]
                case "caught up":
                    caught_up()
                case "sums":
                    self._apply(meta)
                case "round":
                    self._finish(meta)
                    if meta["passed"]:
                        return
                case other:
                    raise WorldBroken(f"a frame of kind {other!r}")

    def _apply(self, meta: dict[str, Any]) -> None:
        """Make the step of a round, with the pieces that do not have it yet."""
        replica, number = self._replica, meta["round"]
        self._buckets.receive(lambda tensor: receive_tensor(self._group, self._donor, tensor))
        if number <= self._round:
            return
        with replica.changing():
            replica.load_options(meta["options"])
            self._buckets.take_sums(meta["scale"])
            ahead = [p for index, p in enumerate(replica.parameters) if self._round_of.get(index, number) >= number]
            replica.apply(ahead)

    def _finish(self, meta: dict[str, Any]) -> None:
        """All that the round changed beside the parameters."""
        replica = self._replica
        if not meta["followed"]:
            return
        receive_tensor(self._group, self._donor, self._averaged)
        number = meta["small"]["rounds"]
        if number <= self._round:
            return
        self._round = number
        with replica.changing():
            replica.load_averaged(self._averaged)
            replica.load_small(meta["small"])
            if len(self._round_of) < replica.unit_count():
                replica.rounds = TORN
        for index, behind in self._round_of.items():
            self._round_of[index] = max(behind, number)


def _nothing() -> None:
    """What is let go when there is nothing to let go."""


def _stable(replica: Replica, read: Callable[[], T]) -> tuple[int, T]:
    """What `read` finds while nothing changes, and the round that it is from. Whoever trains does not wait for it."""
    for _ in range(TRIES):
        since = replica.stable_since
        if since is None:
            time.sleep(RETRY_S)
            continue
        rounds = replica.rounds
        try:
            value = read()
        except (RuntimeError, KeyError):
            continue  # It was changed under our hands.
        if replica.stable_since == since:
            return rounds, value
    with replica.standing_still():
        return replica.rounds, read()


def _copies(replica: Replica, first: int) -> list[Unit]:
    """Copies of some pieces of the state, from the `first` on."""
    units: list[Unit] = []
    size = 0
    while first + len(units) < replica.unit_count() and (not units or size < CHUNK_BYTES):
        unit = replica.unit(first + len(units))
        size += sum(tensor.numel() * tensor.element_size() for tensor in unit.tensors)
        units.append(Unit(unit.meta, tuple(tensor.clone() for tensor in unit.tensors)))
    return units


def _payload(units: Sequence[Unit]) -> list[Tensor]:
    """The bytes of these pieces in host memory: of a single one, which is large, tensor by tensor; else in one."""
    tensors = [tensor for unit in units for tensor in unit.tensors]
    if any(tensor.is_cuda for tensor in tensors):
        # The copies were queued behind the training; on a stream of its own their way to the host is beside it.
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            tensors = [tensor.cpu() for tensor in tensors]
    parts = [bytes_of(tensor) for tensor in tensors]
    return parts if len(units) == 1 else [torch.cat(parts)]
