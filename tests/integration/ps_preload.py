"""What the server of forks imports: the kernels are then there in every process that it forks."""

from __future__ import annotations

from elastane.ps import keys
from elastane.ps.store import warm_up
from tests.integration import ps_driver

__all__ = ["ps_driver"]

warm_up()
keys.warm_up()
