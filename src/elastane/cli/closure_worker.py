"""`elastane worker`: a worker server that stands alone."""

from __future__ import annotations

import signal

from elastane.cli.view import say
from elastane.coordinator.coordinator import token_of_environment
from elastane.coordinator.worker_server import WorkerServer


def serve_closures(port: int) -> None:
    """Serve until it is told to stop, and finish the closures under way. Raises InvalidInput, PlatformError."""
    server = WorkerServer(token_of_environment(), port=port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop_soon())
    say(f"worker at {server.address}")
    server.serve()
