"""Times as Kubernetes writes them, from and to seconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(at: float) -> str:
    """A moment as Kubernetes writes it, to the second."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(at: float) -> str:
    """A moment as a Lease has it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(text: str) -> float:
    """What `stamp` made, in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()
