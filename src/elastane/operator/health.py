"""A page that says that the operator's process works, also while it waits to lead; and beside it, its metrics."""

from __future__ import annotations

import asyncio

from elastane.prometheus.page import MetricsPage, asks_for_metrics, response, serve_one


async def serve_health(port: int, metrics: MetricsPage, host: str | None = None) -> asyncio.Server:
    """Answer every request at a port of all interfaces, or of this one, until the server is closed. Raises OSError."""

    async def answer(head: bytes) -> bytes:
        return await metrics.answer(head) if asks_for_metrics(head) else response("200 OK", "text/plain", b"ok\n")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_one(reader, writer, answer)

    return await asyncio.start_server(serve, host, port)
