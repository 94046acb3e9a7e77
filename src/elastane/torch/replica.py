"""Replica: the training state that every worker has the same, and the one way in which it changes.

Parameters, optimizer, scheduler and scaler change only in `apply`, from gradients that are the same on all workers; so
equal replicas stay equal, and one that lags behind catches up when it applies the gradients that it missed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from elastane.core.lockstep import Position
from elastane.model.errors import InvalidInput
from elastane.model.ids import DatasetName
from elastane.torch.codec import NotPlain, bytes_of, dtype_of, from_plain, to_plain

TORN = -1
"""The number of rounds of a replica that is only partly filled."""

_FOLLOWABLE = frozenset(
    [
        *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
        *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    ]
)
"""Optimizers whose update of one parameter depends on that parameter's gradients and state alone."""


@dataclass(frozen=True)
class Unit:
    """One parameter with its optimizer state: what is copied in one piece, for it belongs to one round."""

    meta: dict[str, Any]
    tensors: tuple[Tensor, ...]


class Replica:
    """One worker's training state."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        scheduler: Any | None,
        scaler: torch.amp.GradScaler | None,
        clip_grad_norm: float | None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self._clip_grad_norm = clip_grad_norm
        in_optimizer = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.parameters: list[Tensor] = list(dict.fromkeys([*model.parameters(), *in_optimizer]))
        known = set(in_optimizer)
        self.trained = [p for p in self.parameters if p in known and p.requires_grad]
        """The parameters that gradients are averaged for."""
        self.averaged = [b for b in model.buffers() if b.is_floating_point() or (not b.dim() and b.dtype != torch.bool)]
        """The buffers that are averaged over the workers after each round, such as the statistics of a batch norm."""
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.rounds = 0
        """Finished rounds. Of two replicas of one job, the one with more is ahead."""
        self.steps = 0
        """Steps of the optimizer."""
        self.positions: dict[DatasetName, Position] = {}
        self.over: list[DatasetName] = []
        """Data sets whose loops have been left for another, finished or not."""
        self.before_change: list[Callable[[], None]] = []
        """Called before anything changes, by whoever is about to change it."""
        self._in: DatasetName | None = None
        self._changes = 0
        self._gate = threading.Lock()
        self._check()

    @property
    def why_not_followable(self) -> str | None:
        """Why this replica cannot catch up from a log of gradients; None if it can."""
        kind = type(self.optimizer)
        if not f"{kind.__module__}.".startswith("torch.optim.") or kind.__qualname__ not in _FOLLOWABLE:
            name = f"{kind.__module__}.{kind.__qualname__}"
            return f"{name} may update a parameter from more than its own gradients and state"
        return None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Whatever is read meanwhile by another thread may be torn."""
        for prepare in self.before_change:
            prepare()
        with self._gate:
            self._changes += 1
            try:
                yield
            finally:
                self._changes += 1

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nothing changes meanwhile: whoever wants to must wait."""
        with self._gate:
            yield

    @property
    def stable_since(self) -> int | None:
        """A number that is the same as long as nothing changes; None in the middle of a change."""
        changes = self._changes
        return None if changes % 2 else changes

    def apply(self, without: Collection[Tensor] = ()) -> None:
        """Make the step that the gradients ask for, and clear them; not in the parameters `without`, which have it."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self._clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self._clip_grad_norm)
        for parameter in without:
            parameter.grad = None
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1

    def is_in(self, dataset: DatasetName) -> None:
        """The round was one of this data set: the one before it is over."""
        if self._in is not None and self._in not in (dataset, *self.over):
            self.over.append(self._in)
        self._in = dataset

    def options(self) -> Any:
        """The optimizer's settings as they are now, in plain form."""
        groups = self.optimizer.param_groups
        return to_plain([{key: value for key, value in group.items() if key != "params"} for group in groups])

    def load_options(self, options: Any) -> None:
        for group, settings in zip(self.optimizer.param_groups, from_plain(options), strict=True):
            group.update(settings)

    def small(self) -> dict[str, Any]:
        """All of the state that is small, in plain form."""
        return {
            "rounds": self.rounds,
            "steps": self.steps,
            "positions": {name: [at.start, [list(span) for span in at.left]] for name, at in self.positions.items()},
            "over": [*self.over, self._in],
            "options": self.options(),
            "scheduler": None if self.scheduler is None else to_plain(self.scheduler.state_dict()),
            "scaler": None if self.scaler is None else to_plain(self.scaler.state_dict()),
        }

    def load_small(self, small: dict[str, Any]) -> None:
        self.rounds = small["rounds"]
        self.steps = small["steps"]
        self.positions = {
            DatasetName(name): Position(start, tuple((low, high) for low, high in left))
            for name, (start, left) in small["positions"].items()
        }
        *self.over, self._in = small["over"]
        if self.scheduler is not None:
            self.scheduler.load_state_dict(from_plain(small["scheduler"]))
        if self.scaler is not None:
            self.scaler.load_state_dict(from_plain(small["scaler"]))
            self.scaler.scale(torch.zeros(1, device=self.device))  # It makes its tensors when it is first used.
        self.load_options(small["options"])

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "small": self.small()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.load_small(state["small"])

    def unit_count(self) -> int:
        return len(self.parameters) + 1

    def unit(self, index: int) -> Unit:
        """A piece of the state: a parameter with its optimizer state or, last, all buffers."""
        if index == len(self.parameters):
            buffers = tuple(self.model.buffers())
            return Unit({"index": index, "plain": {}, "keys": []}, buffers)
        parameter = self.parameters[index]
        state = dict(self.optimizer.state.get(parameter, {}))
        keys = [key for key, value in state.items() if isinstance(value, Tensor)]
        plain = {key: to_plain(value) for key, value in state.items() if key not in keys}
        like = [_likeness(state[key]) for key in keys]
        return Unit(
            {"index": index, "plain": plain, "keys": keys, "like": like},
            (parameter.detach(), *(state[key] for key in keys)),
        )

    def open_unit(self, meta: dict[str, Any]) -> list[Tensor]:
        """Where the tensors of a piece of the state are to be put. Raises NotPlain."""
        index = meta["index"]
        if index == len(self.parameters):
            return list(self.model.buffers())
        parameter = self.parameters[index]
        state = {key: from_plain(value) for key, value in meta["plain"].items()}
        for key, (dtype, shape, device) in zip(meta["keys"], meta["like"], strict=True):
            where = "cpu" if device == "cpu" else parameter.device
            state[key] = torch.empty(shape, dtype=dtype_of(dtype), device=where)
        self.optimizer.state.pop(parameter, None)
        if state:
            self.optimizer.state[parameter].update(state)
        return [parameter.detach(), *(state[key] for key in meta["keys"])]

    def averaged_values(self) -> Tensor:
        """The averaged buffers as one vector in host memory."""
        if not self.averaged:
            return torch.zeros(0, dtype=torch.float64)
        return torch.cat([buffer.detach().reshape(-1).to("cpu", torch.float64) for buffer in self.averaged])

    def load_averaged(self, values: Tensor) -> None:
        place = 0
        for buffer in self.averaged:
            part = values[place : place + buffer.numel()].reshape(buffer.shape)
            buffer.detach().copy_(part if buffer.is_floating_point() else part.round())
            place += buffer.numel()

    def checksum(self, *, between_rounds: bool) -> str:
        """A checksum over every bit of the state; in the middle of a round, of all that a forward does not change."""
        skipped = set() if between_rounds else {id(buffer) for buffer in self.averaged}
        digest = hashlib.blake2b(digest_size=8)
        small = self.small()
        del small["rounds"]  # It is told beside.
        digest.update(json.dumps(small, sort_keys=True).encode())
        for index in range(self.unit_count()):
            unit = self.unit(index)
            digest.update(json.dumps(unit.meta, sort_keys=True).encode())
            for tensor in unit.tensors:
                if id(tensor) not in skipped:
                    digest.update(bytes_of(tensor).numpy().data)
        return digest.hexdigest()

    def _check(self) -> None:
        """Raises InvalidInput if this is nothing that can be trained together."""
        if not self.trained:
            raise InvalidInput("trainer: the optimizer has no parameter that requires a gradient")
        if isinstance(self.optimizer, optim.LBFGS):
            raise InvalidInput("trainer: LBFGS evaluates its loss many times a step, which workers cannot share")
        if isinstance(self.scheduler, optim.lr_scheduler.ReduceLROnPlateau):
            raise InvalidInput("trainer: ReduceLROnPlateau steps by a metric; call its step yourself, on every worker")
        try:
            self.small()
        except NotPlain as error:
            raise InvalidInput(
                f"trainer: the scheduler's or optimizer's settings hold {error}, which cannot be sent to a new worker"
            ) from None


def _likeness(tensor: Tensor) -> tuple[str, list[int], str]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type


def fill(targets: Sequence[Tensor], payload: Tensor) -> None:
    """Put bytes into tensors, one after the other. Raises NotPlain if they do not fit."""
    sizes = [target.numel() * target.element_size() for target in targets]
    if sum(sizes) != payload.numel():
        raise NotPlain(f"{payload.numel()} bytes for tensors of {sum(sizes)}")
    for target, piece in zip(targets, torch.split(payload, sizes), strict=True):
        if target.numel():
            # A copy, for a view of another type needs its own alignment.
            target.copy_(piece.clone().view(target.dtype).reshape(target.shape))
