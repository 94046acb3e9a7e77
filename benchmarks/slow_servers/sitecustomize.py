"""Makes parameter servers slow, as on a machine with less to give: each row costs time, one request after the other.

Python imports this by itself in every process that has this folder on its path; only servers are changed.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

US_A_ROW = "SLOW_SERVERS_US_A_ROW"


def _slow_down(us_a_row: float) -> None:
    from elastane.ps.engine import Engine

    lock = threading.Lock()
    pull, push = Engine.pull, Engine.push

    def slow(method: Any) -> Any:
        def slowed(engine: Engine, request: Any, *rest: Any, **more: Any) -> Any:
            with lock:
                time.sleep(len(request.keys.ids) * us_a_row / 1e6)
            return method(engine, request, *rest, **more)

        return slowed

    Engine.pull = slow(pull)  # type: ignore[method-assign]
    Engine.push = slow(push)  # type: ignore[method-assign]


if US_A_ROW in os.environ and "-ps-" in os.environ.get("ELASTANE_NODE", ""):
    _slow_down(float(os.environ[US_A_ROW]))
