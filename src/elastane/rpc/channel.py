"""The client side: a channel to one master or Brain, with the token on every call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from elastane.model.errors import BrainUnreachable, ElastaneError, MalformedMessage, MasterUnreachable, RequestRefused
from elastane.rpc.messages import CHANNEL_OPTIONS, parse

R = TypeVar("R", bound=Message)

# gRPC's own retries, with its own jitter. Every unary method here may be repeated without harm.
_RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 3,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


CERTIFIED_NAME = "elastane-master"
"""The name in every master's certificate: who it is for is said by its key, not by its name."""


class Channel:
    """Calls to one server at `address`; every error comes out as an ElastaneError.

    With a certificate (PEM) only the server that shows this one gets the token. Without, it is in the clear.
    """

    def __init__(
        self,
        address: str,
        token: str,
        who: str,
        unreachable: type[ElastaneError],
        certificate: str | None = None,
    ) -> None:
        self._who = who
        self._unreachable = unreachable
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),)
        # A proxy of the environment is for the web, not for a server on this machine.
        options = [
            *CHANNEL_OPTIONS,
            ("grpc.service_config", _RETRIES),
            ("grpc.enable_http_proxy", 0),
            # A server that died is back soon, at the same address.
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if certificate is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            options.append(("grpc.ssl_target_name_override", CERTIFIED_NAME))
            self._channel = grpc.aio.secure_channel(
                address, grpc.ssl_channel_credentials(certificate.encode()), options
            )

    async def close(self) -> None:
        await self._channel.close()

    async def call(
        self, service: ServiceDescriptor, method: str, request: Message, answer: type[R], timeout_s: float = 10.0
    ) -> R:
        """Make a unary call within a deadline."""
        multicallable = self._channel.unary_unary(f"/{service.full_name}/{method}", request_serializer=_serialize)
        try:
            return parse(answer, await multicallable(request, timeout=timeout_s, metadata=self._metadata))
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    async def watch(
        self, service: ServiceDescriptor, method: str, request: Message, answer: type[R]
    ) -> AsyncIterator[R]:
        """Make a call with a streaming answer; it has no deadline."""
        multicallable = self._channel.unary_stream(f"/{service.full_name}/{method}", request_serializer=_serialize)
        try:
            async for data in multicallable(request, metadata=self._metadata):
                yield parse(answer, data)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    def open_stream(self, service: ServiceDescriptor, method: str) -> Any:
        """Open a stream both ways; messages out are serialized, those in are left as bytes for `parse`."""
        multicallable = self._channel.stream_stream(f"/{service.full_name}/{method}", request_serializer=_serialize)
        return multicallable(metadata=self._metadata)

    def _translated(self, error: grpc.aio.AioRpcError) -> ElastaneError:
        details = error.details() or error.code().name
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return self._unreachable(f"{self._who} at {self.address} does not answer ({details})")
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return MalformedMessage(details)
        return RequestRefused(details)


class MasterChannel(Channel):
    """Calls to a master; one that does not answer is a MasterUnreachable."""

    def __init__(self, address: str, token: str, certificate: str | None = None) -> None:
        super().__init__(address, token, "the master", MasterUnreachable, certificate)


class BrainChannel(Channel):
    """Calls to a Brain; one that does not answer is a BrainUnreachable."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__(address, token, "the Brain", BrainUnreachable)
