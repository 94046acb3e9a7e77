"""The world: one generation of the worker group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from elastane.model.ids import NodeName


@dataclass(frozen=True)
class World:
    """A version and its members; the place in `members` is the rank."""

    version: int
    members: tuple[NodeName, ...]

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def ranks(self) -> Mapping[NodeName, int]:
        return {node: rank for rank, node in enumerate(self.members)}


@dataclass(frozen=True)
class Place:
    """One member's place: its rank in a world of some size."""

    version: int
    rank: int
    size: int
