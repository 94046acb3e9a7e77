"""The generators of random numbers that a training script may use: PyTorch's, numpy's and Python's."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elastane.torch.codec import from_plain, to_plain


@dataclass(frozen=True)
class RandomStates:
    """Their states at one moment."""

    of_torch: Tensor
    of_gpu: Tensor | None
    of_numpy: Any
    of_python: Any

    @classmethod
    def now(cls, device: torch.device) -> RandomStates:
        gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), gpu, np.random.get_state(), random.getstate())

    def plain(self) -> Any:
        """The states as JSON."""
        kind, keys, *others = self.of_numpy
        return to_plain(
            {
                "torch": self.of_torch,
                "gpu": self.of_gpu,
                "numpy": (kind, torch.from_numpy(keys.view(np.int32).copy()), *others),
                "python": self.of_python,
            }
        )


def go_on_with(plain: Any, device: torch.device) -> None:
    """Let the generators go on from states that `plain` gave."""
    states = from_plain(plain)
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and states["gpu"] is not None:
        torch.cuda.set_rng_state(states["gpu"], device)
    kind, keys, *others = states["numpy"]
    np.random.set_state((kind, keys.numpy().view(np.uint32), *others))
    random.setstate(states["python"])
