"""Moments of a handover that chance reaches too seldom."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from elastane.torch.groups import Group, WorldBroken
from elastane.torch.handover import Donor, Entry
from elastane.torch.replica import Replica


class BrokenGroup(Group):
    """A group whose newcomer is gone."""

    def send(self, buffers: Iterable[Any], rank: int) -> None:
        raise WorldBroken(f"{len(list(buffers))} buffers to {rank}")


def test_a_round_that_is_logged_after_its_newcomer_was_lost_holds_no_buffers() -> None:
    model = nn.Linear(2, 1)
    replica = Replica(model, torch.optim.SGD(model.parameters(), lr=0.1), None, None, None)
    ended, released = threading.Event(), threading.Event()
    group: Any = BrokenGroup(None)  # type: ignore[arg-type]
    donor = Donor(group, 1, replica, lambda _: ended.set())
    donor.start()
    assert ended.wait(10)
    donor._thread.join(10)
    donor.log(Entry({"passed": False}, (), released.set))
    assert released.is_set()
