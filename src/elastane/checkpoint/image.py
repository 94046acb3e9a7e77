"""Image: how tensors lie in a safetensors file. Its bytes may be laid out in any memory; to copy there is to write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elastane.model.errors import InvalidInput

ALIGNMENT = 64

_CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


@dataclass(frozen=True)
class _Place:
    dtype: torch.dtype
    shape: torch.Size
    start: int
    end: int


class Image:
    """The layout of some tensors. Raises InvalidInput for one of a type that safetensors does not have."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._places: dict[str, _Place] = {}
        start = 0
        # The widest types first: so each tensor lies where its type wants it, with no gaps, which are not allowed.
        for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
            tensor = tensors[name]
            if tensor.dtype not in _CODES or tensor.layout is not torch.strided:
                raise InvalidInput(f'tensor "{name}" of {tensor.dtype}, {tensor.layout} has no form in safetensors')
            end = start + tensor.numel() * tensor.element_size()
            self._places[name] = _Place(tensor.dtype, tensor.shape, start, end)
            start = end
        self._header = self._make_header()
        self.size = len(self._header) + start
        """How many bytes the whole file has."""

    def lay_out(self, memory: Tensor) -> dict[str, Tensor]:
        """Write the header into this memory; the answer is where in it each tensor is to be put."""
        memory[: len(self._header)].copy_(torch.frombuffer(bytearray(self._header), dtype=torch.uint8))
        return {name: self._view(memory, place) for name, place in self._places.items()}

    def _view(self, memory: Tensor, place: _Place) -> Tensor:
        if not math.prod(place.shape):
            return torch.empty(place.shape, dtype=place.dtype)
        base = len(self._header)
        return memory[base + place.start : base + place.end].view(place.dtype).view(place.shape)

    def _make_header(self) -> bytes:
        entries = {
            name: {"dtype": _CODES[place.dtype], "shape": list(place.shape), "data_offsets": [place.start, place.end]}
            for name, place in self._places.items()
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text
