"""How the long-running processes log: a JSON object a line."""

from __future__ import annotations

from typing import TextIO

import structlog


def log_as_json_lines(file: TextIO) -> None:
    """Have this process log into a file, each line with its time, its level, and the traceback of what it tells of."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=file),
    )
