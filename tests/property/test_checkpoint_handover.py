"""The hand-over by checkpoint under every interleaving: nobody trains while another saves, nothing goes too soon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from elastane.core.checkpoint_handover import CheckpointHandover
from elastane.model.errors import RequestRefused
from elastane.model.ids import NodeName
from tests.property.restarting_journal import RestartingJournal

RUNS = settings(max_examples=120, stateful_step_count=50, deadline=None)
HUNT = settings(RUNS, max_examples=2000, database=None, phases=[Phase.generate], report_multiple_bugs=False)


@dataclass
class Guest:
    """One worker, as `worker.handover` goes through it."""

    phase: str = "begins"
    version: int = 0
    trains_with: int = 0


class HandoverMachine(RuleBasedStateMachine):
    """Workers that add updates to the servers of their version, and servers that are dropped as soon as they may be."""

    rules_class: type[CheckpointHandover] = CheckpointHandover

    def __init__(self) -> None:
        super().__init__()
        self.guests: dict[NodeName, Guest] = {}
        self.data: dict[int, set[int]] = {}
        self.acknowledged: set[int] = set()
        self.checkpoint: set[int] = set()
        self.updates = 0
        self.names = 0

    @initialize(count=st.integers(1, 3))
    def start(self, count: int) -> None:
        self.journal = RestartingJournal()
        self.handover = self.journal.watch(self.rules_class())
        self.another_set_of_servers()
        for _ in range(count):
            self.a_guest_comes()

    @rule()
    def another_set_of_servers(self) -> None:
        version = self.handover.version + 1
        self.handover.set_servers([f"server-{version}-{number}" for number in range(version % 3 + 1)])
        self.data[version] = set()

    @precondition(lambda self: len(self.guests) < 4)
    @rule()
    def a_guest_comes(self) -> None:
        self.names += 1
        name = NodeName(f"guest-{self.names}")
        self.guests[name] = Guest()
        self.handover.join(name)

    @precondition(lambda self: len(self.guests) > 1)
    @rule(data=st.data())
    def a_guest_dies(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.guests)))
        if [one for one in self.guests if self.handover.state_of(one).local] == [name]:
            return  # With the last one that may have trained its state would be gone.
        del self.guests[name]
        self.handover.left(name)

    @rule()
    def the_master_dies(self) -> None:
        self.handover = self.journal.restart(self.handover, self.rules_class())

    @rule(data=st.data(), count=st.integers(1, 5))
    def guests_go_on(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self._goes_on(data.draw(st.sampled_from(sorted(self.guests))))

    def _goes_on(self, name: NodeName) -> bool:
        """The next thing that one guest does; false if it waits."""
        guest, state = self.guests[name], self.handover.state_of(name)
        before = (guest.phase, guest.version, guest.trains_with)
        if guest.phase in ("waits", "saves", "leaves") and state.version != guest.version:
            guest.phase = "stops"
        match guest.phase:
            case "begins" if state.saved:
                guest.phase, guest.version = "restores", state.version
            case "trains" if state.version != guest.trains_with:
                guest.phase = "stops"
            case "trains":
                self.updates += 1
                self.data[guest.trains_with].add(self.updates)
                self.acknowledged.add(self.updates)
            case "stops":
                guest.phase, guest.version = "waits", state.version
                self.handover.reached(name, 2 * state.version)
            case "waits" if state.passed >= 2 * guest.version:
                guest.phase = "saves"
            case "saves" if state.saved:
                guest.phase = "leaves"
                self.handover.reached(name, 2 * guest.version + 1)
            case "saves" if state.saves:
                training = [other for other, that in self.guests.items() if that.phase == "trains"]
                assert not training, "somebody trains while another saves"
                self.checkpoint = set(self.data[guest.trains_with])
                self.handover.saved(name, guest.version)
            case "leaves" if state.passed >= 2 * guest.version + 1:
                guest.phase = "restores"
            case "restores":
                self._restore(name, guest)
            case "restored" if state.local == guest.version:
                guest.phase, guest.trains_with = "trains", guest.version
            case "restored" if state.version != guest.version:
                guest.phase = "stops" if guest.trains_with else "begins"
        return before != (guest.phase, guest.version, guest.trains_with)

    def _restore(self, name: NodeName, guest: Guest) -> None:
        try:
            self.handover.restored(name, guest.version)
        except RequestRefused:
            assert self.handover.version != guest.version
            guest.phase = "stops" if guest.trains_with else "begins"
            return
        self.data[guest.version] |= self.checkpoint
        guest.phase = "restored"

    @invariant()
    def nothing_in_use_is_dropped(self) -> None:
        needed = {0} | {int(server.split("-")[1]) for server in self.handover.needed()}
        for guest in self.guests.values():
            uses = guest.version if guest.phase == "restored" else guest.trains_with
            assert uses in needed, "the servers of a worker were dropped"

    def teardown(self) -> None:
        """Left alone, all train with the global version, and have all that was acknowledged."""
        if not hasattr(self, "handover"):
            return
        for _ in range(200):
            for name in sorted(self.guests):
                if self.guests[name].phase != "trains" or self.handover.version != self.guests[name].trains_with:
                    self._goes_on(name)
        assert self.handover.through, f"it does not end: {self.guests}, {self.handover.snapshot()}"
        assert self.acknowledged <= self.data[self.handover.version], "updates are lost"
        assert {server.split("-")[1] for server in self.handover.needed()} == {str(self.handover.version)}


def test_guests_go_to_other_servers_together_and_lose_nothing() -> None:
    run_state_machine_as_test(HandoverMachine, settings=RUNS)


class SavesTooEarly(CheckpointHandover):
    """A planted bug: who is to save does not wait for the others to stop."""

    def reached(self, worker: NodeName, barrier: int) -> None:
        super().reached(worker, barrier)
        self._passed = max(self._passed, barrier)


class DropsTooEarly(CheckpointHandover):
    """A planted bug: the old servers go as soon as one worker has restored."""

    def _forget_old(self) -> None:
        if any(known.restored == self.version for known in self._workers.values()):  # though others still train
            self._servers = {self.version: self._servers[self.version]}


@pytest.mark.slow
@pytest.mark.parametrize("planted", [SavesTooEarly, DropsTooEarly])
def test_a_planted_bug_is_found(planted: type[CheckpointHandover]) -> None:
    class Machine(HandoverMachine):
        rules_class = planted

    with pytest.raises((AssertionError, KeyError, RequestRefused)):
        run_state_machine_as_test(Machine, settings=HUNT)


def test_a_word_out_of_turn_is_refused_and_changes_nothing() -> None:
    handover = CheckpointHandover()
    one, other = NodeName("one"), NodeName("other")
    handover.set_servers(["a:1"])
    handover.join(one)
    handover.join(other)
    handover.restored(one, 1)
    handover.restored(other, 1)
    handover.set_servers(["a:1", "b:1"])
    before = handover.snapshot()
    out_of_turn: list[Callable[[], None]] = [
        lambda: handover.set_servers([]),
        lambda: handover.set_servers(["a:1", "b:1"]),
        lambda: handover.reached(one, 6),
        lambda: handover.reached(one, 5),
        lambda: handover.saved(one, 2),
        lambda: handover.restored(one, 2),
        lambda: handover.restored(NodeName("nobody"), 1),
    ]
    for refused in out_of_turn:
        with pytest.raises(RequestRefused):
            refused()
        assert handover.snapshot() == before
