"""Trainer: the training step of a job whose workers come, go and crash.

Every step is a round that all workers finish together: backward, gradients summed over the workers, one optimizer step.
The same collective carries how many samples each gradient is from, how far each worker is in the data, and whether it
could move to the next world; when all could, all move, right there between two steps. When a world breaks in the middle
of a round, the gradients are still there: the next world compares who finished it, and finishes it for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch import Tensor, nn, optim
from torch.distributed import Work

from elastane.core.lockstep import Position, Span, count, merged
from elastane.model.errors import InvalidInput
from elastane.model.world import Place
from elastane.torch.buckets import GradientBuckets
from elastane.torch.control import Control
from elastane.torch.groups import Group, WorldBroken
from elastane.torch.handover import bring_level
from elastane.torch.last_loss import LastLoss
from elastane.torch.rehearsal import rehearse
from elastane.torch.replica import Replica
from elastane.torch.saving import Saving
from elastane.torch.settings import TrainerSettings
from elastane.torch.snapshot import Snapshots
from elastane.torch.virtual_ranks import VirtualRanks
from elastane.torch.worlds import Moved, Worlds
from elastane.worker.link import Link
from elastane.worker.lockstep import LockstepFeed, Round

IDLE_S = 0.01
SETTLE_PATIENCE_S = 10.0


class Trainer:
    """Trains one model on all workers of the job. `job.trainer` makes it."""

    def __init__(self, link: Link, model: nn.Module, optimizer: optim.Optimizer, settings: TrainerSettings) -> None:
        self._link = link
        self._replica = Replica(model, optimizer, settings.scheduler, settings.grad_scaler, settings.clip_grad_norm)
        self.snapshots = Snapshots(self._replica)
        self._buckets = GradientBuckets(self._replica.trained)
        self._worlds = Worlds(link, self._replica, self._buckets, settings.backend)
        self._saving = Saving(link, self._worlds, self._replica, self.snapshots, settings.saves)
        if settings.rehearse is not None:
            rehearse(model, settings.rehearse)
        self._global_batch_size = settings.global_batch_size
        link.meter.fixed_global_batch = settings.global_batch_size is not None
        self._last_loss = LastLoss(link.meter)
        self._virtual = VirtualRanks(self._replica) if settings.deterministic else None
        self._part = 0
        self._feeds: dict[int, LockstepFeed] = {}
        self._feed: LockstepFeed | None = None
        self._round: Round | None = None
        self._held_by_all: tuple[Span, ...] = ()
        self._takers: list[int] = []
        """The ranks that the rest of the round is for; none: all."""
        self._samples = 0.0
        """How many samples the gradients are from."""
        self._unit = 1.0
        """How many samples a gradient of weight 1 is from."""
        self._in_hand = 0
        self._begun: tuple[Control, Work | None] | None = None
        self._broken: WorldBroken | None = None
        self.after_round: list[Callable[[], None]] = []
        """Called by the training thread between two rounds."""

    @property
    def steps(self) -> int:
        """How many steps the job has made."""
        return self._replica.steps

    @property
    def place(self) -> Place:
        """This worker's place in the world; waits for the first."""
        self.sync()
        group = self._worlds.current
        return Place(0, 0, 1) if group is None else group.place

    def step(self, loss: Tensor, samples: int | None = None) -> None:
        """Backward, sum over the workers, one optimizer step; the world may change in here.

        The loss is the mean over the batch. `samples` is how many samples it is from: by default those that
        `job.batches` gave since the last call, or 1 for a loop without it. With a global batch the step is made once
        the workers together have all its samples; a call may then only add to it.
        """
        self._must_be_in_the_world()
        if self._round is not None and self._round.pieces_left:
            self.backward(loss, samples)
            return
        weight = self._weigh(samples)
        if self._virtual is None:
            self._begin(overlap=True)
        self._run_backward(loss, weight)
        self._finish_round()

    def backward(self, loss: Tensor, samples: int | None = None) -> None:
        """Add the gradients of one more batch to the step that `apply`, or the last `step`, makes."""
        self._must_be_in_the_world()
        self._run_backward(loss, self._weigh(samples))

    def apply(self) -> None:
        """Make the step that the gradients since the last one ask for, over all their samples."""
        self._must_be_in_the_world()
        self._finish_round()

    def sync(self) -> None:
        """Enter the world: from here on the model is the job's. `job.batches` does it before its first batch."""
        if self._worlds.current is None and not self._worlds.left and (moved := self._worlds.wait()) is not None:
            self._settle_or_recover(moved)

    def save(self, folder: str | Path | None = None) -> Future[Path] | None:
        """Save the state behind the next steps, by default where the automatic checkpoints are.

        Any worker may call it; that of rank 0 saves, and gets the checkpoint's path once it is on disk.
        """
        return self._saving.save(folder) if self.place.rank == 0 else None

    def state_dict(self) -> dict[str, Any]:
        """Everything that training goes on from, to be saved."""
        return self._replica.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave. To be called before the first step; one worker's word is enough."""
        if self._worlds.current is not None:
            raise InvalidInput("load_state_dict: this worker trains already; call it right after job.trainer()")
        self._replica.load_state_dict(state)

    # --- for the data streams and the job ---

    @property
    def left(self) -> bool:
        """Whether this worker is out of the world, and gets no more batches."""
        return self._worlds.left

    def enter(self, feed: LockstepFeed) -> bool:
        self._feeds[feed.mark] = feed
        self._saving.tell_restored(feed.name)
        if self._is_over(feed):
            return False
        if self._worlds.current is None and not self.left:
            if (moved := self._worlds.wait(lambda: self._is_over(feed))) is None:
                return False
            self._settle_or_recover(moved)
            self._saving.tell_restored(feed.name)
            if self._is_over(feed):
                return False
        if self._feed is not feed and self._round is not None and self._round.held:
            self._drop_gradients()
            self._finish_round()  # What an earlier loop took, and trained on no more.
        self._feed = feed
        return not self.left

    def next_batch(self, feed: LockstepFeed) -> tuple[Span, ...] | None:
        current = self._round
        if current is not None and current.held and not (self._samples or current.pieces_left):
            self._finish_round()  # The batch went into no step: it is done all the same.
        while self._stays():
            current = self._open_round(feed)
            spans = current.next_batch()
            if spans:
                self._in_hand = count(spans)
                if self._virtual is not None:
                    self._part = current.part_of(spans)
                    self._virtual.start(self._part)
                return spans
            if spans is None and (self._samples or feed.is_finished(self._position(feed))):
                return None
            self._finish_round()  # Others have samples, this worker has none.
        return None

    def give_notice(self) -> None:
        """This worker will leave: it works on until the others have a world without it. Safe in a signal handler."""
        self._worlds.give_notice()

    def leave(self) -> None:
        """Let the others go on without this worker, and close."""
        try:
            self._saving.before_leaving()
            if self._worlds.current is not None and not self.left:
                if self._global_batch_size is None:
                    self._drop_gradients()
                self._feed = None
                if self._round is not None and self._round.held:
                    self._finish_round()  # Its part of a global batch counts, once the others have done the rest.
                    if self._round is not None:
                        self._held_by_all, self._takers = (), []  # Nobody is left to do the rest.
                self._drop_round()
                self.give_notice()
                while self._stays():
                    if not self._finish_round():
                        self._worlds.wait_for_news(IDLE_S)  # Nobody trains: no need to hurry.
            self._worlds.wait_settled(SETTLE_PATIENCE_S)
        finally:
            self.close()

    def close(self) -> None:
        """Be gone at once; the others notice."""
        self._worlds.close()

    def join_threads(self) -> None:
        """After the link is closed too: let nothing run on when Python ends."""
        self._worlds.join_threads()
        self._saving.close()
        self.snapshots.close()

    # --- a round ---

    def _must_be_in_the_world(self) -> None:
        if self._worlds.current is None and not self.left:
            raise InvalidInput(
                "trainer: the model is not the job's yet; take the batches from job.batches, "
                "or call trainer.sync() before the first forward"
            )

    def _stays(self) -> bool:
        """Whether this worker is to do (more of) its part."""
        return not (self.left or self._worlds.overdue)

    def _weigh(self, samples: int | None) -> float:
        """Count the samples of one backward; the answer is how many they are."""
        if samples is not None and samples < 1:
            raise InvalidInput(f"samples: {samples} is below 1")
        weight = float(samples or self._in_hand or 1)
        self._in_hand = 0
        if not self._samples:
            self._unit = weight
        self._samples += weight
        return weight

    def _run_backward(self, loss: Tensor, weight: float) -> None:
        self._last_loss.saw(loss)
        if weight != self._unit and self._virtual is None:
            loss = loss * (weight / self._unit)
        if self._replica.scaler is not None:
            loss = self._replica.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._virtual is not None:
            self._virtual.keep(self._part, weight)

    def _open_round(self, feed: LockstepFeed) -> Round:
        if self._round is None:
            place = self.place
            unit = 1 if self._virtual is None else feed.batch_size
            self._round = Round(feed, self._position(feed), place, self._global_batch_size, unit)
            if self._held_by_all or self._takers:
                self._round.replan(place, self._held_by_all, self._takers)
        return self._round

    @property
    def _taken(self) -> int:
        return 0 if self._round is None else self._round.taken

    def _is_over(self, feed: LockstepFeed) -> bool:
        """Whether the job is done with this data set, because it is finished or because all have left its loop."""
        return feed.name in self._replica.over or feed.is_finished(self._position(feed))

    def _position(self, feed: LockstepFeed) -> Position:
        return self._replica.positions.get(feed.name, Position())

    def _begin(self, *, overlap: bool) -> None:
        """Start the collectives of a round. If the world is broken, that is found out when they are finished."""
        group = self._worlds.current
        if group is None or group.place.size == 1:
            return
        feed = self._feed if self._round is None else self._round.feed
        control = Control.of(
            group.place,
            samples=self._samples,
            votes=self._worlds.votes,
            mark=0 if feed is None else feed.mark,
            taken=self._taken,
            held=0 if self._round is None else count(self._round.held),
            averaged=self._replica.averaged_values(),
        )
        self._broken = None
        try:
            self._begun = (control, group.start_sum(control.vector))
        except WorldBroken as error:
            self._begun = (control, None)
            self._broken = error
        if self._samples and self._virtual is None:
            self._buckets.begin(group, self._unit, overlap=overlap and self._broken is None)

    def _finish_round(self) -> bool:
        """Finish the round with all others, through whatever happens to the world. False if nobody trained in it.

        It returns without having finished when a part of a global batch fell to this worker that it must do first.
        """
        while not self.left:
            group = self._worlds.current
            try:
                if self._begun is None:
                    self._begin(overlap=False)
                asked = time.perf_counter()
                summed = self._wait_for_sums(group)
                self._link.meter.sync_s += time.perf_counter() - asked
                self._begun = None
                if not self._is_complete(summed):
                    self._hold_together(group)
                    if self._round is not None and self._round.pieces_left:
                        return True
                    continue
            except WorldBroken:
                self._begun = None
                self._buckets.abandon()
                if self._recover() or (self._round is not None and self._round.pieces_left):
                    return True
                continue
            self._advance(group, summed)
            for callback in self.after_round:
                callback()
            return summed.samples > 0
        return False

    def _is_complete(self, summed: Control) -> bool:
        """Whether all that the round must have was taken. Who takes nothing must know it as the others do."""
        if self._round is None and (feed := self._feeds.get(summed.mark)) is not None:
            self._open_round(feed)
        return self._round is None or self._round.is_complete(summed.taken)

    def _wait_for_sums(self, group: Group | None) -> Control:
        """What all workers did in this round, with the sums of their gradients in the buckets. Raises WorldBroken."""
        if group is not None:
            group.check()
        if group is None or self._begun is None:
            control = Control.alone(samples=self._samples, votes=self._worlds.votes, taken=self._taken)
            self._sum_parts(group, control)
            return control
        control, work = self._begun
        if work is None or self._broken is not None:
            raise self._broken or WorldBroken("not begun")
        group.finish(work)
        control.check()
        if self._virtual is not None:
            self._sum_parts(group, control)
        elif control.samples:
            if not self._samples:
                self._buckets.begin(group, 1.0, overlap=False)
            self._buckets.finish(contributes=bool(self._samples))
        return control

    def _sum_parts(self, group: Group | None, control: Control) -> None:
        """With virtual ranks: the mean over all of them, once all are there. Raises WorldBroken."""
        feed = self._feeds.get(control.mark) if self._round is None else self._round.feed
        if self._virtual is None or feed is None or not control.samples:
            return
        current = self._open_round(feed)
        if current.is_complete(control.taken):
            self._virtual.sum(group, current.parts, current.samples)

    def _advance(self, group: Group | None, summed: Control) -> None:
        """The round is finished on all workers: change the state, the same on each."""
        replica = self._replica
        size = 1 if group is None else group.place.size
        passed = summed.votes == size
        if (size == 1 or self._virtual is not None) and self._worlds.followers:
            self._buckets.wait_for_room()  # Before the state is locked, for whoever reads it must be able to go on.
        with replica.changing():
            donors = self._worlds.followers
            scale = self._take_gradients(summed, size, logged=bool(donors))
            if summed.samples:
                for donor in donors:
                    donor.log_sums(self._buckets, scale)
                replica.apply()
            if self._virtual is not None:
                if summed.samples:
                    self._virtual.load_buffers()
                self._virtual.clear()
            elif size > 1 and (averaged := summed.averaged) is not None:
                replica.load_averaged(averaged)
            feed = self._advance_position(summed)
            replica.rounds += 1
            self._samples = 0.0
            for donor in donors:
                donor.log_round(passed=passed)
        self._round = None
        self._held_by_all = ()
        self._takers = []
        if feed is not None and (group is None or group.place.rank == 0):
            version = 0 if group is None else group.place.version
            self._link.report(feed.name, self._position(feed), replica.steps, version)
        self._saving.after_round()
        if passed:
            self._move()

    def _move(self) -> None:
        try:
            moved = self._worlds.move()
        except WorldBroken:
            self._recover()
            return
        if moved is not None:
            self._settle_or_recover(moved)

    def _take_gradients(self, summed: Control, size: int, *, logged: bool) -> float | None:
        """Make the mean over all samples the gradients; the answer is what the sums in the buckets were scaled by."""
        if not summed.samples:
            return None
        if size > 1 and self._virtual is None:
            scale = 1.0 / summed.samples
            self._buckets.take_sums(scale)
            return scale
        if self._samples != self._unit and self._virtual is None:
            for parameter in self._replica.trained:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._unit / self._samples)
        if logged:
            self._buckets.copy_in()
        return None

    def _advance_position(self, summed: Control) -> LockstepFeed | None:
        """Count the samples of the round; the answer is the data set that they are from."""
        if not sum(summed.taken) and not self._held_by_all and (self._round is None or not self._round.held):
            return None
        feed = self._feeds.get(summed.mark) if self._round is None else self._round.feed
        if feed is None:
            raise InvalidInput("trainer: other workers are in a loop over a data set that this one has not reached")
        self._replica.positions[feed.name] = self._open_round(feed).position_after(summed.taken)
        self._replica.is_in(feed.name)
        return feed

    # --- worlds ---

    def _recover(self) -> bool:
        """The world broke: go on in the next. True if this worker's round was finished by others, or is void."""
        self._worlds.broken()
        before = self._replica.rounds
        if (moved := self._worlds.wait()) is None:
            return True
        return self._settle_or_recover(moved) or self._replica.rounds != before

    def _settle_or_recover(self, moved: Moved) -> bool:
        """Be a member of the world that this worker has moved to, or of the one after it if it breaks at once.

        True if it is one with the state of the others, and what it had begun before is void.
        """
        while True:
            try:
                if moved.sync:
                    self._compare(moved.group, restore=not moved.over)
                break
            except WorldBroken:
                self._worlds.broken()
                again = self._worlds.wait()
                if again is None:
                    return True
                moved = again
        if not moved.sync:
            self._drop_round()
            # Newcomers need what the others compute in to come level: they take samples from the next round on.
            self._takers = [rank for rank in range(moved.group.place.size) if rank not in moved.newcomers]
        if moved.over and self._replica.rounds == 0:
            self._worlds.stay_out()
        self._buckets.watch(on=moved.group.place.size > 1)
        # Who must compare may come from the middle of a round, with statistics that are not averaged yet.
        checksum = self._replica.checksum(between_rounds=not moved.sync) if self._link.check_replicas else ""
        self._link.world_moved(moved.group.place.version, self._replica.rounds, checksum)
        if moved.group.place.rank == 0:
            # Whoever had this rank may be gone, and the last that it finished with it.
            for name in self._replica.positions.keys() - self._saving.untold.keys():
                self._link.report(name, self._replica.positions[name], self._replica.steps, moved.group.place.version)
        return not moved.sync

    def _compare(self, group: Group, *, restore: bool) -> None:
        """Bring all members to the state of those who are furthest, and agree on who holds which samples."""
        everyone = group.exchange(self._word() | self._saving.offer())
        if restore and self._saving.restore_best(group.place.rank, everyone):
            everyone = group.exchange(self._word())
        furthest = bring_level(group, self._replica, [one["rounds"] for one in everyone])
        if group.place.rank not in furthest:
            self._drop_round()
        self._agree(group, everyone, furthest)

    def _hold_together(self, group: Group | None) -> None:
        """Not all samples of the global batch were taken: agree on who holds which, and hand out the rest."""
        if group is None or self._round is None:
            return
        everyone = group.exchange(self._word())
        self._agree(group, everyone, range(len(everyone)))
        if self._feed is None and not self._round.held:
            self._round = None  # It is the others' alone.

    def _word(self) -> dict[str, Any]:
        """What the others must know of this worker to go on with a round together."""
        held = [] if self._round is None else [list(span) for span in self._round.held]
        return {"rounds": self._replica.rounds, "held": held, "takes": self._feed is not None}

    def _agree(self, group: Group, everyone: Sequence[dict[str, Any]], sources: Sequence[int]) -> None:
        self._held_by_all = merged((start, end) for rank in sources for start, end in everyone[rank]["held"])
        self._takers = [rank for rank, one in enumerate(everyone) if one["takes"]]
        if self._round is not None:
            self._round.replan(group.place, self._held_by_all, self._takers)

    def _drop_round(self) -> None:
        self._drop_gradients()
        self._round = None

    def _drop_gradients(self) -> None:
        self._samples = 0.0
        self._in_hand = 0
        if self._virtual is not None:
            self._virtual.clear()
        self._replica.optimizer.zero_grad(set_to_none=True)
