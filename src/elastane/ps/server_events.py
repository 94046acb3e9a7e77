"""What a parameter server tells the one who started it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastane.core.owners import ServerId


@dataclass(frozen=True)
class Replicated:
    """`to` has all of the bucket, and every push is acknowledged only after it has it: it is the backup now."""

    bucket: int
    to: ServerId
    epoch: int


@dataclass(frozen=True)
class HandedOver:
    """`to` owns the bucket now; `backup` is this server, if it keeps its copy."""

    bucket: int
    to: ServerId
    epoch: int
    backup: ServerId | None = None


@dataclass(frozen=True)
class Took:
    """This server owns the bucket now, by a hand-over; `backup` is the one before, if it keeps its copy."""

    bucket: int
    epoch: int
    backup: ServerId | None = None


@dataclass(frozen=True)
class ReplicationFailed:
    """The copy was given up; nothing has changed."""

    bucket: int
    to: ServerId
    reason: str


@dataclass(frozen=True)
class LinkLost:
    """The link to another server broke: the buckets that have a copy there stand still until the master decides."""

    peer: ServerId
    reason: str


@dataclass(frozen=True)
class SteppedDown:
    """Another one owns the bucket by a newer epoch; this server's copy is gone."""

    bucket: int
    epoch: int


@dataclass(frozen=True)
class PeerRefused:
    """A connection was closed for what came on it."""

    peer: str
    reason: str


ServerEvent = Replicated | HandedOver | Took | ReplicationFailed | LinkLost | SteppedDown | PeerRefused
OnEvent = Callable[[ServerEvent], None]
"""Called from any thread; must not wait."""
