"""Bytes to messages and back: parse strictly, or refuse."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from elastane.model.errors import MalformedMessage

MAX_MESSAGE_BYTES = 8 * 2**20
"""The largest message either side accepts; an index list of `model.dataset.MAX_INDICES` fits."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """Read one message; raise MalformedMessage for truncated or random bytes and for fields that are not known.

    Random bytes often parse as fields of unknown numbers, so unknown fields are refused, at any depth: dropping them
    must not make the message shorter.
    """
    try:
        message = kind.FromString(data)
    except DecodeError:
        raise MalformedMessage(f"{len(data)} bytes are not a {kind.DESCRIPTOR.name}") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise MalformedMessage(f"a {kind.DESCRIPTOR.name} with fields that this version does not know")
    return message
