"""What the user of a coordinator holds: values that a worker will bring, and values that each worker has its own of."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from elastane.model.errors import ClosureCancelled

V = TypeVar("V")
_numbers = itertools.count(1)


class RemoteValue:
    """The result of a closure, once it is there. A closure that is run again has just not brought it yet."""

    __slots__ = ("__weakref__", "_error", "_ready", "_value")

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def fetch(self, timeout_s: float | None = None) -> Any:
        """Wait for the result. Raises the closure's error, ClosureCancelled, or TimeoutError."""
        if not self._ready.wait(timeout_s):
            raise TimeoutError(f"the result of a closure is not there after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._value

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def set(self, value: Any) -> None:
        self._value = value
        self._ready.set()

    def set_error(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()

    def cancel(self) -> None:
        self.set_error(ClosureCancelled("the closure was cancelled, as another failed before it; schedule it again"))


class PerWorkerValues(Mapping[int, V], Generic[V]):
    """A value for each worker, by its index, made when the worker first needs it: also for one that is added later.

    Iterating shows the workers that have theirs by now. A worker that comes in the place of a lost one makes its own.
    """

    def __init__(self, make: Callable[[], V]) -> None:
        self._make = make
        self._made: dict[int, tuple[object, V]] = {}

    def of(self, index: int, life: object) -> V:
        """The value of the worker of this index in this life; called by its own thread only."""
        made = self._made.get(index)
        if made is None or made[0] is not life:
            made = self._made[index] = (life, self._make())
        return made[1]

    def __getitem__(self, index: int) -> V:
        return self._made[index][1]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._made))

    def __len__(self) -> int:
        return len(self._made)


class PerWorkerReference(Mapping[int, object]):
    """A value of which each worker server has its own, made there on first use: also on one that is added later.

    In the arguments of a closure it stands for the worker's own. Iterating shows the workers that were told to make it.
    """

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled
        """How it is made: the bytes of a function."""
        self.number = next(_numbers)
        self._told: dict[int, object] = {}

    def told(self, index: int, life: object) -> bool:
        """Note that a worker knows it; whether it did before. Called by the worker's own thread only."""
        known = self._told.get(index) is life
        self._told[index] = life
        return known

    def __getitem__(self, index: int) -> object:
        return self._told[index]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._told))

    def __len__(self) -> int:
        return len(self._told)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


def map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same lists, tuples and dicts, with the function applied to every leaf."""
    if isinstance(structure, dict):
        return {key: map_structure(function, value) for key, value in structure.items()}
    if isinstance(structure, tuple):
        mapped = [map_structure(function, value) for value in structure]
        return type(structure)(*mapped) if hasattr(structure, "_fields") else tuple(mapped)
    if isinstance(structure, list):
        return [map_structure(function, value) for value in structure]
    return function(structure)


def fetched(structure: Any) -> Any:
    """The same structure with the result in the place of each RemoteValue; waits for them."""
    return map_structure(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, structure)
