"""A model of closures and workers, driven by hypothesis: every order of puts, takes, ends, stops and losses."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.core.closures import ClosureRules, WorkerState

WORKERS = 4
CAPACITY = 6
MOST_LOSSES = 2


class ClosureMachine(RuleBasedStateMachine):
    """Closures are numbers; the model counts what became of each."""

    make: Callable[[int, int], ClosureRules[int]] = ClosureRules

    def __init__(self) -> None:
        super().__init__()
        self.book: ClosureRules[int] = type(self).make(CAPACITY, MOST_LOSSES)
        self.put_so_far = 0
        self.held: dict[int, int] = {}
        self.finished: list[int] = []
        self.failed: list[int] = []
        self.cancelled: list[int] = []
        self.told: list[BaseException | None] = []

    @initialize(running=st.sets(st.integers(0, WORKERS - 1)))
    def some_workers(self, running: set[int]) -> None:
        for worker in running:
            self.book.admit(worker)

    def in_state(self, *states: WorkerState | None) -> list[int]:
        return [worker for worker in range(WORKERS) if self.book.state(worker) in states]

    @precondition(lambda self: not self.book.full and self.book.error is None)
    @rule()
    def put(self) -> None:
        self.book.put(self.put_so_far)
        self.put_so_far += 1

    @precondition(lambda self: self.in_state(None, WorkerState.LOST))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.book.admit(data.draw(st.sampled_from(self.in_state(None, WorkerState.LOST))))

    @precondition(lambda self: bool(set(self.in_state(*WorkerState)) - set(self.held)))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(set(self.in_state(*WorkerState)) - set(self.held))))
        state, queued = self.book.state(worker), self.book.queued
        closure = self.book.take(worker)
        assert (closure is not None) == (queued > 0 and state is WorkerState.RUNNING)
        if closure is not None:
            self.held[worker] = closure

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["finish", "give_back", "fail", "lose"]))
    def end_one(self, data: st.DataObject, how: str) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        closure = self.held.pop(worker)
        stopping = self.book.state(worker) is WorkerState.STOPPING
        failed_before = self.book.error
        if how == "finish":
            self.book.finish(worker)
            self.finished.append(closure)
        elif how == "fail":
            cancelled = self.book.fail(worker, ValueError(closure))
            assert closure not in cancelled
            self.failed.append(closure)
            self.cancelled += cancelled
            assert self.book.error is not None
            assert self.book.queued == 0
        else:
            if how == "give_back":
                cancelled = self.book.give_back(worker, begun=False)
            else:
                cancelled = self.book.lose(worker, "killed")
            self.cancelled += cancelled
            if failed_before is not None:
                assert cancelled == (closure,)
            elif not cancelled:
                assert self.next_closure() == closure
        if how == "lose":
            assert self.book.state(worker) is WorkerState.LOST
        elif stopping:
            assert self.book.state(worker) is WorkerState.STOPPED

    def next_closure(self) -> int:
        return self.book._queued[0].closure

    @precondition(lambda self: self.in_state(WorkerState.RUNNING))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.in_state(WorkerState.RUNNING)))
        self.book.stop(worker)
        expected = WorkerState.STOPPING if worker in self.held else WorkerState.STOPPED
        assert self.book.state(worker) is expected

    @precondition(lambda self: self.in_state(WorkerState.STOPPED))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.book.restart(data.draw(st.sampled_from(self.in_state(WorkerState.STOPPED))))

    @precondition(lambda self: self.in_state(WorkerState.STOPPED, WorkerState.LOST))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.book.forget(data.draw(st.sampled_from(self.in_state(WorkerState.STOPPED, WorkerState.LOST))))

    @precondition(lambda self: self.book.error is not None and self.book.idle)
    @rule()
    def tell_the_error(self) -> None:
        self.told.append(self.book.take_error())
        assert self.book.settled
        assert self.book.error is None

    @invariant()
    def every_closure_is_in_exactly_one_place(self) -> None:
        gone = self.finished + self.failed + self.cancelled
        queued = [entry.closure for entry in self.book._queued]
        everywhere = sorted(gone + queued + list(self.held.values()))
        assert everywhere == list(range(self.put_so_far))

    @invariant()
    def only_running_and_stopping_workers_hold_closures(self) -> None:
        assert set(self.held) <= set(self.in_state(WorkerState.RUNNING, WorkerState.STOPPING))
        assert set(self.in_state(WorkerState.STOPPING)) <= set(self.held)

    @invariant()
    def after_an_error_nothing_is_given_out(self) -> None:
        assert self.book.error is None or self.book.queued == 0
