"""The process of one job's dashboard: `python -m elastane.dashboard JOB`, started by `elastane run --dashboard`.

Its first line is the link. It ends when its standard input does, which happens when the launcher is gone. The
training goes first where both want the processor.
"""

from __future__ import annotations

import asyncio
import os
import sys

from elastane.dashboard.access import job_dashboard_token
from elastane.dashboard.jobs import Jobs
from elastane.dashboard.serve import serve
from elastane.platform.local.registry import JobFolder

NICENESS = 5


async def main(name: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    token = job_dashboard_token(JobFolder.find(name).read().token)
    await serve(Jobs(only=name), token, "127.0.0.1", 0, stop, lambda link: print(link, flush=True))  # noqa: T201


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(main(sys.argv[1]))
