"""A script of a framework that shards its data by itself: it uses nothing of elastane. The first run of it dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

marker = Path(sys.argv[1])
try:
    marker.touch(exist_ok=False)
except FileExistsError:
    print("trains", flush=True)
else:
    os.kill(os.getpid(), signal.SIGKILL)
