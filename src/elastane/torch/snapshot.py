"""Snapshots: the state after a round, copied to host memory behind the steps that follow.

The state changes only when the optimizer steps. So another thread copies it during the next forward and backward; if
they are over first, the training thread copies the rest together with it before it makes its step. From a GPU the
copies go on a stream of their own, and only that GPU's next step waits for them.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elastane.checkpoint.image import Image
from elastane.torch.random_states import RandomStates
from elastane.torch.replica import Replica

PIECE_BYTES = 4 << 20
"""Who waits for another thread's copy waits for at most so much."""

THREAD_ENDS_S = 10.0

Bytes = npt.NDArray[np.uint8]

Memory = Callable[[str, int], Tensor]
"""Gives host memory, as bytes, for a part of so many. What it raises ends the snapshot, and nothing else."""


@dataclass(frozen=True)
class Part:
    """The bytes of a safetensors file in host memory, and the tensors in them."""

    data: Tensor
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """The state after a round."""

    rounds: int
    steps: int
    model: Part
    """Parameters and buffers, by their names in the model."""
    optimizer: Part | None
    """The optimizer's tensors, by `PARAMETER.KEY`; None for a snapshot of the model alone."""
    rest: dict[str, Any]
    """All that is not in a tensor of the parts, as JSON; `small` as the replica has it."""


class Snapshots:
    """Takes snapshots of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._names = parameter_names(replica)
        self._begun: list[_Copying] = []
        self._queue: queue.SimpleQueue[_Copying | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stream = torch.cuda.Stream(replica.device) if replica.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        replica.before_change.append(self._finish)

    def take(self, *, model_only: bool = False, memory: Memory | None = None) -> Future[Snapshot]:
        """Begin a snapshot of the state as it is now. To be called by the training thread, between two rounds.

        The answer's callbacks run in the copying thread, and must not take long: the next snapshot waits for them.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elastane-snapshot", daemon=True)
            self._thread.start()
        copying = _Copying(self._replica, self._names, self._stream, model_only, memory or self._new_memory)
        self._begun = [*(other for other in self._begun if not other.copied), copying]
        self._queue.put(copying)
        return copying.future

    def close(self) -> None:
        """After the last snapshot: wait for it."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(THREAD_ENDS_S)

    def _finish(self) -> None:
        """The state is about to change: what is not copied yet is copied now."""
        begun, self._begun = self._begun, []
        for copying in begun:
            copying.finish()

    def _run(self) -> None:
        while (copying := self._queue.get()) is not None:
            copying.run()

    def _new_memory(self, name: str, size: int) -> Tensor:
        del name
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._stream is not None)


class _Copying:
    """A snapshot in the making. Two threads may copy at it."""

    def __init__(
        self,
        replica: Replica,
        names: list[str],
        stream: torch.cuda.Stream | None,
        model_only: bool,
        memory: Memory,
    ) -> None:
        self.future: Future[Snapshot] = Future()
        self._replica = replica
        self._names = names
        self._stream = stream
        self._memory = memory
        self._changed = threading.Condition()
        self._pieces: deque[Callable[[], None]] | None = None
        self._at_work = 0
        # What a forward may change is taken at once: it is small.
        self._small = replica.small()
        self._random = None if model_only else RandomStates.now(replica.device)
        self._buffers = {name: buffer.detach().clone() for name, buffer in replica.model.named_buffers()}
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(replica.device))

    @property
    def copied(self) -> bool:
        """Whether the state may change."""
        return self._pieces is not None and not self._pieces and not self._at_work

    def run(self) -> None:
        """In the copying thread: make the whole snapshot."""
        try:
            snapshot, pieces = self._plan()
            self._begin(pieces)
            self._work()
            self._wait()
            if self._stream is not None:
                self._stream.synchronize()
        except Exception as error:  # noqa: BLE001  # who wanted the snapshot gets the error, and decides
            self._begin(())
            self.future.set_exception(error)
        else:
            self.future.set_result(snapshot)

    def finish(self) -> None:
        """In the training thread: let nothing be left to copy."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces is not None)
        self._work()
        self._wait()
        if self._stream is not None:
            torch.cuda.current_stream(self._replica.device).wait_stream(self._stream)

    def _plan(self) -> tuple[Snapshot, list[Callable[[], None]]]:
        replica = self._replica
        units = [replica.unit(index) for index in range(len(replica.parameters))]
        model: dict[str, Tensor] = dict(self._buffers)
        optimizer: dict[str, Tensor] = {}
        for name, unit in zip(self._names, units, strict=True):
            parameter, *state = unit.tensors
            (optimizer if is_extra(name) else model)[name] = parameter
            optimizer |= {f"{name}.{key}": value for key, value in zip(unit.meta["keys"], state, strict=True)}
        rest: dict[str, Any] = {"small": self._small}
        sources = [("model", model)]
        if self._random is not None:
            rest["random"] = self._random.plain()
            rest["kinds"] = kinds(replica)
            rest["units"] = {name: unit.meta for name, unit in zip(self._names, units, strict=True)}
            sources.append(("optimizer", optimizer))
        parts: dict[str, Part] = {}
        pieces: list[Callable[[], None]] = []
        for part, tensors in sources:
            image = Image(tensors)
            data = self._memory(part, image.size)
            places = image.lay_out(data)
            parts[part] = Part(data, places)
            for name, source in tensors.items():
                pieces.extend(self._pieces_of(places[name], source))
        small = self._small
        return Snapshot(small["rounds"], small["steps"], parts["model"], parts.get("optimizer"), rest), pieces

    def _pieces_of(self, target: Tensor, source: Tensor) -> Iterator[Callable[[], None]]:
        if source.is_cuda and self._stream is not None:
            yield lambda: self._copy_on_stream(target, source)
        elif source.is_cuda or not source.is_contiguous():
            yield lambda: _copy(target, source)
        elif source.numel():
            to, origin = _bytes(target), _bytes(source)
            for start in range(0, len(to), PIECE_BYTES):
                end = start + PIECE_BYTES
                yield lambda to=to[start:end], origin=origin[start:end]: _copy_bytes(to, origin)  # type: ignore[misc]

    def _copy_on_stream(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def _begin(self, pieces: Iterable[Callable[[], None]]) -> None:
        with self._changed:
            self._pieces = deque(pieces)
            self._changed.notify_all()

    def _work(self) -> None:
        """Copy one piece after the other until none is left to begin."""
        while True:
            with self._changed:
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
                self._at_work += 1
            try:
                piece()
            finally:
                with self._changed:
                    self._at_work -= 1
                    self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.copied)


def parameter_names(replica: Replica) -> list[str]:
    """A name for each parameter of a replica: the model's, or a number for one that only the optimizer has."""
    known = {parameter: name for name, parameter in replica.model.named_parameters()}
    return [known.get(parameter, f"#{index}") for index, parameter in enumerate(replica.parameters)]  # type: ignore[call-overload]


def kinds(replica: Replica) -> dict[str, Any]:
    """What the settings of a snapshot are for."""
    return {
        "optimizer": type(replica.optimizer).__qualname__,
        "groups of parameters": len(replica.optimizer.param_groups),
        "scheduler": None if replica.scheduler is None else type(replica.scheduler).__qualname__,
        "scaler": None if replica.scaler is None else type(replica.scaler).__qualname__,
    }


def is_extra(name: str) -> bool:
    """Whether only the optimizer has this parameter."""
    return name.startswith("#")


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _copy_bytes(to: Bytes, origin: Bytes) -> None:
    # numpy's copy lets the interpreter go on, and keeps to its own thread: the cores are for the training.
    np.copyto(to, origin)


def _bytes(tensor: Tensor) -> Bytes:
    data: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return data
