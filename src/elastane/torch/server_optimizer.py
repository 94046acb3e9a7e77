"""An optimizer of PyTorch as the parameter servers have it: they apply it, and the one of the script only says how."""

from __future__ import annotations

from typing import Any

from torch import optim

from elastane.model.errors import InvalidInput
from elastane.model.ps import OptimizerKind, OptimizerSpec

_KNOWN = "SGD (with or without momentum), Adagrad and Adam"


def server_optimizer(optimizer: optim.Optimizer, group: dict[str, Any]) -> OptimizerSpec:
    """How the servers are to apply the gradients of a group of parameters. Raises InvalidInput if they cannot."""
    kind = type(optimizer)
    if kind is optim.SGD:
        _refuse(kind, group, maximize=False)
        if group["momentum"] == 0:
            return OptimizerSpec(OptimizerKind.SGD, _lr(group), weight_decay=group["weight_decay"])
        return OptimizerSpec(
            OptimizerKind.MOMENTUM,
            _lr(group),
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
        )
    if kind is optim.Adagrad:
        _refuse(kind, group, maximize=False, lr_decay=0)
        return OptimizerSpec(
            OptimizerKind.ADAGRAD,
            _lr(group),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            initial_accumulator_value=group["initial_accumulator_value"],
        )
    if kind is optim.Adam:
        _refuse(kind, group, maximize=False, amsgrad=False, decoupled_weight_decay=False)
        return OptimizerSpec(
            OptimizerKind.ADAM,
            _lr(group),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            betas=tuple(group["betas"]),
        )
    raise InvalidInput(f"optimizer: parameter servers cannot apply {kind.__name__}; they have {_KNOWN}")


def _lr(group: dict[str, Any]) -> float:
    """The rate that training begins with: a scheduler may have changed the present one already."""
    return float(group.get("initial_lr", group["lr"]))


def _refuse(kind: type, group: dict[str, Any], **only: object) -> None:
    for name, value in only.items():
        if group.get(name, value) != value:
            raise InvalidInput(
                f"optimizer: parameter servers apply {kind.__name__} only with {name}={value}, not {group[name]}"
            )
