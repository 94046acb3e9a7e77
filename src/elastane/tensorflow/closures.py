"""A scheduled function with its arguments, and where it is run."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import coordinator_context, remote_value
from tensorflow.python.eager import context, executor
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.framework import errors, ops
from tensorflow.python.ops import array_ops
from tensorflow.python.util import nest

from elastane.coordinator.worker import Interrupted
from elastane.model.errors import InvalidInput, WorkerLost
from elastane.tensorflow.values import TensorPerWorkerValues, TensorRemoteValue

_MOST_INTERRUPTIONS = 3
# Between two servers a connection may break and be there again; that is told as one of these.
_UNLUCKY = (errors.UnavailableError, errors.AbortedError, errors.CancelledError)


class TensorClosure:
    """A traced function and its arguments; it can be run any number of times."""

    __slots__ = ("__weakref__", "_args", "_function", "_kwargs", "_per_worker", "_value", "cancel", "interruptions")

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cancel: Any) -> None:
        leaves = nest.flatten((args, kwargs))
        if any(isinstance(leaf, remote_value.RemoteValue) for leaf in leaves):
            raise InvalidInput("a RemoteValue cannot be an argument of `schedule`; pass what its fetch() returns")
        self._per_worker = any(isinstance(leaf, TensorPerWorkerValues) for leaf in leaves)
        if isinstance(function, polymorphic_function.Function):
            if self._per_worker:
                spec_args, spec_kwargs = nest.map_structure(_spec, (args, kwargs))
                function = function.get_concrete_function(*spec_args, **spec_kwargs)
            else:
                function = function.get_concrete_function(*args, **kwargs)
        elif not isinstance(function, concrete_function.ConcreteFunction):
            raise InvalidInput(f"schedule takes a tf.function, not {function!r}: decorate it with @tf.function")
        self.cancel = cancel
        self._function = cancel.get_cancelable_function(function)
        self._args = args
        self._kwargs = kwargs
        self._value: weakref.ref[TensorRemoteValue] | None = None
        self.interruptions = 0

    def result(self) -> TensorRemoteValue:
        """The value that this closure will bring. Nothing is copied from the worker once nobody holds it."""
        value = TensorRemoteValue()
        self._value = weakref.ref(value)
        return value

    def run_on(self, worker: TensorRemote, home: str) -> None:
        """Run it on a worker, and copy its result to this process."""
        args, kwargs = self._args, self._kwargs
        with (
            ops.device(worker.device),
            context.executor_scope(worker.executor),
            coordinator_context.with_dispatch_context(worker),
        ):
            if self._per_worker:
                args, kwargs = nest.map_structure(lambda leaf: _of(leaf, worker), (args, kwargs))
            outputs = self._function(*args, **kwargs)
        value = self._held()
        if value is not None:
            with ops.device(home):
                value.set(nest.map_structure(_copied, outputs))

    def failed(self, error: BaseException) -> None:
        value = self._held()
        if value is not None:
            value.set_error(error)

    def cancelled(self) -> None:
        value = self._held()
        if value is not None:
            value.cancel()

    def _held(self) -> TensorRemoteValue | None:
        return None if self._value is None else self._value()


class TensorRemote:
    """A TensorFlow server as a worker's thread uses it. A server that is connected anew is another one."""

    def __init__(self, index: int, home: str) -> None:
        self.worker_index = index
        self.life = object()
        self.device = f"/job:worker/replica:0/task:{index}"
        self.executor = executor.new_executor(enable_async=False)
        self._home = home

    def run(self, closure: TensorClosure) -> None:
        """Run a closure. Raises WorkerLost, Interrupted, or the error of the user's function."""
        try:
            closure.run_on(self, self._home)
        except errors.OpError as error:
            judged = self._judged(error, closure)
            if judged is error:
                closure.cancel.start_cancel()
                raise
            raise judged from error
        except BaseException:
            closure.cancel.start_cancel()
            raise

    def answers(self) -> bool:
        """Whether the server that was connected is there: one started anew at its address does not know us."""
        try:
            with ops.device(self.device), context.executor_scope(self.executor):
                tf.raw_ops.NoOp()
        except errors.OpError:
            return False
        return True

    def close(self) -> None:
        """Let go of the worker; its connection is the runtime's, until the next change of the cluster."""
        self.executor.clear_error()  # It would be told again, to nobody, when the executor is collected.

    def _judged(self, error: BaseException, closure: TensorClosure) -> BaseException:
        """What an error means: the worker's loss, bad luck, or a fault of the function."""
        if not self.answers():
            return WorkerLost(f"{self.device}: {str(error).splitlines()[0] if str(error) else error!r}")
        if closure.cancel.is_cancelled and isinstance(error, errors.CancelledError):
            return Interrupted("cancelled, as another closure failed")
        if isinstance(error, _UNLUCKY) and closure.interruptions < _MOST_INTERRUPTIONS:
            closure.interruptions += 1
            return Interrupted(str(error))
        return error


def _spec(leaf: Any) -> Any:
    return leaf.value_spec if isinstance(leaf, TensorPerWorkerValues) else leaf


def _of(leaf: Any, worker: TensorRemote) -> Any:
    return leaf.of(worker.worker_index, worker.life) if isinstance(leaf, TensorPerWorkerValues) else leaf


def _copied(leaf: Any) -> Any:
    return None if leaf is None else array_ops.identity(leaf)
