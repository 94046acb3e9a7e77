"""The process of a parameter server: `elastane ps`, or `python -m elastane.ps`.

It finds its job's master by the variables that a platform sets, and serves until it is told to leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import structlog

from elastane.model.errors import ElastaneError
from elastane.worker.door import Door


async def serve(door: Door) -> None:
    """Serve rows for the job behind the door, until the end. Raises RequestRefused."""
    from elastane.ps.attending import ServerAttendant

    attendant = ServerAttendant(door)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, attendant.leave)
    await attendant.run()


def main() -> int:
    """Run the process; the answer is its exit code."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.add_log_level,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stdout),
    )
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        asyncio.run(serve(Door.from_env(kind="ps")))
    except ElastaneError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # a process of its own
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
