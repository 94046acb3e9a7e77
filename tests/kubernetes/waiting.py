"""Waiting for what a cluster will do, without guessing how long it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotInTime(AssertionError):
    """What was waited for did not come about."""


class NotYet(Exception):
    """Raised by a check that cannot tell yet; it is asked again."""


def eventually(check: Callable[[], T], timeout_s: float, what: str, poll_s: float = 0.2) -> T:
    """Call `check` until it returns something true, and return that.

    An assertion that fails in `check`, and `NotYet`, are a "no"; other errors pass through. Raises `NotInTime`, which
    says what was seen last.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            value = check()
        except (AssertionError, NotYet) as error:
            seen = str(error)
        else:
            if value:
                return value
            seen = repr(value)
        if time.monotonic() > deadline:
            raise NotInTime(f"{what}: not within {timeout_s:g} s; seen last: {seen}")
        time.sleep(poll_s)
