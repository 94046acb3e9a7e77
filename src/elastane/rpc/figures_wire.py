"""The figures that nodes report, checked on the way in: a plan is made of them, so none may be nonsense."""

from __future__ import annotations

import math

from elastane.model.errors import InvalidInput
from elastane.rpc.protos import node_pb2 as pb

MOST_SPAN_S = 3600.0
MOST_SAMPLES = 10**12
MOST_CORES = 4096.0
MOST_MEMORY = 2**50
CLOCKS_DIFFER_S = 5.0
"""By how much a node's clock may be ahead, with the time that a message takes."""

_WAITS = ("input_wait_s", "pull_s", "push_s", "sync_s")


def checked_figures(message: pb.StepFigures, unsaid_s: float) -> pb.StepFigures:
    """Raises InvalidInput, which names the field and its value, for what no step can have taken.

    `unsaid_s` is how much time has passed of which this node has said nothing.
    """
    for field in ("span_s", *_WAITS, "cpu_s", "longest_step_s"):
        value = getattr(message, field)
        if not math.isfinite(value) or value < 0:
            raise InvalidInput(f"{field}: {value} is not a number of seconds")
    if not 0 < message.span_s <= MOST_SPAN_S:
        raise InvalidInput(f"span_s: {message.span_s:g} is not above 0 and at most {MOST_SPAN_S:g}")
    if message.span_s > unsaid_s + CLOCKS_DIFFER_S:
        ahead = message.span_s - unsaid_s
        raise InvalidInput(f"span_s: {message.span_s:g} reaches {ahead:.1f} s into the future")
    for field in (*_WAITS, "longest_step_s"):
        # The training thread does one thing at a time.
        if getattr(message, field) > 1.01 * message.span_s + 0.01:
            raise InvalidInput(f"{field}: {getattr(message, field):g} is above span_s, {message.span_s:g}")
    if message.cpu_s > MOST_CORES * message.span_s:
        raise InvalidInput(f"cpu_s: {message.cpu_s:g} in {message.span_s:g} s is above {MOST_CORES:g} cores")
    if message.steps < 1:
        raise InvalidInput("steps: 0 is below 1")
    if message.samples > MOST_SAMPLES:
        raise InvalidInput(f"samples: {message.samples} is above {MOST_SAMPLES}")
    for field in ("memory_bytes", "gpu_memory_bytes"):
        if getattr(message, field) > MOST_MEMORY:
            raise InvalidInput(f"{field}: {getattr(message, field)} is above {MOST_MEMORY}")
    return message


def checked_cpu(message: pb.ServerLoad) -> float:
    """The cores that a server says it used. Raises InvalidInput."""
    if not math.isfinite(message.cpu) or not 0 <= message.cpu <= MOST_CORES:
        raise InvalidInput(f"cpu: {message.cpu} is not a number of cores up to {MOST_CORES:g}")
    return message.cpu
