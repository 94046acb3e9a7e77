"""Memory by its address, for kernels: rows lie in reserved mappings that numba has no type for."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from elastane.ps.compiled import part

_code: Any = cgutils  # It has no types.

WORD = 4
"""Bytes of a word. Rows lie at multiples of it, so nothing here may be taken to lie at a multiple of 8."""


def _load(result: Any, kind: ir.Type) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            return builder.load(pointer, align=WORD)

        return (result(types.int64), generate) if isinstance(address, types.Integer) else None

    return intrinsic(typed)


def _store(value_type: Any, kind: ir.Type) -> Any:
    def typed(typing_context: Any, address: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.store(arguments[1], pointer, align=WORD)
            return context.get_dummy_value()

        return (types.void(types.int64, value_type), generate) if isinstance(address, types.Integer) else None

    return intrinsic(typed)


load_u32 = _load(types.uint32, ir.IntType(32))
load_i64 = _load(types.int64, ir.IntType(64))
load_f64 = _load(types.float64, ir.DoubleType())
store_u32 = _store(types.uint32, ir.IntType(32))
store_i64 = _store(types.int64, ir.IntType(64))


@part
def get(record: Any, field: Any) -> Any:
    """A field of the record of int64 numbers at an address. (An array would cost more: its references are counted.)"""
    return load_i64(record + 8 * field)


@part
def put(record: Any, field: Any, value: Any) -> Any:
    """Set a field of the record of int64 numbers at an address."""
    store_i64(record + 8 * field, value)


@part
def add(record: Any, field: Any, value: Any) -> Any:
    """Add to a field of the record of int64 numbers at an address."""
    store_i64(record + 8 * field, load_i64(record + 8 * field) + value)


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


def _copy(typing_context: Any, to: Any, source: Any, count: Any) -> Any:
    del typing_context, to, source, count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        byte = ir.IntType(8).as_pointer()
        to, source, count = arguments
        _code.raw_memcpy(builder, builder.inttoptr(to, byte), builder.inttoptr(source, byte), count, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy: Any = intrinsic(_copy)
"""Copy so many bytes to one address from another; they must not overlap."""


def _clear(typing_context: Any, at: Any, count: Any) -> Any:
    del typing_context, at, count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        at, count = arguments
        _code.memset(builder, builder.inttoptr(at, ir.IntType(8).as_pointer()), count, 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


clear: Any = intrinsic(_clear)
"""Set so many bytes at an address to 0."""


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
