"""PSTrainer: the training step of a worker whose model lives on parameter servers.

A step pulls the rows of its batch and the dense parameters, computes, and pushes the gradients; the servers apply them.
No worker waits for another unless the job bounds the staleness. With `ahead`, the rows of the next batch are on their
way while this one is computed, and a push is acknowledged while the next step is under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor, nn, optim

from elastane.model.errors import InvalidInput
from elastane.model.world import Place
from elastane.torch.dense_rows import PREFIX, DenseRows
from elastane.torch.embedding import Embedding, Lookup
from elastane.torch.last_loss import LastLoss
from elastane.torch.snapshot import Part, Snapshot
from elastane.torch.step_rows import Pulled, Pushed, StepRows
from elastane.worker.pushed import PushedStream, Settlement, Take

Batch = TypeVar("Batch")
IdsOf = Callable[[Batch], Mapping[Embedding, Tensor]]


@dataclass
class _Fetched:
    """A batch, and its rows on their way."""

    batch: Any
    takes: Sequence[Take]
    lookups: Mapping[str, Lookup]
    pulled: Pulled


class PSTrainer:
    """Trains one model against parameter servers. `job.trainer` makes it."""

    def __init__(
        self,
        rows: StepRows,
        model: nn.Module,
        optimizer: optim.Optimizer,
        scheduler: Any | None,
        *,
        synchronous: bool,
    ) -> None:
        self._meter = rows.meter
        self._last_loss = LastLoss(self._meter)
        self._rows = rows
        self._client = rows.client
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._synchronous = synchronous
        self._dense = [
            DenseRows(f"{PREFIX}{number}", optimizer, group) for number, group in enumerate(optimizer.param_groups)
        ]
        self._settlement = Settlement()
        self._streams: list[PushedStream] = []
        self._fresh: list[Take] = []
        """What was taken since `ahead` last asked for a batch."""
        self._ahead = False
        self._joined = False
        self._steps = 0
        self._in_flight: Pushed | None = None
        self._pushed = 0
        self._acknowledged = 0
        self._samples = 0.0
        self._unit = 1.0
        self.left = False
        """Whether this worker gets no more batches."""
        self.after_round: list[Callable[[], None]] = []
        """Called by the training thread between two steps."""
        self.snapshots = _Snapshots(self)
        for dense in self._dense:
            self._client.define(dense.spec)
            # Of all workers' first values, those of the first to say them are the model's.
            self._client.assign(dense.spec.name, dense.ids, dense.values)
        self._join()
        self.sync()

    @property
    def steps(self) -> int:
        """How many steps this worker has made; one that joins later begins with the number of the others."""
        return self._steps

    @property
    def place(self) -> Place:
        """Workers of a job with servers have none: no two of them are the same step's. Raises InvalidInput."""
        raise InvalidInput("rank, world_size: workers with parameter servers have no ranks; job.node tells them apart")

    def step(self, loss: Tensor, samples: int | None = None) -> None:
        """Backward, and a push of all gradients; without `ahead` also a pull of the parameters that came of it.

        The loss is the mean over the batch. `samples` is how many samples it is from: by default those of the batch of
        `job.batches`, or 1 for a loop without it. It weighs where steps are combined.
        """
        self.backward(loss, samples)
        self.apply()

    def backward(self, loss: Tensor, samples: int | None = None) -> None:
        """Add the gradients of one more batch to the step that `apply`, or the last `step`, makes."""
        if samples is not None and samples < 1:
            raise InvalidInput(f"samples: {samples} is below 1")
        weight = float(samples or self._in_hand() or 1)
        if not self._samples:
            self._unit = weight
        self._samples += weight
        self._last_loss.saw(loss)
        (loss if weight == self._unit else loss * (weight / self._unit)).backward()  # type: ignore[no-untyped-call]

    def apply(self) -> None:
        """Push the gradients since the last step, as the mean over all their samples."""
        self._join()
        scale = self._unit / self._samples if self._samples else 1.0
        factor = self._dense[0].scale if self._dense and self._scheduler is not None else 1.0
        gradients = self._rows.take_gradients(scale)
        lrs = {name: self._rows.specs[name].optimizer.lr * factor for name in gradients}
        # Its memory is used again, so the push before must have arrived.
        self._await_push()
        for dense in self._dense:
            if (taken := dense.take_gradients(scale)) is not None:
                gradients[dense.spec.name] = taken
                lrs[dense.spec.name] = dense.lr
        self._in_flight = self._client.push_ahead(gradients, lrs, self._steps, self._samples or 1.0)
        self._pushed += 1
        self._samples = 0.0
        self._steps += 1
        self._rows.step = self._steps
        if self._scheduler is not None:
            self._optimizer.step()  # No parameter has a gradient: it only tells the scheduler that there was a step.
            self._scheduler.step()
        if not self._ahead:
            self.sync()
        for callback in self.after_round:
            callback()

    def sync(self) -> None:
        """Make the parameters those that the servers have now, with all that this worker pushed."""
        self._await_push()
        if self._dense:
            asked = time.perf_counter()
            pulled = self._client.pull({dense.spec.name: dense.ids for dense in self._dense}, self._steps)
            self._meter.pull_s += time.perf_counter() - asked
            self._load(pulled)

    def ahead(self, batches: Iterable[Batch], ids_of: IdsOf[Batch]) -> Iterator[Batch]:
        """Iterate over batches whose rows are pulled in one request, while the batch before is computed.

        `ids_of(batch)` says which ids each embedding will be given, as the very tensors that it will be given. In a
        synchronous job a batch is pulled when the step before it is applied, and not ahead of it.
        """
        if self._ahead:
            raise InvalidInput("ahead: another loop of it is not over")
        self._ahead = True
        try:
            source = iter(batches)
            following = self._fetch(source, ids_of, self._steps)
            while (current := following) is not None:
                following = None
                early = not self._synchronous and all(stream.ready for stream in self._streams)
                if early:
                    following = self._fetch(source, ids_of, self._steps + 1)
                self._enter(current)
                yield current.batch
                self._settlement.done_with(current.takes, self._pushed)
                self._settlement.acknowledged(self._acknowledged)
                if not early:
                    following = self._fetch(source, ids_of, self._steps)
        finally:
            self._ahead = False
            self._rows.drop()
        self.sync()

    def save(self, folder: str | Path | None = None) -> None:
        """The servers make their own checkpoints: there is nothing to save here. Raises InvalidInput."""
        del folder
        raise InvalidInput("save: the servers have this model, and make its checkpoints")

    def state_dict(self) -> dict[str, Any]:
        """The dense part of the model as it is now; all else is in the servers' checkpoints."""
        return {"model": self._model.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The servers have the state. Raises InvalidInput."""
        del state
        raise InvalidInput("load_state_dict: the servers have this model, and start from their checkpoints")

    # --- for the data streams and the job ---

    def taken(self, take: Take) -> None:
        if take.stream not in self._streams:
            self._streams = [*(stream for stream in self._streams if not stream.left), take.stream]
        self._settlement.taken(take)
        if self._ahead:
            self._fresh.append(take)
        else:
            take.given = True
            self._current = [take]

    def came_back(self, stream: PushedStream) -> None:
        if not self._ahead:
            self._settlement.done_with(self._settlement.of(stream), self._pushed)
            self._settlement.acknowledged(self._acknowledged)

    def settle(self, *, leaving: bool) -> None:
        self._await_push()
        if leaving and self._joined and not self._samples:
            self._joined = False
            self._client.leave()

    def end(self, stream: PushedStream, *, done: bool) -> Sequence[Take]:
        if done:
            self._settlement.done_with(self._settlement.of(stream), self._pushed)
            self._await_push()
        self._settlement.acknowledged(self._acknowledged)
        return self._settlement.forget(stream)

    def give_notice(self) -> None:
        """This worker will leave after the batch in hand. Safe in a signal handler."""
        self.left = True

    def leave(self) -> None:
        """Let the others go on without this worker, once all that it pushed has arrived."""
        self.settle(leaving=True)

    def close(self) -> None:
        """Be gone at once; the others notice."""

    def join_threads(self) -> None:
        """There are none."""

    def refreshed(self) -> nn.Module:
        """The model as the servers have it now, for a version of it."""
        if self._dense:
            self._load(self._client.pull({dense.spec.name: dense.ids for dense in self._dense}))
        return self._model

    # --- a step ---

    _current: Sequence[Take] = ()

    def _in_hand(self) -> int:
        """How many samples of `job.batches` the training code works on."""
        return sum(len(piece.samples) for take in self._current for piece in take.slices)

    def _join(self) -> None:
        if not self._joined:
            self._joined = True
            self._begin_at(max(self._steps, self._client.join()))

    def _begin_at(self, step: int) -> None:
        if self._scheduler is not None and step > self._steps:
            self._optimizer.step()
            for _ in range(step - self._steps):
                self._scheduler.step()
        self._steps = self._rows.step = step

    def _fetch(self, source: Iterator[Any], ids_of: IdsOf[Any], step: int) -> _Fetched | None:
        """The next batch, with its rows on their way for this step; None at the end."""
        self._fresh = []
        try:
            batch = next(source)
        except StopIteration:
            return None
        self._join()
        takes, self._fresh = self._fresh, []
        lookups: dict[str, Lookup] = {}
        for embedding, ids in ids_of(batch).items():
            spec = embedding.spec
            lookups[spec.name] = Lookup(spec.name, spec.dim, ids)
        keys = {name: lookup.unique for name, lookup in lookups.items()}
        keys |= {dense.spec.name: dense.ids for dense in self._dense}
        return _Fetched(batch, takes, lookups, self._client.pull_ahead(keys, max(step, self._steps)))

    def _enter(self, fetched: _Fetched) -> None:
        """Begin the step of this batch."""
        asked = time.perf_counter()
        rows = fetched.pulled.result()
        self._meter.pull_s += time.perf_counter() - asked
        self._load(rows)
        for name, lookup in fetched.lookups.items():
            lookup.rows = rows[name]
        self._rows.have_ready(fetched.lookups)
        for take in fetched.takes:
            take.given = True
        self._current = fetched.takes

    def _load(self, rows: Mapping[str, Any]) -> None:
        for dense in self._dense:
            dense.load(rows[dense.spec.name])

    def _await_push(self) -> None:
        if self._in_flight is not None:
            in_flight, self._in_flight = self._in_flight, None
            asked = time.perf_counter()
            in_flight.result()
            self._meter.push_s += time.perf_counter() - asked
            self._acknowledged = self._pushed
        self._settlement.acknowledged(self._acknowledged)


class _Snapshots:
    """The dense part of the model for versions that are evaluated; embeddings are looked up where they are."""

    def __init__(self, trainer: PSTrainer) -> None:
        self._trainer = trainer

    def take(self, *, model_only: bool = True) -> Future[Snapshot]:
        """The parameters as the servers have them now. To be called by the training thread, between two steps."""
        del model_only
        model = self._trainer.refreshed()
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        future: Future[Snapshot] = Future()
        part = Part(torch.frombuffer(bytearray(data), dtype=torch.uint8), {})
        future.set_result(Snapshot(self._trainer.steps, self._trainer.steps, part, None, {}))
        return future
