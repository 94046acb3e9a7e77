"""The single-client coordinator: closures, and the workers that come and go to run them. Free of frameworks.

`ClusterCoordinator` here runs Python functions on elastane's own worker servers; `elastane.tensorflow` has the one for
TensorFlow's. Threads stand only around the rules of `core/closures.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane.coordinator.coordinator import ClusterCoordinator, WorkerCluster
    from elastane.coordinator.running import current_worker_index, running_closure
    from elastane.coordinator.values import PerWorkerReference, PerWorkerValues, RemoteValue

__all__ = [
    "ClusterCoordinator",
    "PerWorkerReference",
    "PerWorkerValues",
    "RemoteValue",
    "WorkerCluster",
    "current_worker_index",
    "running_closure",
]

_HOMES = {
    **dict.fromkeys(("ClusterCoordinator", "WorkerCluster"), "elastane.coordinator.coordinator"),
    **dict.fromkeys(("current_worker_index", "running_closure"), "elastane.coordinator.running"),
    **dict.fromkeys(("PerWorkerReference", "PerWorkerValues", "RemoteValue"), "elastane.coordinator.values"),
}


def __getattr__(name: str) -> object:
    # Loaded on first use: the queue and the workers serve TensorFlow too, without cloudpickle.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
