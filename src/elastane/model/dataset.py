"""Data as the job sees it: a described data set, a shard of it, and a task that leases a shard."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from elastane.model.errors import InvalidInput
from elastane.model.ids import DatasetName, TaskId

MAX_INDICES = 1_000_000
MAX_SIZE = 2**48
MAX_EPOCHS = 10**9


class TaskType(enum.StrEnum):
    """What is done with a task's shard."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    EXPORT = "export"


@dataclass(frozen=True)
class DatasetSpec:
    """How a data set is cut: a range of `size` samples, a list of `indices`, or (neither given) an endless stream.

    A shard is a range of *positions* in the epoch's order; `core.order` says which sample stands at a position. So the
    order depends on seed and epoch alone, never on the number of workers or on the shard size.
    """

    name: DatasetName
    shard_size: int
    size: int | None = None
    indices: tuple[int, ...] | None = None
    epochs: int = 1
    shuffle: bool = False
    seed: int = 0
    lockstep: bool = False
    """Not leased in shards: workers that share each step take their parts of it by rank (`core.lockstep`)."""
    type: TaskType = TaskType.TRAINING
    """What its tasks are for. Only the master describes data sets of other types."""

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200:
            raise InvalidInput(f'data set: name "{self.name[:20]}" must have 1 to 200 characters')
        if not 1 <= self.shard_size <= MAX_SIZE:
            raise InvalidInput(f'data set "{self.name}": shard_size {self.shard_size} is not from 1 to {MAX_SIZE}')
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise InvalidInput(f'data set "{self.name}": epochs {self.epochs} is not from 1 to {MAX_EPOCHS}')
        if not -(2**63) <= self.seed < 2**63:
            raise InvalidInput(f'data set "{self.name}": seed {self.seed} does not fit 64 bits')
        if self.indices is not None:
            if self.size is not None:
                raise InvalidInput(f'data set "{self.name}": give size or indices, not both')
            if len(self.indices) > MAX_INDICES:
                raise InvalidInput(
                    f'data set "{self.name}": {len(self.indices)} indices are more than {MAX_INDICES}; '
                    "wrap the data set so that a range selects them"
                )
            if any(not 0 <= index < MAX_SIZE for index in self.indices):
                raise InvalidInput(f'data set "{self.name}": every index must be from 0 to {MAX_SIZE - 1}')
        if self.size is not None and not 0 <= self.size <= MAX_SIZE:
            raise InvalidInput(f'data set "{self.name}": size {self.size} is not from 0 to {MAX_SIZE}')
        if self.endless and (self.shuffle or self.epochs != 1):
            raise InvalidInput(f'data set "{self.name}": an endless stream has one epoch and no shuffle')

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> DatasetSpec:
        """The description whose fields these are, as `dataclasses.asdict` and JSON leave them."""
        indices = None if plain["indices"] is None else tuple(plain["indices"])
        return cls(**{**plain, "name": DatasetName(plain["name"]), "indices": indices, "type": TaskType(plain["type"])})

    @property
    def endless(self) -> bool:
        return self.size is None and self.indices is None

    @property
    def epoch_size(self) -> int | None:
        """Samples in one epoch; None for an endless stream."""
        return len(self.indices) if self.indices is not None else self.size


@dataclass(frozen=True, order=True)
class Shard:
    """Positions `start` to `end` (exclusive) of one epoch's order."""

    epoch: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"epoch {self.epoch} samples {self.start}..{self.end - 1}"


@dataclass(frozen=True)
class Task:
    """A shard leased to a worker under a number that is used once."""

    id: TaskId
    dataset: DatasetName
    shard: Shard
    type: TaskType = TaskType.TRAINING
