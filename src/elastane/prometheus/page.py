"""The page that Prometheus reads: GET /metrics and nothing else, over plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from elastane.model.errors import InvalidInput, PlatformError

PATH = "/metrics"
REQUEST_TIMEOUT_S = 5.0
"""How long a caller has for its request, and to take the answer."""

_MOST_HEAD = 16 * 1024

Collect = Callable[[], Iterable[Family]]


class _Collected(Collector):
    """What was read of the state, to be made text of."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


class MetricsPage:
    """Serves what `collect` finds when it is asked: on this loop, the owner of the state, or in a thread beside it.

    The text is made in a thread: with thousands of nodes that takes a while.
    """

    def __init__(self, collect: Collect, *, in_thread: bool = False) -> None:
        self._collect = collect
        self._in_thread = in_thread
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen at HOST:PORT, port 0 for a free one; the answer is the address. Raises InvalidInput, PlatformError."""
        host, port = parsed_address(address)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MOST_HEAD)
        except OSError as error:
            raise PlatformError(f"metrics: cannot listen at {address}: {error.strerror or error}") from None
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Listen no more; who is being answered may be cut off."""
        if self._server is not None:
            self._server.close()

    async def text(self) -> bytes:
        """The page's content."""
        if self._in_thread:
            return await asyncio.to_thread(lambda: generate_latest(_Collected(list(self._collect()))))
        return await asyncio.to_thread(generate_latest, _Collected(list(self._collect())))

    async def answer(self, head: bytes) -> bytes:
        """The whole answer to a request, of which `head` is all up to the empty line."""
        if not asks_for_metrics(head):
            return response("404 Not Found", "text/plain; charset=utf-8", b"only GET /metrics is served\n")
        return response("200 OK", CONTENT_TYPE_PLAIN_0_0_4, await self.text())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_one(reader, writer, self.answer)


async def serve_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[bytes], Coroutine[Any, Any, bytes]],
) -> None:
    """Read one request, answer it and close. Who is too slow, or sends what is no request, is not answered."""
    gone = (ConnectionError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError)
    with contextlib.suppress(*gone):
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await answer(head))
            await writer.drain()
    writer.close()


def asks_for_metrics(head: bytes) -> bool:
    """Whether a request's first line is GET /metrics, with any query."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    return len(words) == 3 and words[0] == b"GET" and words[1].split(b"?", 1)[0] == PATH.encode()


def response(status: str, content_type: str, body: bytes) -> bytes:
    """An HTTP answer, after which the connection ends."""
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "Connection: close")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


def parsed_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises InvalidInput."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f'metrics: "{address}" is not an address; write HOST:PORT')
    return host, int(port)
