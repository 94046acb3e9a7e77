"""elastane: elastic deep-learning training. `join()` and `Job` are all that a training script needs to import.

`Client` is for programs that submit jobs and follow them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane.client import Client
    from elastane.core.metrics import AUC, Accuracy, Mean, Metric
    from elastane.job import Job, join
    from elastane.model.ps import Initializer, InitializerKind
    from elastane.model.row_optimizers import adagrad, adam, ftrl, momentum, rowwise_adagrad, sgd
    from elastane.worker.evaluation import Evaluation

__all__ = [
    "AUC",
    "Accuracy",
    "Client",
    "Evaluation",
    "Initializer",
    "InitializerKind",
    "Job",
    "Mean",
    "Metric",
    "__version__",
    "adagrad",
    "adam",
    "ftrl",
    "join",
    "momentum",
    "rowwise_adagrad",
    "sgd",
]
__version__ = "0.1.0"


_HOMES = {
    "Client": "elastane.client",
    "Job": "elastane.job",
    "join": "elastane.job",
    "Evaluation": "elastane.worker.evaluation",
    **dict.fromkeys(("Initializer", "InitializerKind"), "elastane.model.ps"),
    **dict.fromkeys(("adagrad", "adam", "ftrl", "momentum", "rowwise_adagrad", "sgd"), "elastane.model.row_optimizers"),
    **dict.fromkeys(("AUC", "Accuracy", "Mean", "Metric"), "elastane.core.metrics"),
}


def __getattr__(name: str) -> object:
    # Loaded on first use, so that `import elastane` costs next to nothing.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
