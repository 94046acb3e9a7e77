"""How facts are written for people: numbers with their units, and any text so that it can do no harm.

Names, log lines and errors come from anywhere. The page puts them in as text, never as markup; here the characters that
would act on a reader's screen without being seen are made visible.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

NOTHING = "–"  # noqa: RUF001  # as a table shows that there is no value

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def visible(text: str) -> str:
    """The same text, with characters that control a screen or turn the writing round shown as what they are."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if unicodedata.category(character) in _UNSEEN:
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return character


def log_line(line: str) -> str:
    """A line that a node printed: without its colours, and of a line that was written over, what was left."""
    plain = _COLOURS.sub("", line.rstrip("\r\n"))
    return visible(plain.rsplit("\r", 1)[-1].replace("\t", "    "))


def visible_all(value: Any) -> Any:
    """The same JSON value, with all its texts made visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): visible_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [visible_all(item) for item in value]
    return value


def count(number: float) -> str:
    """`12,345`, or from a hundred thousand on `123k`, `1.2M`."""
    for limit, unit, factor in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e5, "k", 1e3)):
        if abs(number) >= limit:
            return f"{number / factor:,.3g}{unit}" if number / factor < 1000 else f"{number / factor:,.0f}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:,.3g}"


def speed(number: float | None) -> str:
    return NOTHING if number is None else count(number)


def size(n_bytes: float) -> str:
    """`512 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.3g} {unit}" if n_bytes < 10 else f"{n_bytes:,.0f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.1f} TiB"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def milliseconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"
