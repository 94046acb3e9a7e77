"""Which TensorFlow the coordinator may be used with.

TensorFlow has no public way to change a running cluster. What the coordinator uses instead are a few inner names, which
may change with any minor version: it refuses one that it was not tested with, before anything is connected.
"""

from __future__ import annotations

from elastane.model.errors import UnsupportedVersion

TESTED = ("2.21",)


def check_version(version: str) -> None:
    """Raises UnsupportedVersion, with what to install, for a TensorFlow that was not tested."""
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise UnsupportedVersion(
            f"TensorFlow {version} is installed; elastane's coordinator uses inner parts of TensorFlow and was tested "
            f"with {', '.join(TESTED)} only: pip install 'elastane[tensorflow]'"
        )


def check_inner_names() -> None:
    """Raises UnsupportedVersion if a tested version lacks an inner name after all (a patched build)."""
    from tensorflow.python.distribute.coordinator import coordinator_context, values
    from tensorflow.python.eager import cancellation, context, executor

    needed = (
        (context.Context, "update_server_def"),
        (context, "get_server_def"),
        (context, "executor_scope"),
        (executor, "new_executor"),
        (cancellation, "CancellationManager"),
        (coordinator_context, "with_dispatch_context"),
        (values, "get_per_worker_dataset"),
        (values, "PerWorkerValues"),
    )
    for owner, name in needed:
        if not hasattr(owner, name):
            raise UnsupportedVersion(f"this build of TensorFlow has no {owner.__name__}.{name}, which is needed here")
