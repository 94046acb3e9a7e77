"""Memory by its address, for kernels: rows lie in reserved mappings that numba has no type for."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from elastane.ps.compiled import part

WORD = 4
"""Bytes of a word. Rows lie at multiples of it, so nothing here may be taken to lie at a multiple of 8."""


def _load(result: Any, bits: int) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=WORD)

        return (result(types.int64), generate) if isinstance(address, types.Integer) else None

    return intrinsic(typed)


def _store(value_type: Any, bits: int) -> Any:
    def typed(typing_context: Any, address: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=WORD)
            return context.get_dummy_value()

        return (types.void(types.int64, value_type), generate) if isinstance(address, types.Integer) else None

    return intrinsic(typed)


load_u32 = _load(types.uint32, 32)
load_i64 = _load(types.int64, 64)
load_u64 = _load(types.uint64, 64)
store_u32 = _store(types.uint32, 32)
store_i64 = _store(types.int64, 64)


def _prefetch(typing_context: Any, address: Any) -> Any:
    del typing_context, address

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = builder.module.globals.get("llvm.prefetch.p0")
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            function = ir.Function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


prefetch: Any = intrinsic(_prefetch)
"""Ask for the cache line at an address, without waiting for it."""


def _typed_pointer(typing_context: Any, address: Any) -> Any:
    del typing_context, address

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_typed_pointer)
_array: Any = numba.carray  # type: ignore[attr-defined]  # it is public, and documented


@part
def floats(address: Any, count: Any) -> Any:
    """The float32 numbers at an address."""
    return _array(_pointer(address), (count,), np.float32)


@part
def words(address: Any, count: Any) -> Any:
    """The uint32 numbers at an address."""
    return _array(_pointer(address), (count,), np.uint32)


@part
def longs(address: Any, count: Any) -> Any:
    """The int64 numbers at an address."""
    return _array(_pointer(address), (count,), np.int64)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where an array lies. It must live as long as the address is used."""
    address: int = array.__array_interface__["data"][0]
    return address
