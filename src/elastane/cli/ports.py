"""Ports that a command is told to use, and where metrics are found."""

from __future__ import annotations

import socket

from elastane.cli.view import say
from elastane.model.errors import InvalidInput
from elastane.platform.local.registry import JobRecord


def check_free(port: int | None, option: str = "port") -> None:
    """Raises InvalidInput for a port that is taken. The master would find out too, but only in its log."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError as error:
            raise InvalidInput(f"{option}: {port} cannot be listened on: {error.strerror}") from None


def say_metrics(record: JobRecord, metrics_port: int | None) -> None:
    """Say where a job's metrics are, if somebody wants them."""
    if metrics_port is not None:
        where = f"at http://{record.metrics}/metrics" if record.metrics else "not served; its master's log says why"
        say(f"metrics of {record.name}: {where}")
