"""Batches of tensors."""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate


def collate(samples: list[Any]) -> Any:
    """PyTorch's own rule, as its DataLoader applies it."""
    return default_collate(samples)
