"""Tables of rows on parameter servers: what a row holds, how it begins, and how a gradient changes it."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
from dataclasses import dataclass
from typing import Any

from elastane.model.errors import InvalidInput

MAX_DIM = 1 << 16
MAX_TABLE_NAME = 200
MAX_BUCKETS = 1 << 16
DEFAULT_BUCKETS = 1024
MAX_STEP = 2**32 - 1
"""Rows keep the step of their last update in 32 bits."""

SALT_FACTOR = 0x9E3779B97F4A7C15


class OptimizerKind(enum.StrEnum):
    """The rule by which a server applies a gradient to a row."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAGRAD = "adagrad"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAM = "adam"
    FTRL = "ftrl"


class InitializerKind(enum.StrEnum):
    """What the weights of a row are before its first update."""

    ZEROS = "zeros"
    UNIFORM = "uniform"
    NORMAL = "normal"


_EPS = {OptimizerKind.ADAGRAD: 1e-10, OptimizerKind.ROWWISE_ADAGRAD: 1e-10, OptimizerKind.ADAM: 1e-8}

_USES = {
    OptimizerKind.SGD: {"weight_decay"},
    OptimizerKind.MOMENTUM: {"weight_decay", "momentum", "dampening", "nesterov"},
    OptimizerKind.ADAGRAD: {"weight_decay", "eps", "initial_accumulator_value"},
    OptimizerKind.ROWWISE_ADAGRAD: {"weight_decay", "eps", "initial_accumulator_value"},
    OptimizerKind.ADAM: {"weight_decay", "eps", "betas"},
    OptimizerKind.FTRL: {"initial_accumulator_value", "beta", "l1", "l2"},
}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer with its settings, which have the names and the defaults that torch.optim gives them.

    Raises InvalidInput for a setting out of bounds, or one that this kind does not use.
    """

    kind: OptimizerKind
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    eps: float = -1.0
    """Without one, torch's for this kind."""
    initial_accumulator_value: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", OptimizerKind(self.kind))
        object.__setattr__(self, "betas", tuple(self.betas))
        uses = _USES[self.kind]
        for field in dataclasses.fields(self):
            if (
                field.name not in {"kind", "lr"}
                and field.name not in uses
                and getattr(self, field.name) != field.default
            ):
                raise InvalidInput(f"optimizer {self.kind}: {field.name} is no setting of it; it has {_list(uses)}")
        if self.eps == -1.0 and self.kind in _EPS:
            object.__setattr__(self, "eps", _EPS[self.kind])
        for name in ("lr", "weight_decay", "momentum", "eps", "initial_accumulator_value", "beta", "l1", "l2"):
            value = getattr(self, name)
            if not (math.isfinite(value) and (value >= 0 or (name == "eps" and "eps" not in uses))):
                raise InvalidInput(f"optimizer {self.kind}: {name} {value} is not a number from 0 on")
        if not math.isfinite(self.dampening):
            raise InvalidInput(f"optimizer {self.kind}: dampening {self.dampening} is not a number")
        betas: tuple[float, ...] = self.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InvalidInput(f"optimizer {self.kind}: betas {self.betas} are not two numbers from 0 to below 1")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InvalidInput(f"optimizer {self.kind}: nesterov needs a momentum above 0 and no dampening")
        if self.kind is OptimizerKind.FTRL and self.lr == 0:
            raise InvalidInput("optimizer ftrl: lr 0 is not above 0")

    def slot_floats(self, dim: int) -> int:
        """How many numbers beside the weights this optimizer keeps for a row."""
        return {
            OptimizerKind.SGD: 0,
            OptimizerKind.MOMENTUM: dim,
            OptimizerKind.ADAGRAD: dim,
            OptimizerKind.ROWWISE_ADAGRAD: 1,
            OptimizerKind.ADAM: 2 * dim,
            OptimizerKind.FTRL: 2 * dim,
        }[self.kind]


@dataclass(frozen=True)
class Initializer:
    """Weights as a pure function of the seed, the table's name, the id and the column.

    `scale` is the bound of the uniform distribution on both sides of 0, and the standard deviation of the normal one.
    """

    kind: InitializerKind = InitializerKind.UNIFORM
    scale: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", InitializerKind(self.kind))
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise InvalidInput(f"initializer {self.kind}: scale {self.scale} is not a number from 0 on")
        if not 0 <= self.seed < 2**63:
            raise InvalidInput(f"initializer {self.kind}: seed {self.seed} is not from 0 to 2**63 - 1")


@dataclass(frozen=True)
class TableSpec:
    """A table of float32 rows, each found by an int64 id. Raises InvalidInput."""

    name: str
    dim: int
    optimizer: OptimizerSpec
    initializer: Initializer = Initializer()
    admit_after: int = 0
    """A row is made by the push after so many of its id; those before it are counted, and change nothing."""
    evict_after: int | None = None
    """A row that so many steps have not updated may be forgotten. None: never."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_TABLE_NAME or not self.name.isprintable():
            raise InvalidInput(f'table "{self.name[:20]}": a name has 1 to {MAX_TABLE_NAME} printable characters')
        if not 1 <= self.dim <= MAX_DIM:
            raise InvalidInput(f'table "{self.name}": dim {self.dim} is not from 1 to {MAX_DIM}')
        if not 0 <= self.admit_after < 2**31:
            raise InvalidInput(f'table "{self.name}": admit_after {self.admit_after} is not from 0 to 2**31 - 1')
        if self.evict_after is not None and not 1 <= self.evict_after <= MAX_STEP:
            raise InvalidInput(f'table "{self.name}": evict_after {self.evict_after} is not from 1 to {MAX_STEP}')

    @property
    def number(self) -> int:
        """The table's number, 32 bits of its name: the same on every client and server, with nobody to ask."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=4).digest(), "little")

    @property
    def salt(self) -> int:
        """What tells this table's ids from another's in every hash: its number spread over 64 bits."""
        return self.number * SALT_FACTOR & (2**64 - 1)

    def differences(self, other: TableSpec) -> list[str]:
        """In what two descriptions of a table cannot be of the same rows. The learning rate comes with each push."""
        mine, theirs = _flat(self.to_plain()), _flat(other.to_plain())
        return [f"{name} {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    def to_plain(self) -> dict[str, Any]:
        """This table as JSON has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TableSpec:
        """The table that `to_plain` made plain. Raises InvalidInput for anything else."""
        try:
            if not all(isinstance(plain[name], int) for name in ("dim", "admit_after")):
                raise TypeError("dim and admit_after are whole numbers")
            return cls(
                **{
                    **plain,
                    "optimizer": OptimizerSpec(**plain["optimizer"]),
                    "initializer": Initializer(**plain["initializer"]),
                }
            )
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InvalidInput(f"not the description of a table: {error}") from None


@dataclass(frozen=True)
class TableMemory:
    """What one table takes on one server. Bytes hold the rows, those counted for admission, and their index."""

    rows: int
    bytes: int
    counted: int = 0
    """Ids that were pushed, and are not rows yet."""


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _flat(plain: dict[str, Any]) -> dict[str, Any]:
    optimizer, initializer = plain.pop("optimizer"), plain.pop("initializer")
    optimizer.pop("lr")
    inner = {"optimizer": optimizer, "initializer": initializer}
    return plain | {f"{outer} {name}": value for outer, some in inner.items() for name, value in some.items()}
