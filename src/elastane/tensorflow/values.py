"""TensorFlow's kinds of values: results of closures, and what each worker has its own of (iterators, tables)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensorflow.python.data.ops.dataset_ops import DatasetV2
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import coordinator_context, remote_value
from tensorflow.python.distribute.coordinator import values as stock_values
from tensorflow.python.framework import errors
from tensorflow.python.util import nest

from elastane.coordinator.values import PerWorkerValues
from elastane.model.errors import RequestRefused


class TensorRemoteValue(remote_value.RemoteValue):  # type: ignore[misc]
    """The result of a closure, copied to this process before anybody sees it: a worker lost later takes nothing away.

    A closure whose worker is lost is run again, and `fetch` waits for that.
    """

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._tensors: Any = None
        self._error: BaseException | None = None

    def get(self) -> Any:
        """Wait for the result, as tensors of this process. Raises the closure's error, or CancelledError."""
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._tensors

    def fetch(self) -> Any:
        """Wait for the result, as NumPy values. Raises the closure's error, or CancelledError."""
        return nest.map_structure(lambda leaf: leaf.numpy() if hasattr(leaf, "numpy") else leaf, self.get())

    def set(self, tensors: Any) -> None:
        self._tensors = tensors
        self._ready.set()

    def set_error(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()

    def cancel(self) -> None:
        text = "The function was cancelled, as another one failed before it. Please schedule it again."
        self.set_error(errors.CancelledError(None, None, text))


class _ByWorkerIndex(Mapping[int, Any]):
    """The values as TensorFlow's own code looks them up: by the index of the worker whose thread is asking."""

    def __init__(self, values: PerWorkerValues[Any]) -> None:
        self._values = values

    def __getitem__(self, index: int) -> Any:
        dispatch = coordinator_context.get_current_dispatch_context()
        if dispatch is None or dispatch.worker_index != index:
            raise RequestRefused(f"a value of worker {index} can be used only in a function that runs on it")
        return self._values.of(index, dispatch.worker.life)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class TensorPerWorkerValues(stock_values.PerWorkerValues):  # type: ignore[misc]
    """A mapping from a worker's index to its own value, made on that worker when it first needs it.

    So a worker that is added later, or comes in the place of a lost one, has one too. It is no `Mapping` by name:
    TensorFlow would take that for a structure of arguments.
    """

    def __init__(self, make: Callable[[], Any], value_spec: Any) -> None:
        self._by_index = PerWorkerValues(make)
        self._values = _ByWorkerIndex(self._by_index)
        self.value_spec = value_spec

    @property
    def _type_spec(self) -> Any:
        return stock_values.PerWorkerValuesTypeSpec(self.value_spec, type(self))

    def of(self, index: int, life: object) -> Any:
        """The value of a worker; called by its own thread only."""
        return self._by_index.of(index, life)

    def __getitem__(self, index: int) -> Any:
        return self._by_index[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_index)

    def __len__(self) -> int:
        return len(self._by_index)

    def __bool__(self) -> bool:
        return True  # It stands for every worker, those to come too, however many have theirs by now.

    def keys(self) -> list[int]:
        return list(self._by_index)

    def items(self) -> list[tuple[int, Any]]:
        return list(self._by_index.items())

    def values(self) -> list[Any]:
        return list(self._by_index.values())


class PerWorkerIterator(TensorPerWorkerValues):
    """An iterator for each worker, for functions that are scheduled."""

    def __next__(self) -> Any:
        raise RequestRefused("the iterators are on the workers: pass this to `schedule`, and call `next` in there")


class PerWorkerDataset:
    """A dataset for each worker; `iter` of it may be passed to `schedule`."""

    def __init__(self, dataset_or_fn: DatasetV2 | Callable[[], Any], coordinator: Any) -> None:
        # TensorFlow's own class traces the function, or writes a dataset as a graph; its iterators are not used.
        stock = stock_values.get_per_worker_dataset(dataset_or_fn, coordinator)
        self._dataset_fn = stock._dataset_fn
        self._strategy = coordinator.strategy

    @property
    def element_spec(self) -> Any:
        return self._dataset_fn.structured_outputs.element_spec

    def build(self) -> TensorPerWorkerValues:
        """The datasets themselves, one on each worker."""
        return TensorPerWorkerValues(self._dataset_fn, self._dataset_fn.structured_outputs._type_spec)

    def __iter__(self) -> PerWorkerIterator:
        spec = input_lib.get_iterator_spec_from_dataset(self._strategy, self._dataset_fn.structured_outputs)
        return PerWorkerIterator(lambda: iter(self._dataset_fn()), spec)
