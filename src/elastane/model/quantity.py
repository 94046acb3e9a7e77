"""Quantities with their units inside the type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from elastane.model.errors import InvalidInput

_UNITS = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,30})?)([A-Za-z]*)")
_MIB = 2**20


@dataclass(frozen=True, order=True)
class Memory:
    """An amount of memory or disk: bytes inside; `256Mi` or a plain number of MiB at the edges."""

    bytes: int

    MOST: ClassVar[int] = 2**60

    @classmethod
    def parse(cls, value: str | int) -> Memory:
        """Read `256Mi`, `1.5Gi`, `2G`, or a whole number of MiB; raise InvalidInput for anything else."""
        allowed = "write a quantity such as 256Mi or 2Gi, or a whole number of MiB"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidInput(f"{value!r} is not an amount of memory; {allowed}")
        if isinstance(value, int) or re.fullmatch("[0-9]{1,18}", value):
            amount = int(value) * _MIB
        else:
            match = _QUANTITY.fullmatch(value)
            if match is None or match[2] not in _UNITS:
                raise InvalidInput(f'"{value}" is not an amount of memory; {allowed}')
            amount = int(Decimal(match[1]) * _UNITS[match[2]])
        if not 0 < amount <= cls.MOST:
            raise InvalidInput(f'"{value}" is not an amount of memory above zero and below an exbibyte; {allowed}')
        return cls(amount)

    @classmethod
    def mib(cls, amount: int) -> Memory:
        return cls(amount * _MIB)

    def __mul__(self, factor: int) -> Memory:
        return Memory(self.bytes * factor)

    def __str__(self) -> str:
        for unit in ("Ti", "Gi", "Mi", "Ki"):
            if self.bytes % _UNITS[unit] == 0:
                return f"{self.bytes // _UNITS[unit]}{unit}"
        return f"{Decimal(self.bytes) / _MIB:f}Mi"
