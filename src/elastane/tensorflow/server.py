"""A stock TensorFlow server in this process, for the platform to start and stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # it reads the variable when it is imported


def serve(job: str, index: int, addresses: Sequence[str], ready: Callable[[str], None]) -> None:
    """Serve one task of a job (`worker` or `ps`) until the process ends; `ready` is called with its address.

    A worker need not know of any other server: the coordinator tells it when it connects.
    """
    server = tf.distribute.Server(tf.train.ClusterSpec({job: list(addresses)}), job_name=job, task_index=index)
    ready(addresses[index])
    server.join()
