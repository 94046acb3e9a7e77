"""What a trainer is told beside its model and optimizer. `job.trainer` says what each means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from elastane.checkpoint.policy import SavePolicy
from elastane.model.errors import InvalidInput


@dataclass(frozen=True)
class TrainerSettings:
    scheduler: Any | None = None
    clip_grad_norm: float | None = None
    global_batch_size: int | None = None
    grad_scaler: torch.amp.GradScaler | None = None
    deterministic: bool = False
    backend: str = "nccl"
    saves: SavePolicy | None = None
    rehearse: Callable[[], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise InvalidInput(f"global_batch_size: {self.global_batch_size} is below 1")
        if self.deterministic and self.global_batch_size is None:
            raise InvalidInput("deterministic: needs a global_batch_size, whose parts are the virtual ranks")
