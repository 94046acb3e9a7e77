"""What a training script holds: `join()` gives a Job, and the Job gives batches."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from elastane.model.dataset import DatasetSpec
from elastane.model.environment import ENV_MASTER, ENV_NODE, ENV_ROLE, ENV_TOKEN
from elastane.model.errors import InvalidInput
from elastane.model.ids import DatasetName, NodeName
from elastane.model.node import NodeType
from elastane.model.world import Place
from elastane.worker.batches import BatchStream, Collate, Ending, MapDataset, as_columns
from elastane.worker.door import Door
from elastane.worker.link import Link
from elastane.worker.lockstep import LockstepFeed, LockstepStream
from elastane.worker.membership import PlainMember
from elastane.worker.pushed import PushedStream
from elastane.worker.servers import Servers
from elastane.worker.shard_client import ShardClient

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from elastane.model.ps import Initializer, OptimizerSpec
    from elastane.torch.embedding import Bag, Embedding
    from elastane.torch.evaluation import EvaluatorNode, WorkerEvaluation
    from elastane.torch.ps_trainer import IdsOf, PSTrainer
    from elastane.torch.step_rows import RowClient, StepRows
    from elastane.torch.trainer import Trainer
    from elastane.worker.evaluation import Evaluation

_MOST_BATCHES_PER_SHARD = 16
_FEWEST_SHARDS = 64


def join() -> Job:
    """Join the job that this process was launched for; without a launcher, be its one worker.

    On a node that is to be a parameter server this call serves until the job is over, and ends the script there.

    Raises RequestRefused if the job does not want this process (any more), MasterUnreachable if there is no answer.
    """
    settings = {name: os.environ.get(name) for name in (ENV_MASTER, ENV_TOKEN, ENV_NODE)}
    if not any(settings.values()):
        from elastane.worker.alone import AloneLink

        return Job(NodeName("alone-worker-0"), AloneLink())
    if missing := [name for name, value in settings.items() if not value]:
        raise InvalidInput(
            f"{', '.join(missing)}: not set, though {ENV_MASTER} and the like were; unset or set them all"
        )
    # A script may fork (a DataLoader does): its children leave gRPC alone, so gRPC need not prepare for them.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    door = Door.from_env()
    if os.environ.get(ENV_ROLE) == NodeType.PS:
        from elastane.ps.__main__ import main

        # A job may give all its nodes one command: what follows in the script is for those who train.
        sys.exit(main())
    from elastane.worker.attendant import Attendant

    attendant = Attendant(door)
    attendant.start()
    return Job(door.node, attendant)


class Job:
    """This process's part in a job. Use it as a context manager, so that its end is known as good or bad.

    On SIGTERM (a drain, a scale-in, a preemption) `batches` ends after the batch in hand; what is not done goes to
    other workers.
    """

    def __init__(self, node: NodeName, link: Link) -> None:
        self.node = node
        """This worker's name in the job."""
        self.draining = False
        """Whether this worker was told to leave."""
        self._batches_given = 0
        self._link = link
        self._trainer: Trainer | PSTrainer | None = None
        self._in_lockstep: Trainer | None = None
        """The same trainer, if its workers share each step."""
        self._pushing: PSTrainer | None = None
        """The same trainer, if it trains against parameter servers."""
        self._rows: StepRows | None = None
        self._evaluation: EvaluatorNode | WorkerEvaluation | None = None
        self._member: PlainMember | None = None
        self._pid = os.getpid()
        self._calls = 0
        self._streams: list[BatchStream | LockstepStream | PushedStream] = []
        self._closed = False
        self._restore_sigterm = self._on_sigterm()
        atexit.register(self._close_at_exit)

    @property
    def step(self) -> int:
        """How many steps the job has made; without a trainer, how many batches this worker has been given."""
        return self._batches_given if self._trainer is None else self._trainer.steps

    @property
    def rank(self) -> int:
        """This worker's rank in the world, from 0. It may change whenever workers come or go.

        Workers with parameter servers have none: InvalidInput.
        """
        return self._place.rank

    @property
    def world_size(self) -> int:
        """How many workers are in the world. It may change whenever workers come or go."""
        return self._place.size

    def trainer(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None = None,
        clip_grad_norm: float | None = None,
        global_batch_size: int | None = None,
        *,
        grad_scaler: GradScaler | None = None,
        deterministic: bool = False,
        backend: str | None = None,
        evaluate: Evaluation | None = None,
        checkpoint: str | Path | None = None,
        save_every_steps: int | None = None,
        save_every_s: float | None = None,
        keep: int = 3,
        rehearse: Callable[[], Tensor] | None = None,
        scale_lr_by_staleness: bool = False,
    ) -> Trainer:
        """Train this model together with all other workers: `trainer.step(loss)` is the whole training step.

        In a job with parameter servers, and alone after `job.embedding`, the model's parameters live on servers. The
        trainer is then a `PSTrainer`, which has the same methods.

        Make it before the first batch, and before `rank` or `world_size` are read: a worker that has a trainer is in
        the world only once it has the others' state.

        scheduler: steps with the optimizer.
        clip_grad_norm: the most that the norm of all gradients together may be.
        global_batch_size: how many samples each step has, whatever the number of workers; `batch_size` of `batches` is
            then the most that a worker takes at a time. Without it each worker adds one batch to a step.
        grad_scaler: for training in half precision.
        deterministic: the result is the same to the last bit whatever the number of workers. Each batch of `batch_size`
            samples is then a virtual rank; that many times the gradients travel.
        backend: "nccl" (the default) or "gloo" for tensors on GPUs; tensors in host memory always use gloo.
        evaluate: what is evaluated while the model trains. On an evaluator this call evaluates until the job is over,
            and ends the script there.
        checkpoint: a folder for checkpoints. A job that starts goes on from the newest whole one that it finds there.
        save_every_steps, save_every_s: how often to make one; by default every ten minutes, and at the end.
        keep: how many of them stay.
        rehearse: computes a loss of this model, from any batch of the usual shape. A new worker calls it while it gets
            the others' state, and drops the gradients: so its first step, for which the others wait, is as fast as any.
        scale_lr_by_staleness: with parameter servers, a push that is n steps behind that of another worker has its
            learning rate divided by n + 1.
        """
        if self._link.is_evaluator:
            self._evaluate_only(model, evaluate)
        if self._trainer is not None:
            raise InvalidInput("trainer: this job has one already; one trainer takes all parameters of a step")
        if self._member is not None:
            raise InvalidInput("trainer: make it before the first batch, and before rank or world_size are read")
        if self._rows is not None or self._link.servers.settings is not None:
            unusable = {
                "clip_grad_norm": clip_grad_norm,
                "global_batch_size": global_batch_size,
                "grad_scaler": grad_scaler,
                "deterministic": deterministic or None,
                "backend": backend,
                "checkpoint": checkpoint,
                "save_every_steps": save_every_steps,
                "save_every_s": save_every_s,
            }
            if scale_lr_by_staleness:
                self._step_rows().connect(scale_lr_by_staleness=True)
            return cast("Trainer", self._ps_trainer(model, optimizer, scheduler, evaluate, unusable))
        from elastane.checkpoint.policy import SavePolicy
        from elastane.torch.settings import TrainerSettings
        from elastane.torch.trainer import Trainer

        if checkpoint is None and (save_every_steps is not None or save_every_s is not None):
            raise InvalidInput("save_every_steps, save_every_s: need checkpoint=, the folder to save into")
        settings = TrainerSettings(
            scheduler=scheduler,
            clip_grad_norm=clip_grad_norm,
            global_batch_size=global_batch_size,
            grad_scaler=grad_scaler,
            deterministic=deterministic,
            backend=backend or "nccl",
            saves=None if checkpoint is None else SavePolicy(Path(checkpoint), save_every_steps, save_every_s, keep),
            rehearse=rehearse,
        )
        self._in_lockstep = trainer = Trainer(self._link, model, optimizer, settings)
        self._trains(trainer, model, evaluate)
        return trainer

    def embedding(
        self,
        name: str,
        dim: int,
        optimizer: OptimizerSpec,
        *,
        initializer: Initializer | None = None,
        bag: Bag | None = None,
        admit_after: int = 0,
        evict_after: int | None = None,
    ) -> Embedding:
        """A table of rows on the parameter servers, as a module: `embedding(ids)` looks int64 ids of any shape up.

        It has as many rows as different ids are trained on. Alone, without a launcher, the rows are in this process.

        optimizer: how the servers apply gradients to the rows: `elastane.Adagrad(lr=0.1)` and the like.
        initializer: the first weights of a row; by default uniform between -0.05 and 0.05.
        bag: "sum" or "mean" makes one of the rows of the last dimension's ids, as torch.nn.EmbeddingBag does.
        admit_after: an id gets a row of its own only after so many pushes of it.
        evict_after: a row that so many steps have not updated may be forgotten.
        """
        if self._trainer is not None:
            raise InvalidInput(f'embedding "{name}": make it before job.trainer, as a part of its model')
        from elastane.model.ps import Initializer, TableSpec
        from elastane.torch.embedding import Embedding

        spec = TableSpec(name, dim, optimizer, initializer or Initializer(), admit_after, evict_after)
        rows = self._step_rows()
        rows.define(spec)
        return Embedding(spec, rows, bag)

    def _step_rows(self) -> StepRows:
        if self._rows is None:
            from elastane.torch.step_rows import StepRows

            self._rows = StepRows(self._connect_to_rows, self._link.meter)
        return self._rows

    def _connect_to_rows(self, scale_lr_by_staleness: bool) -> RowClient:
        from elastane.worker.alone import AloneLink

        if isinstance(self._link, AloneLink):
            from elastane.ps.local import LocalClient

            return LocalClient()
        from elastane.torch.serving import connect

        return connect(self._link.servers, scale_lr_by_staleness=scale_lr_by_staleness)

    def _ps_trainer(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        evaluate: Evaluation | None,
        unusable: Mapping[str, object],
    ) -> PSTrainer:
        if given := [name for name, value in unusable.items() if value is not None]:
            raise InvalidInput(f"{given[0]}: it has no meaning for a job with parameter servers")
        from elastane.torch.ps_trainer import PSTrainer

        self._pushing = trainer = PSTrainer(
            self._step_rows(),
            model,
            optimizer,
            scheduler,
            synchronous=(found := self._link.servers.settings) is not None and found.staleness == 0,
        )
        self._trains(trainer, model, evaluate)
        return trainer

    def _trains(self, trainer: Trainer | PSTrainer, model: nn.Module, evaluate: Evaluation | None) -> None:
        self._trainer = trainer
        if evaluate is not None:
            from elastane.torch.evaluation import WorkerEvaluation

            every_worker_writes = self._pushing is not None
            self._evaluation = WorkerEvaluation(
                self._link, trainer, model, evaluate, every_worker_writes=every_worker_writes
            )
        if self.draining:
            trainer.give_notice()

    def _evaluate_only(self, model: nn.Module, evaluate: Evaluation | None) -> NoReturn:
        if evaluate is None:
            raise InvalidInput("trainer: this node is an evaluator, and job.trainer was given no evaluate=")
        from elastane.torch.evaluation import EvaluatorNode

        self._evaluation = EvaluatorNode(self._link, model, evaluate)
        if not self.draining:
            self._evaluation.run()
        # What follows in the script is for those who train.
        sys.exit(0)

    @property
    def _place(self) -> Place:
        return self._plain_member().place if self._trainer is None else self._trainer.place

    def _plain_member(self) -> PlainMember:
        """Without a trainer, this worker is a member of the world from when it first needs to be."""
        if self._member is None:
            self._member = PlainMember(self._link)
        return self._member

    def batches(
        self,
        dataset: MapDataset,
        batch_size: int,
        *,
        epochs: int = 1,
        shuffle: bool = False,
        seed: int | None = None,
        indices: Sequence[int] | None = None,
        shard_size: int | None = None,
        collate_fn: Collate | None = None,
        name: str | None = None,
        ids_of: IdsOf[Any] | None = None,
    ) -> Iterator[Any]:
        """This worker's share of the data set: batches of samples that no other worker gets.

        A batch counts as done when the next one is asked for, or when the loop is left without an error.

        dataset: anything with `dataset[i]`; without `__len__` it is an endless stream.
        epochs: how often each sample is used. The order depends on `seed` and the epoch alone; `seed` is by default
            the number of this call, so that a loop of one-epoch calls has a new order each time (0 with a `name`).
        indices: use only these samples, instead of all.
        shard_size: how many samples are leased at a time; by default up to 16 batches, less for small data sets. With
            a trainer nothing is leased: workers that share each step also share the position in the data.
        collate_fn: makes a batch of a list of samples; by default PyTorch's rule if the script uses PyTorch, else a
            tuple of columns.
        name: what the data set is called in the job; by default calls are numbered, and must then come in the same
            order on every worker. A data set that is finished has no more batches under the same name.
        ids_of: with embeddings, `ids_of(batch)` says which tensor of ids each of them will be given. Then the rows of
            all embeddings come in one request, while the batch before is computed.
        """
        if batch_size < 1:
            raise InvalidInput(f"batch_size: {batch_size} is below 1")
        if self._link.is_evaluator:
            raise InvalidInput("batches: this node is an evaluator, which job.trainer(..., evaluate=...) makes use of")
        if not hasattr(dataset, "__getitem__"):
            raise InvalidInput(f"dataset: {type(dataset).__name__} has no samples by number; it needs dataset[i]")
        for ended in [stream for stream in self._streams if stream.left]:
            ended.close(Ending(done=True))
            self._streams.remove(ended)
        number = self._calls
        self._calls += 1
        size = len(dataset) if indices is None and isinstance(dataset, Sized) else None
        default_size = _shard_size(size if indices is None else len(indices), batch_size)
        spec = DatasetSpec(
            name=DatasetName(name or f"batches-{number}"),
            # In lockstep all workers must cut alike, so this is what they are compared by.
            shard_size=batch_size if self._in_lockstep else default_size if shard_size is None else shard_size,
            size=size,
            indices=None if indices is None else tuple(int(index) for index in indices),
            epochs=epochs,
            shuffle=shuffle,
            seed=seed if seed is not None else number if name is None else 0,
            lockstep=self._in_lockstep is not None,
        )
        if any(stream.name == spec.name for stream in self._streams):
            raise InvalidInput(f'data set "{spec.name}": an earlier loop over it has not ended')
        collate = collate_fn or _default_collate()
        stream: BatchStream | LockstepStream | PushedStream
        if self._in_lockstep is not None:
            feed = LockstepFeed(spec, batch_size)
            self._link.define(spec, feed)
            stream = LockstepStream(feed, self._in_lockstep, dataset, collate)
        elif self._pushing is not None:
            stream = PushedStream(ShardClient(spec, self._link), self._pushing, dataset, batch_size, collate)
        else:
            stream = BatchStream(ShardClient(spec, self._link), dataset, batch_size, collate)
        self._streams.append(stream)
        if self.draining:
            stream.drain()
        if ids_of is not None and self._pushing is not None:
            return self._pushing.ahead(self._counted(stream), ids_of)
        return self._counted(stream)

    def servers(self) -> Servers:
        """The job's parameter servers, for a client of one's own. Raises InvalidInput in a job without them."""
        if self._link.servers.settings is None:
            raise InvalidInput("servers: this job has no parameter servers; start it with --ps")
        return self._link.servers

    def close(self, error: str | None = None) -> None:
        """Leave the job. With `error` the batch in hand is not counted, and its try has failed."""
        self._close(Ending(done=error is None, error=error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(self._ending(error))

    def _counted(self, stream: BatchStream | LockstepStream | PushedStream) -> Iterator[Any]:
        if self._trainer is None:
            self._plain_member()
        for batch in self._link.meter.measured(stream):
            self._batches_given += 1
            yield batch

    def _ending(self, error: BaseException | None) -> Ending:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            return Ending(done=True)
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and self.draining):
            return Ending(done=False)  # It was interrupted: that is not the batch's fault.
        return Ending(done=False, error=f"{type(error).__name__}: {error}")

    def _close(self, ending: Ending) -> None:
        if self._closed or os.getpid() != self._pid:
            return  # A forked child has no part in the job; its parent has.
        self._closed = True
        try:
            for stream in self._streams:
                stream.close(ending)
            if self._trainer is not None:
                self._trainer.leave() if ending.done else self._trainer.close()
                if self._evaluation is not None and ending.done and not self.draining:
                    self._evaluation.finish()
            self._link.close(preempted=self.draining)
            if self._evaluation is not None:
                self._evaluation.join_threads()
            if self._trainer is not None:
                self._trainer.join_threads()
            if self._rows is not None:
                self._rows.close()
        finally:
            atexit.unregister(self._close_at_exit)
            self._restore_sigterm()

    def _on_sigterm(self) -> Callable[[], object]:
        """Leave on SIGTERM; the answer puts back what was there before."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = signal.getsignal(signal.SIGTERM)

        def leave(number: int, frame: FrameType | None) -> None:
            if os.getpid() != self._pid:
                # A forked child, which is not the worker: for it SIGTERM means what it meant before.
                signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self.draining = True
            if self._trainer is not None:
                self._trainer.give_notice()
            elif self._member is not None:
                self._link.give_notice()
            if self._evaluation is not None:
                self._evaluation.leave()
            for stream in self._streams:
                stream.drain()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, leave)

        def restore() -> None:
            # What the script has set since stays; what was there before and is not Python's cannot be put back.
            if signal.getsignal(signal.SIGTERM) is leave and before is not None:
                signal.signal(signal.SIGTERM, before)

        return restore

    def _close_at_exit(self) -> None:
        # Only a script that does not use `with` gets here; an uncaught error has been shown by now.
        self._close(self._ending(getattr(sys, "last_value", None)))


def _shard_size(samples: int | None, batch_size: int) -> int:
    """Up to 16 batches, but so few that a small data set still has shards for many workers."""
    if samples is None:
        return batch_size * _MOST_BATCHES_PER_SHARD
    return batch_size * max(1, min(_MOST_BATCHES_PER_SHARD, samples // (batch_size * _FEWEST_SHARDS)))


def _default_collate() -> Collate:
    if "torch" not in sys.modules:
        return as_columns
    from elastane.torch.collate import collate

    return collate
