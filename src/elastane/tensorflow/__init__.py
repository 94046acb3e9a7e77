"""TensorFlow: the coordinator on stock TensorFlow servers.

`ClusterCoordinator` takes the place of TensorFlow's own: the same calls, and workers may be added and removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane.tensorflow.coordinator import ClusterCoordinator

__all__ = ["ClusterCoordinator"]


def __getattr__(name: str) -> object:
    # TensorFlow takes seconds to import; who only asks for this package's name should not wait for it.
    if name == "ClusterCoordinator":
        from elastane.tensorflow.coordinator import ClusterCoordinator

        return ClusterCoordinator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
