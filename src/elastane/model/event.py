"""What happened: the events that a job writes down, and what a platform reports of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from elastane.model.ids import NodeName
from elastane.model.node import NodeExit, NodeStatus


@dataclass(frozen=True)
class Event:
    """One thing that happened in a job. `kind` is a word of `docs/events.md`; fields are plain JSON values."""

    time: datetime
    kind: str
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeEvent:
    """A platform's word on one of its nodes: the status it has now and, at its end, how it ended.

    `note` says what a node waits for that does not run yet, where a person may have to do something about it.
    """

    node: NodeName
    status: NodeStatus
    pid: int | None = None
    exit: NodeExit | None = None
    note: str = ""
