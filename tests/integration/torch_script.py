"""A training script that uses PyTorch; its first worker does harm, once the nursery is ready."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import torch

import elastane
from tests.faults import launcher

with elastane.join() as job:
    agent = psutil.Process().parent()
    assert agent is not None
    owner = "the agent" if "elastane.platform.local.agent" in agent.cmdline() else "another"
    how = "warm" if "elastane.platform.local.nursery" in sys.modules else "plainly"
    print(f"started {how} by {owner}")
    for batch in job.batches(list(range(1000)), batch_size=10):
        assert isinstance(batch, torch.Tensor)
        if job.step != 3 or not job.node.endswith("-0"):
            continue
        if sys.argv[1] == "count-children":
            print(f"the agent has {len(agent.children())} children")
            continue
        log = Path(os.environ["ELASTANE_STATE_DIR"]) / "jobs" / "job" / "logs" / "agent.log"
        while "nursery: ready" not in log.read_text():
            time.sleep(0.01)
        if sys.argv[1] == "kill-nursery":
            (nursery,) = [child for child in agent.children() if child.pid != os.getpid()]
            nursery.kill()
        if sys.argv[1] == "kill-launcher":
            launcher().kill()
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
