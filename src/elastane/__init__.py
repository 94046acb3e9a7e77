"""elastane: elastic deep-learning training. `join()` and `Job` are all that a training script needs to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane.job import Job, join

__all__ = ["Job", "__version__", "join"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded on first use, so that `import elastane` costs next to nothing.
    if name in ("Job", "join"):
        from elastane import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
