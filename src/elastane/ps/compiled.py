"""How kernels are compiled: without the GIL, once for each version of their sources, with few types.

numba keeps what it has compiled beside the file of each function, and looks at the age of that file alone; but our
kernels are put together from several files. So their place in the cache is named after the content of all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])

_config: Any = numba.config
_HERE = Path(__file__).parent


def part(function: _Function) -> _Function:
    """A function that kernels are put together from."""
    return cast("_Function", numba.njit(nogil=True, error_model="numpy")(function))


def kernel(function: _Function) -> _Function:
    """A function that Python calls. It takes numbers, addresses, and arrays of one type each: so it compiles once."""
    place = _place(_config.CACHE_DIR)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        # Each process compiles for itself: numba's own choice of another place knows the age of one file alone.
        return part(function)
    with _kept_in(place):
        return cast("_Function", numba.njit(nogil=True, cache=True, error_model="numpy")(function))


@contextlib.contextmanager
def _kept_in(place: Path) -> Iterator[None]:
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(place)
    try:
        yield
    finally:
        _config.CACHE_DIR = before


def _place(given: str) -> Path:
    if given:
        folder = Path(given)
    elif os.access(_HERE, os.W_OK):
        folder = _HERE / "__pycache__"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "elastane"
    return folder / f"kernels-{_VERSION}"


def _version() -> str:
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in sorted(_HERE.glob("*.py")):
        source = path.read_bytes()
        if b"elastane.ps.compiled" in source or b"elastane.ps.addresses" in source:
            digest.update(source)
    return digest.hexdigest()


_VERSION = _version()
