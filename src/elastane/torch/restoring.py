"""Putting a checkpoint back into a replica: all of it, or nothing if it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from elastane.checkpoint.files import Checkpoint
from elastane.model.errors import CheckpointMisfit
from elastane.torch.replica import Replica
from elastane.torch.snapshot import is_extra, kinds, parameter_names


def restore(replica: Replica, checkpoint: Checkpoint) -> None:
    """Make the replica what it was. Raises CheckpointMisfit, and then has changed nothing."""
    rest: Any = checkpoint.manifest.rest
    model, optimizer = checkpoint.tensors("model"), checkpoint.tensors("optimizer")
    names = parameter_names(replica)
    here: dict[str, Tensor] = dict(zip(names, replica.parameters, strict=True))
    here |= dict(replica.model.named_buffers())
    there = model | {name: optimizer[name] for name in optimizer if is_extra(name) and "." not in name}
    _compare(checkpoint, here, there)
    _compare_settings(checkpoint, replica)
    units = [rest["units"][name] | {"index": index} for index, name in enumerate(names)]
    with replica.changing():
        for name, unit in zip(names, units, strict=True):
            parameter, *state = replica.open_unit(unit)
            parameter.copy_(there[name])
            for key, target in zip(unit["keys"], state, strict=True):
                target.copy_(optimizer[f"{name}.{key}"])
        for name, buffer in replica.model.named_buffers():
            buffer.detach().copy_(model[name])
        replica.load_small(rest["small"])


def _compare(checkpoint: Checkpoint, here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> None:
    for name in sorted(here.keys() | there.keys()):
        if name not in there:
            _refuse(checkpoint, f'tensor "{name}" of the model, {_form(here[name])}, is not in it')
        if name not in here:
            _refuse(checkpoint, f'its tensor "{name}", {_form(there[name])}, is not in the model')
        if (here[name].shape, here[name].dtype) != (there[name].shape, there[name].dtype):
            _refuse(checkpoint, f'tensor "{name}" is {_form(there[name])} there and {_form(here[name])} in the model')


def _compare_settings(checkpoint: Checkpoint, replica: Replica) -> None:
    rest: Any = checkpoint.manifest.rest
    now = kinds(replica)
    for what, kind in rest["kinds"].items():
        if kind != now[what]:
            _refuse(checkpoint, f"it was saved with {what} {kind}, not {now[what]}")


def _refuse(checkpoint: Checkpoint, why: str) -> None:
    raise CheckpointMisfit(f"checkpoint {checkpoint.path} does not fit: {why}")


def _form(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
