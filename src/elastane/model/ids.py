"""Names and numbers that identify things, typed so that one is not passed for another."""

from __future__ import annotations

import re
from typing import NewType

from elastane.model.errors import InvalidInput

JobName = NewType("JobName", str)
NodeName = NewType("NodeName", str)
DatasetName = NewType("DatasetName", str)
TaskId = NewType("TaskId", int)

MAX_NAME_LENGTH = 50
"""Leaves room for `-evaluator-9999` in the 63 characters that a Kubernetes label may have."""

NAME_PATTERN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"


def job_name(text: str) -> JobName:
    """Check a job's name: lower-case letters, digits and dashes, as Kubernetes wants them."""
    if len(text) > MAX_NAME_LENGTH or not re.fullmatch(NAME_PATTERN, text):
        raise InvalidInput(
            f'name: "{text}" is not a job name; use at most {MAX_NAME_LENGTH} lower-case letters, digits and dashes'
        )
    return JobName(text)
