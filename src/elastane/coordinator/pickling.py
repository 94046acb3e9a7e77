"""Closures as bytes. Only what an authenticated peer sent may come to `loaded`: unpickling runs what it is told to."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from elastane.coordinator.values import PerWorkerReference, RemoteValue
from elastane.model.errors import ClosureFailed, InvalidInput


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves out values that each worker has its own of, and notes which."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.references: list[PerWorkerReference] = []

    def persistent_id(self, obj: object) -> int | None:
        if isinstance(obj, PerWorkerReference):
            self.references.append(obj)
            return obj.number
        if isinstance(obj, RemoteValue):
            raise InvalidInput("a RemoteValue cannot be an argument of `schedule`; pass what its fetch() returns")
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, own_value: Callable[[int], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._own_value = own_value

    def persistent_load(self, pid: Any) -> Any:
        return self._own_value(pid)


def dumped(call: tuple[Any, ...]) -> tuple[bytes, tuple[PerWorkerReference, ...]]:
    """A closure's bytes, and the per-worker values that it uses. Raises InvalidInput if it cannot travel."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(call)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidInput(f"the function or its arguments cannot be sent to a worker: {error}") from error
    return file.getvalue(), tuple(pickler.references)


def loaded(data: bytes, own_value: Callable[[int], Any]) -> Any:
    """What these bytes stand for, with `own_value` of each number in the place of per-worker values."""
    return _Unpickler(data, own_value).load()


def dump_error(error: BaseException) -> bytes:
    """An error with its traceback as text, since tracebacks do not travel."""
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        data: bytes = cloudpickle.dumps((error, text))
        pickle.loads(data)  # noqa: S301  # Some can be written and not read again; our own bytes.
    except Exception:  # noqa: BLE001  # whatever the error's own class does
        data = pickle.dumps((ClosureFailed(f"{type(error).__name__}: {error}"), text))
    return data


def load_error(data: bytes) -> BaseException:
    """The error, with the traceback of the worker as its cause."""
    error, text = pickle.loads(data)  # noqa: S301  # from an authenticated peer
    error.__cause__ = ClosureFailed(f"on the worker:\n{text}")
    return error  # type: ignore[no-any-return]
