"""The coordinator for TensorFlow: `tf.distribute.coordinator.ClusterCoordinator`, with workers that come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import tensorflow as tf
from tensorflow.python.eager import cancellation
from tensorflow.python.util import nest

from elastane.coordinator.closure_queue import ClosureQueue
from elastane.coordinator.cluster import Cluster
from elastane.coordinator.feed import current_feed
from elastane.model.errors import InvalidInput, RequestRefused
from elastane.tensorflow.closures import TensorClosure, TensorRemote
from elastane.tensorflow.server_definition import ServerDefinition
from elastane.tensorflow.values import PerWorkerDataset, TensorPerWorkerValues, TensorRemoteValue
from elastane.tensorflow.versions import check_inner_names, check_version


class _Connector:
    """Connects stock TensorFlow servers."""

    def __init__(self, definition: ServerDefinition) -> None:
        self._definition = definition

    def connect(self, index: int, address: str) -> TensorRemote:
        self._definition.connect(index, address)
        return self.remote(index)

    def remote(self, index: int) -> TensorRemote:
        return TensorRemote(index, self._definition.coordinator_device)

    def forget(self, index: int) -> None:
        self._definition.forget(index)


class ClusterCoordinator:
    """Schedules functions on the workers of a `ParameterServerStrategy`, and lets workers be added and removed.

    Takes the place of `tf.distribute.coordinator.ClusterCoordinator`: there is one for each strategy, and TensorFlow's
    own code finds this one there. Raises UnsupportedVersion, or InvalidInput for another strategy.
    """

    def __new__(cls, strategy: Any) -> Self:
        existing = getattr(strategy, "_cluster_coordinator", None)
        if existing is not None and not isinstance(existing, cls):
            raise RequestRefused(
                "this strategy has TensorFlow's own coordinator already; make elastane's before any lookup table "
                "or tf.distribute.coordinator.ClusterCoordinator of the strategy"
            )
        return existing if existing is not None else super().__new__(cls)

    def __init__(self, strategy: Any) -> None:
        if getattr(strategy, "_cluster_coordinator", None) is self:
            return
        check_version(tf.__version__)
        check_inner_names()
        if not hasattr(strategy, "_is_parameter_server_strategy_v2"):
            raise InvalidInput(f"the coordinator needs a tf.distribute.ParameterServerStrategy, not {strategy!r}")
        self._strategy = strategy
        self._cancel = cancellation.CancellationManager()
        self._queue: ClosureQueue[TensorClosure] = ClosureQueue()
        definition = ServerDefinition()
        connector = _Connector(definition)
        self._cluster = Cluster(connector, self._queue)
        self._cluster.begin([(index, at, connector.remote(index)) for index, at in definition.workers.items()])
        strategy.extended._used_with_coordinator = True
        strategy._cluster_coordinator = self
        if (feed := current_feed()) is not None:
            feed.attach(self)

    @property
    def strategy(self) -> Any:
        return self._strategy

    @property
    def workers(self) -> dict[str, int]:
        """The addresses of the workers that run, and their indices."""
        return self._cluster.running_workers

    @property
    def stopped_workers(self) -> dict[str, int]:
        """The addresses of the workers that were removed and can be added again, and their indices."""
        return self._cluster.stopped_workers

    @property
    def repeats(self) -> int:
        """How many closures were run again that a lost worker may have done already (at least in part)."""
        return self._queue.repeats

    def schedule(self, fn: Any, args: Any = None, kwargs: Any = None) -> TensorRemoteValue:
        """Let some worker run a `tf.function`. Raises the first error of an earlier one, or InvalidInput."""
        if self._cancel.is_cancelled and not self._queue.failing:
            self._cancel = cancellation.CancellationManager()
        extended = self._strategy.extended
        # Variables of an optimizer are made when a function is traced, which happens in here.
        with self._strategy.scope():
            extended._being_scheduled = True
            try:
                closure = TensorClosure(fn, tuple(args or ()), dict(kwargs or {}), self._cancel)
            finally:
                extended._being_scheduled = False
        value = closure.result()
        self._queue.put(closure)
        return value

    def join(self) -> None:
        """Wait until every scheduled function is done. Raises the first error of one; the rest are then cancelled."""
        self._queue.wait()

    def done(self) -> bool:
        """Whether every scheduled function is done. Raises the first error of one."""
        return self._queue.done()

    def fetch(self, val: Any) -> Any:
        """The same structure, with the result in the place of each RemoteValue; waits for them."""
        return nest.map_structure(lambda leaf: leaf.fetch() if isinstance(leaf, TensorRemoteValue) else leaf, val)

    def create_per_worker_dataset(self, dataset_fn: Callable[[], Any] | tf.data.Dataset) -> PerWorkerDataset:
        """A dataset on each worker, on those too that are added later; `iter` of it goes to `schedule`."""
        return PerWorkerDataset(dataset_fn, self)

    def add_worker(self, address: str) -> int:
        """Let the TensorFlow server at `host:port` take closures; the answer is its index.

        A removed worker goes on at once; a new address is connected, in the place of a lost worker if there is one.
        Raises InvalidInput, RequestRefused if it works already, WorkerUnreachable; then nothing was changed.
        """
        return self._cluster.add(address)

    def remove_worker(self, address: str) -> int:
        """Let a worker finish the closure in its hands and take no more; the answer is its index.

        Raises InvalidInput, RequestRefused if it is not there or is the last that runs; then nothing was changed.
        """
        return self._cluster.remove(address)

    def close(self) -> None:
        """Cancel what is queued and end the workers' threads."""
        self._queue.cancel()
        self._cluster.close()

    def _create_per_worker_resources(self, fn: Any, args: Any = None, kwargs: Any = None) -> TensorPerWorkerValues:
        # TensorFlow's lookup tables call this by name.
        return TensorPerWorkerValues(lambda: fn(*(args or ()), **(kwargs or {})), None)

    def _create_per_worker_variables(self, *_: Any, **__: Any) -> TensorPerWorkerValues:
        raise RequestRefused("per-worker variables are not supported: they would be lost with each removed worker")
