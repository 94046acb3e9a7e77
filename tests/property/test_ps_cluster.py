"""Parameter servers under every interleaving: nothing acknowledged is lost, and every change ends well."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.ps_machine import PSMachine

RUNS = settings(max_examples=300, stateful_step_count=40, deadline=None)
HUNT = settings(RUNS, max_examples=3000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_servers_come_move_die_and_leave_and_every_change_ends_well() -> None:
    run_state_machine_as_test(PSMachine, settings=RUNS)
