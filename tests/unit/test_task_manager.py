"""What the master takes from workers that share each step."""

from __future__ import annotations

import json
from pathlib import Path

from elastane.core.lockstep import Position
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.task_manager import TaskManager
from elastane.model.ids import DatasetName, NodeName
from tests.builders import make_dataset

DATA, FIRST, SECOND = DatasetName("d"), NodeName("job-worker-0"), NodeName("job-worker-1")


def test_a_word_of_an_earlier_world_that_comes_late_changes_nothing(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events")
    tasks = TaskManager(events, max_task_retries=1, task_timeout_s=60, on_failed=lambda _: None, journal=Journal())
    tasks.define(FIRST, make_dataset(1000, lockstep=True))
    tasks.report(FIRST, DATA, Position(100), steps=10, world=2)
    # The second has rank 0 from world 3 on, and is heard before the last words of the first.
    tasks.report(SECOND, DATA, Position(140), steps=14, world=3)
    tasks.report(FIRST, DATA, Position(120), steps=12, world=2)
    assert tasks.samples_done == 140
    # All who had finished a step are lost with it: then it is done again.
    tasks.report(FIRST, DATA, Position(130), steps=13, world=4)
    assert tasks.samples_done == 130
    events.close()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "events").read_text().splitlines()]
    assert kinds.count("position_reset") == 1
