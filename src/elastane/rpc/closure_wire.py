"""The messages of a coordinator and its workers, checked on the way in."""

from __future__ import annotations

import re

from elastane.model.errors import MalformedMessage
from elastane.rpc.protos import node_pb2 as pb

MOST_WORKERS = 10_000
_ADDRESS = re.compile(r"^[A-Za-z0-9.:_\[\]-]{1,255}:[0-9]{1,5}$")


def checked_service(message: pb.ServeClosures) -> pb.ServeClosures:
    """Raises MalformedMessage."""
    _check(message.address)
    return message


def checked_use(message: pb.Coordinate) -> pb.Coordinate:
    """Raises MalformedMessage."""
    if len(message.using) > MOST_WORKERS:
        raise MalformedMessage(f"a coordinator of {len(message.using)} workers; {MOST_WORKERS} are the most")
    for address in message.using:
        _check(address)
    return message


def _check(address: str) -> None:
    if not _ADDRESS.match(address):
        raise MalformedMessage(f'worker address "{address[:100]}" is not host:port')
