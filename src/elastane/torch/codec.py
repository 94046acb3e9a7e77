"""Plain values as JSON and back, exactly: the settings and counters beside the tensors. Nothing is pickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TAG = "__elastane__"


class NotPlain(Exception):
    """A value that has no plain form."""


def to_plain(value: Any) -> Any:
    """The JSON form of a value. Raises NotPlain."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [to_plain(item) for item in value]}
    if isinstance(value, dict):
        items = [[to_plain(key), to_plain(item)] for key, item in value.items()]
        return {_TAG: "dict", "items": items}
    if isinstance(value, Tensor):
        return {
            _TAG: "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
            "shape": list(value.shape),
            "bytes": bytes_of(value).numpy().tobytes().hex(),
        }
    raise NotPlain(f"{type(value).__name__} {value!r:.80}")


def from_plain(value: Any) -> Any:
    """The value of a JSON form that `to_plain` made."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value[_TAG]:
        case "tuple":
            return tuple(from_plain(item) for item in value["items"])
        case "dict":
            return {_key(from_plain(key)): from_plain(item) for key, item in value["items"]}
        case "tensor":
            data = torch.frombuffer(bytearray.fromhex(value["bytes"]), dtype=dtype_of(value["dtype"]))
            return data.reshape(value["shape"]).to(value["device"])
        case other:
            raise NotPlain(f"unknown form {other!r}")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name as `str(dtype)` has it. Raises NotPlain."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise NotPlain(f"unknown dtype {name!r}")
    return dtype


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in host memory; the very same memory where that is possible."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
