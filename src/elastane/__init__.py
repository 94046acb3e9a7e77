"""elastane: elastic deep-learning training. `join()` and `Job` are all that a training script needs to import."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane.core.metrics import AUC, Accuracy, Mean, Metric
    from elastane.job import Job, join
    from elastane.worker.evaluation import Evaluation

__all__ = ["AUC", "Accuracy", "Evaluation", "Job", "Mean", "Metric", "__version__", "join"]
__version__ = "0.1.0"


_HOMES = {
    "Job": "elastane.job",
    "join": "elastane.job",
    "Evaluation": "elastane.worker.evaluation",
    **dict.fromkeys(("AUC", "Accuracy", "Mean", "Metric"), "elastane.core.metrics"),
}


def __getattr__(name: str) -> object:
    # Loaded on first use, so that `import elastane` costs next to nothing.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
