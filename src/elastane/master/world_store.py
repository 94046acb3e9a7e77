"""WorldStore: where the members of a world find each other. It outlives every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastane.model.errors import RequestRefused
from elastane.model.ids import NodeName
from elastane.model.world import World

KEYS_PER_MEMBER = 16

Answer = Callable[[bytes], None]


@dataclass
class _Shelf:
    world: World
    values: dict[str, bytes] = field(default_factory=dict)
    waiting: dict[str, list[Answer]] = field(default_factory=dict)


class WorldStore:
    """Values by key for each world that somebody may still look into."""

    def __init__(self) -> None:
        self._shelves: dict[int, _Shelf] = {}

    def open(self, world: World) -> None:
        self._shelves[world.version] = _Shelf(world)

    def keep_only(self, versions: set[int]) -> None:
        """Forget all other worlds; what was asked for in them is never answered."""
        self._shelves = {version: shelf for version, shelf in self._shelves.items() if version in versions}

    def set(self, node: NodeName, version: int, key: str, value: bytes) -> None:
        """Raises RequestRefused from a node that is no member, or when a world has too many keys."""
        shelf = self._shelf(node, version)
        if shelf is None:
            return
        if key not in shelf.values and len(shelf.values) >= KEYS_PER_MEMBER * len(shelf.world):
            raise RequestRefused(f"the store of world {version} has {len(shelf.values)} keys, and takes no more")
        shelf.values[key] = value
        for answer in shelf.waiting.pop(key, ()):
            answer(value)

    def get(self, node: NodeName, version: int, key: str, answer: Answer) -> None:
        """Answer with the value of a key, now or once it is there. Raises RequestRefused from who is no member."""
        shelf = self._shelf(node, version)
        if shelf is None:
            return
        if key in shelf.values:
            answer(shelf.values[key])
        else:
            shelf.waiting.setdefault(key, []).append(answer)

    def _shelf(self, node: NodeName, version: int) -> _Shelf | None:
        """The world's shelf; None for a world that has passed, whose members will hear of the next."""
        shelf = self._shelves.get(version)
        if shelf is not None and node not in shelf.world.ranks:
            raise RequestRefused(f"{node} is no member of world {version}")
        return shelf
