"""How the rows of an embedding are to be trained: one function for each optimizer that parameter servers have.

The settings have the names and the defaults that torch.optim gives them. One out of bounds raises InvalidInput.
"""

from __future__ import annotations

from elastane.model.ps import OptimizerKind, OptimizerSpec


def sgd(lr: float, *, weight_decay: float = 0.0) -> OptimizerSpec:
    """Stochastic gradient descent."""
    return OptimizerSpec(OptimizerKind.SGD, lr, weight_decay=weight_decay)


def momentum(
    lr: float, *, momentum: float = 0.9, dampening: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> OptimizerSpec:
    """Stochastic gradient descent with momentum."""
    return OptimizerSpec(
        OptimizerKind.MOMENTUM,
        lr,
        momentum=momentum,
        dampening=dampening,
        nesterov=nesterov,
        weight_decay=weight_decay,
    )


def adagrad(
    lr: float, *, initial_accumulator_value: float = 0.0, eps: float = 1e-10, weight_decay: float = 0.0
) -> OptimizerSpec:
    """Adagrad: each number of a row has a sum of squares of its own."""
    return OptimizerSpec(
        OptimizerKind.ADAGRAD,
        lr,
        initial_accumulator_value=initial_accumulator_value,
        eps=eps,
        weight_decay=weight_decay,
    )


def rowwise_adagrad(
    lr: float, *, initial_accumulator_value: float = 0.0, eps: float = 1e-10, weight_decay: float = 0.0
) -> OptimizerSpec:
    """Adagrad with one sum of squares for a whole row: about half the memory."""
    return OptimizerSpec(
        OptimizerKind.ROWWISE_ADAGRAD,
        lr,
        initial_accumulator_value=initial_accumulator_value,
        eps=eps,
        weight_decay=weight_decay,
    )


def adam(
    lr: float, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> OptimizerSpec:
    """Adam: a row's bias is corrected by the number of its own updates."""
    return OptimizerSpec(OptimizerKind.ADAM, lr, betas=betas, eps=eps, weight_decay=weight_decay)


def ftrl(
    lr: float, *, l1: float = 0.0, l2: float = 0.0, beta: float = 1.0, initial_accumulator_value: float = 0.0
) -> OptimizerSpec:
    """Follow the regularized leader."""
    return OptimizerSpec(
        OptimizerKind.FTRL, lr, l1=l1, l2=l2, beta=beta, initial_accumulator_value=initial_accumulator_value
    )
