"""A gRPC server that checks the token before it reads a message, and every message before a handler sees it.

Every method is served as a stream, which on the wire is the same as a unary call: so the caller's token is checked
before any of its bytes are received, and a message over the size limit is seen as a call without a message.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from elastane.model.errors import ElastaneError, InvalidInput, MalformedMessage, PlatformError, RequestRefused
from elastane.rpc.messages import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, parse

OnRefused = Callable[[str, str, str], None]
"""Called with peer, method and reason, once for each peer and reason."""

OnAnswered = Callable[[str, str, float], None]
"""Called with the method, `ok` or the name of the status that was answered, and the seconds that it took."""

Send = Callable[[Message], Awaitable[None]]

LOOPBACK = "127.0.0.1"

_MOST_REMEMBERED_REFUSALS = 10_000

_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # Two masters on one port would each get some of the calls.
    # By default gRPC cancels calls at random from a thousand on that wait, and all thousands of nodes come at once.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)

_STATUS: dict[type[ElastaneError], grpc.StatusCode] = {
    RequestRefused: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    MalformedMessage: grpc.StatusCode.INVALID_ARGUMENT,
}


@dataclass(frozen=True)
class ServerCertificate:
    """What a server shows to those who come over a network, as PEM, and the key that proves it."""

    certificate: bytes
    key: bytes = field(repr=False)


class RpcServer:
    """Serves service implementations to holders of the token: on loopback, or with a certificate over any network.

    An implementation has a coroutine per method, named in snake_case: `f(request) -> response` for a unary method,
    an async generator `f(request)` for a streaming answer, and `f(messages, send)` for a stream both ways.
    """

    def __init__(
        self,
        token: str,
        on_refused: OnRefused,
        certificate: ServerCertificate | None = None,
        on_answered: OnAnswered = lambda _method, _outcome, _seconds: None,
    ) -> None:
        self._certificate = certificate
        self._on_answered = on_answered
        self._token = token.encode()
        self._on_refused = on_refused
        self._refusals_seen: set[tuple[str, str]] = set()
        self._server = grpc.aio.server(options=[*CHANNEL_OPTIONS, *_SERVER_OPTIONS])

    def add(self, service: ServiceDescriptor, implementation: object) -> None:
        handlers = {
            method.name: grpc.stream_stream_rpc_method_handler(
                self._handler(method, getattr(implementation, _snake_case(method.name)))
            )
            for method in service.methods
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    async def start(self, address: str = "") -> str:
        """Listen at this address, or on a free loopback port; the answer is the address. Raises PlatformError."""
        address = address or f"{LOOPBACK}:0"
        host = address.rpartition(":")[0]
        try:
            if self._certificate is not None:
                shown = (self._certificate.key, self._certificate.certificate)
                port = self._server.add_secure_port(address, grpc.ssl_server_credentials([shown]))
            elif host == LOOPBACK:
                port = self._server.add_insecure_port(address)
            else:
                raise PlatformError(f"cannot listen at {address}: off this machine the token would be read by others")
        except RuntimeError as error:
            raise PlatformError(f"cannot listen at {address}: {error}") from None
        await self._server.start()
        return f"{host}:{port}"

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def _handler(self, method: MethodDescriptor, implementation: Any) -> Any:
        request_type = message_factory.GetMessageClass(method.input_type)
        streams_in, streams_out = method.client_streaming, method.server_streaming

        async def handle(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            peer = context.peer()  # Once a call is broken off it no longer says whose it was.

            async def send(message: Message) -> None:
                await context.write(message.SerializeToString())

            began, outcome = time.perf_counter(), "unknown"
            try:
                if not self._token_matches(context):
                    outcome = "unauthenticated"
                    self._note(peer, method.name, "wrong or missing token")
                    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong or missing token")
                messages = _incoming(context, request_type)
                if streams_in:
                    await implementation(messages, send)
                    outcome = "ok"
                    return
                request = await anext(messages, None)
                if request is None:
                    raise MalformedMessage(f"a call without a message, or with one over {MAX_MESSAGE_BYTES} bytes")
                if streams_out:
                    async for answer in implementation(request):
                        await send(answer)
                else:
                    await send(await implementation(request))
                outcome = "ok"
            except tuple(_STATUS) as error:
                code = _STATUS[_base_of(error)]
                outcome = code.name.lower()
                if not isinstance(error, RequestRefused):
                    self._note(peer, method.name, str(error))
                await context.abort(code, str(error))
            finally:
                self._on_answered(method.name, outcome, time.perf_counter() - began)

        return handle

    def _token_matches(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> bool:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                given = value if isinstance(value, bytes) else value.encode()
                return hmac.compare_digest(given, b"Bearer " + self._token)
        return False

    def _note(self, peer: str, method: str, reason: str) -> None:
        key = (peer, reason)
        if key not in self._refusals_seen and len(self._refusals_seen) < _MOST_REMEMBERED_REFUSALS:
            self._refusals_seen.add(key)
            self._on_refused(peer, method, reason)


async def _incoming(
    context: grpc.aio.ServicerContext[bytes, bytes], request_type: type[Message]
) -> AsyncIterator[Message]:
    while True:
        data = await context.read()
        if data is grpc.aio.EOF:
            return
        yield parse(request_type, data)


def _base_of(error: Exception) -> type[ElastaneError]:
    return next(kind for kind in _STATUS if isinstance(error, kind))


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
