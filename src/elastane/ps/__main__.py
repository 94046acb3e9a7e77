"""The process of a parameter server: `elastane ps`, or `python -m elastane.ps`.

It finds its job's master by the variables that a platform sets, and serves until it is told to leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import structlog

from elastane.model.environment import ENV_METRICS
from elastane.model.errors import ElastaneError
from elastane.rpc.log_lines import log_as_json_lines
from elastane.worker.door import Door

if TYPE_CHECKING:
    from elastane.prometheus.page import MetricsPage
    from elastane.ps.attending import ServerAttendant


async def serve(door: Door) -> None:
    """Serve rows for the job behind the door, until the end. Raises RequestRefused."""
    from elastane.ps.attending import ServerAttendant

    attendant = ServerAttendant(door)
    page = await serve_metrics(door, attendant)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, attendant.leave)
    try:
        await attendant.run()
    finally:
        if page is not None:
            await page.stop()


async def serve_metrics(door: Door, attendant: ServerAttendant) -> MetricsPage | None:
    """Serve metrics where the environment says, if it does; if that cannot be, the rows go on without."""
    address = os.environ.get(ENV_METRICS)
    if not address:
        return None
    from elastane.prometheus.page import MetricsPage
    from elastane.ps.metrics import ServerMetrics

    page = MetricsPage(ServerMetrics(door.node, attendant).collect, in_thread=True)
    log = structlog.get_logger("elastane.ps")
    try:
        log.info("serves_metrics", address=await page.start(address))
    except ElastaneError as error:
        log.warning("metrics_not_served", reason=str(error))
    return page


def main() -> int:
    """Run the process; the answer is its exit code."""
    log_as_json_lines(sys.stdout)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        asyncio.run(serve(Door.from_env(kind="ps")))
    except ElastaneError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # a process of its own
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
