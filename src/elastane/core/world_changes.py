"""Why one world follows another, and how long that takes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from elastane.model.ids import NodeName


class WorldCause(enum.StrEnum):
    """Why there is another world."""

    START = "start"
    JOIN = "join"
    LEAVE = "leave"
    REPLACE = "replace"
    CRASH = "crash"
    REPAIR = "repair"


@dataclass(frozen=True)
class WorldChange:
    """Every member has moved to another world, so many seconds after it was published."""

    cause: WorldCause
    seconds: float


def cause_of(before: Sequence[NodeName], after: Sequence[NodeName], *, recover: bool) -> WorldCause:
    """Why a world followed another; `recover` if the one before was broken."""
    gone, come = set(before) - set(after), set(after) - set(before)
    if not before:
        return WorldCause.START
    if recover:
        return WorldCause.CRASH if gone else WorldCause.REPAIR
    if gone and come:
        return WorldCause.REPLACE
    if gone or come:
        return WorldCause.LEAVE if gone else WorldCause.JOIN
    return WorldCause.REPAIR


class WorldChanges:
    """The worlds of one job, one after the other. Time is an argument."""

    def __init__(self, members: Sequence[NodeName] = ()) -> None:
        self._members = tuple(members)
        self._began: float | None = None
        self._recover = False

    def published(self, now: float, *, recover: bool) -> None:
        """A next world was published; one that takes the place of another is part of the same change."""
        self._recover = self._recover or recover
        if self._began is None:
            self._began = now

    def settled(self, members: Sequence[NodeName], now: float) -> WorldChange:
        """Every member has moved."""
        cause = cause_of(self._members, members, recover=self._recover)
        began = now if self._began is None else self._began
        self._members, self._began, self._recover = tuple(members), None, False
        return WorldChange(cause, now - began)
