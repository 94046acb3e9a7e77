"""A script that uses PyTorch and ends in the way that its node's name says."""

import atexit
import ctypes
import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
from types import TracebackType
from typing import Any

import numpy as np
import psutil
import torch

OF_ITS_OWN = ("ELASTANE_NODE", "ELASTANE_MEMORY")
"""What no two nodes, or no two agents, have in common."""


def returns() -> None:
    """End by the end of the script."""


def raises() -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("planted")  # noqa: B904  # to be seen with its context


def raises_with_hook() -> None:
    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        depth = 0
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        print("hook:", kind.__name__, error, depth)

    sys.excepthook = hook
    raises()


def raises_in_thread() -> None:
    thread = threading.Thread(target=raises, name="other")
    thread.start()
    thread.join()


def exits() -> None:
    sys.exit(3)


def exits_with_text() -> None:
    sys.exit("a reason")


def exits_at_once() -> None:
    os._exit(4)


def outlived_by_thread() -> None:
    def live_on() -> None:
        threading.main_thread().join()
        print("the thread has outlived the script")

    threading.Thread(target=live_on).start()


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def waits() -> None:
    signal.pause()


def spawns() -> None:
    _double_in_children("spawn")


def forkservers() -> None:
    _double_in_children("forkserver")


def _double_in_children(method: str) -> None:
    with multiprocessing.get_context(method).Pool(2) as pool:
        print(pool.map(double, range(4)))


def double(number: int) -> int:
    return 2 * number


def loads_data() -> None:
    numbers: Any = list(range(8))
    loader: Any = torch.utils.data.DataLoader(numbers, batch_size=4, num_workers=2)
    print([batch.tolist() for batch in loader])


def tells() -> None:
    main = sys.modules["__main__"]
    streams: list[Any] = [sys.stdout, sys.stderr]
    facts = {
        "argv": [sys.argv, sys.orig_argv, psutil.Process().cmdline()[:2]],
        "path": sys.path,
        "main": [main.__file__, __name__, main.__spec__, main.__cached__, type(main.__loader__).__name__],
        "names": NAMES,
        "interpreter": [sys.executable, str(sys.flags), sys.prefix],
        "environment": {name: value for name, value in os.environ.items() if name not in OF_ITS_OWN},
        "seen": {name: psutil.Process().environ().get(name) for name in ("ELASTANE_NODE", "PATH")},
        "folder": os.getcwd(),
        "files": len(os.listdir("/proc/self/fd")),
        "streams": [[str(file), file.line_buffering, file.write_through] for file in streams],
        "input": sys.stdin.read(),
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "signals": {number.name: str(signal.getsignal(number)) for number in signal.Signals},
        "cores": len(os.sched_getaffinity(0)),
        "threads": {"torch": torch.get_num_threads(), "between": torch.get_num_interop_threads(), "blas": _blas()},
        "collector": [gc.isenabled(), gc.get_threshold()],
        "cuda": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        "parent": [multiprocessing.parent_process(), threading.current_thread() is threading.main_thread()],
        "seeds": {
            "python": random.random(),
            "numpy": np.random.random(),
            "torch": torch.initial_seed(),
            "processes": multiprocessing.current_process().authkey.hex(),
        },
    }
    print(json.dumps(facts))


def _blas() -> int | None:
    """How many threads NumPy's OpenBLAS has."""
    with open("/proc/self/maps") as maps:
        found = [line.split()[-1] for line in maps if "libscipy_openblas64_" in line]
    return int(ctypes.CDLL(found[0]).scipy_openblas_get_num_threads64_()) if found else None


NAMES = sorted(globals())

if __name__ == "__main__":
    atexit.register(print, "at exit")
    print("begins")
    globals()[os.environ["ELASTANE_NODE"].partition("-")[0]]()
