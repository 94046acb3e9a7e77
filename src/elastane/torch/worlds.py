"""Worlds: the world that this worker is in, and the next one, which is built behind its steps.

The link's thread says which world comes; a thread for each builds its group, hands over the state or follows it, and
says ready. The training thread only votes, and moves between two steps. When a world breaks, it waits for the next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from elastane.model.errors import ElastaneError, NodeUnfit
from elastane.model.world import Place
from elastane.torch import node_check
from elastane.torch.buckets import GradientBuckets
from elastane.torch.groups import Group, WorldBroken, build
from elastane.torch.handover import Donor, Follower
from elastane.torch.replica import Replica
from elastane.worker.link import WorldLink

LEAVE_PATIENCE_S = 20.0
"""How long a worker that leaves works on, when the others cannot form a world without it."""

LOOK_UP_S = 0.5
THREADS_END_S = 2.0

_log = logging.getLogger("elastane.torch")


@dataclass(frozen=True)
class Moved:
    """The world that this worker is in now. With `sync` its members must compare their states first."""

    group: Group
    sync: bool
    over: bool
    """Whether those who trained before are done and gone."""
    newcomers: tuple[int, ...]
    """The ranks of those who followed the others until now."""


@dataclass
class _Coming:
    place: Place
    recover: bool
    over: bool
    group: Group | None = None
    sync: bool = True
    ready: bool = False
    go: bool = False
    follows: bool = False
    followed: bool = False
    newcomers: tuple[int, ...] = ()
    donors: list[Donor] = field(default_factory=list)

    def drop(self) -> None:
        for donor in self.donors:
            donor.stop()
        if self.group is not None:
            self.group.abort()


class Worlds:
    """A WorldFollower, and the training thread's way from world to world."""

    def __init__(self, link: WorldLink, replica: Replica, buckets: GradientBuckets, backend: str) -> None:
        self.current: Group | None = None
        self.left = False
        """Whether this worker is out for good."""
        self._link = link
        self._replica = replica
        self._buckets = buckets
        self._backend = backend
        self._changed = threading.Condition()
        self._coming: _Coming | None = None
        self._builders: list[threading.Thread] = []
        self._retired: list[Group] = []
        """Worlds that this worker has left; others may still wait for what it sent in them."""
        self._leave_version = 0
        self._settled_version = 0
        self._leave_by: float | None = None
        self._waits = False
        self._outside = False
        """Whether the others have gone on without this worker: it is a newcomer again."""
        self._failure: Exception | None = None
        self._said_full_copy = False
        self._check_s: float | None = None
        link.join_world(self)

    # --- the link's thread ---

    def rejoin(self) -> None:
        with self._changed:
            self._drop_coming()
            if self.current is not None:
                self.current.abort()
                self._outside = True
            self._changed.notify_all()
        if self._leave_by is not None:
            self._link.give_notice()

    def next_world(self, place: Place, *, recover: bool, over: bool) -> None:
        if self.left:
            # A master that came after another, and lost the last that it heard, may not know: it is told again.
            self._link.give_notice()
            return
        with self._changed:
            known = [one.place.version for one in (self.current, self._coming) if one is not None]
            if not self._outside and place.version <= max(known, default=0):
                return  # A master that came after another tells it once more.
            self._drop_coming()
            self._leave_version = 0
            coming = self._coming = _Coming(place, recover, over)
            if recover and self.current is not None:
                self.current.abort()
            self._changed.notify_all()
        builder = threading.Thread(target=self._prepare, args=(coming,), name="elastane-world", daemon=True)
        self._builders = [*(thread for thread in self._builders if thread.is_alive()), builder]
        builder.start()

    def go(self, version: int) -> None:
        with self._changed:
            if self._coming is not None and self._coming.place.version == version:
                self._coming.go = True
            elif self.current is not None and version > self.current.place.version and not self._outside:
                self._leave_version = version
            self._changed.notify_all()

    def settled(self, version: int) -> None:
        with self._changed:
            self._settled_version = version
            for group in [group for group in self._retired if group.place.version < version]:
                self._retired.remove(group)
                group.abort()
            if self._leave_version == version and self._leave_by is not None:
                # The others have moved, or all leave: nobody waits for this worker any more.
                self._leave()
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # --- the training thread ---

    @property
    def votes(self) -> bool:
        """Whether this worker could move after the round that begins."""
        coming = self._coming
        return bool(self._leave_version) or (coming is not None and coming.go and not coming.recover)

    def move(self) -> Moved | None:
        """All voted: go to the next world. None if it is one without this worker.

        Raises WorldBroken if some of its members were lost since.
        """
        with self._changed:
            if self._leave_version:
                self._leave()
                return None
            if not self.votes:
                raise WorldBroken("the next world is broken")
            return self._enter_coming()

    def wait(self, give_up: Callable[[], bool] = lambda: False) -> Moved | None:
        """Wait for a world: the first, or the next after a broken one.

        None if this worker is out; or if it follows the others and knows what they know, and `give_up` says to go on.
        Raises what the link failed with.
        """
        with self._changed:
            self._waits = True
            self._say_ready()
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: self._may_stop_waiting(give_up), LOOK_UP_S):
                if self.overdue:
                    self.left = True  # There will be no world in which this worker could say goodbye.
            self._waits = False
            if self.left or not (self._failure or self._can_enter()):
                return None
            if self._failure is not None:
                raise self._failure
            return self._enter_coming()

    def broken(self) -> None:
        """A collective of the current world failed: end it for all, and tell the master."""
        with self._changed:
            if self.current is not None:
                self.current.abort()
                self._link.world_broken(self.current.place.version)

    def give_notice(self) -> None:
        """This worker will leave. Safe in a signal handler."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + LEAVE_PATIENCE_S
            self._link.give_notice()

    @property
    def overdue(self) -> bool:
        """Whether this worker has waited long enough for the others to do without it."""
        return self._leave_by is not None and time.monotonic() > self._leave_by

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait until something may have changed, but not long."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wait_settled(self, timeout_s: float) -> None:
        """After this worker has left: wait until the others no longer need what it may still send them."""
        with self._changed:
            self._changed.wait_for(lambda: self._settled_version >= self._leave_version, timeout_s)

    def stay_out(self) -> None:
        """There is nothing to do for this worker."""
        self.left = True

    def close(self) -> None:
        """Break whatever there is: this worker is done, well or not."""
        with self._changed:
            self.left = True
            self._drop_coming()
            for group in (*self._retired, self.current):
                if group is not None:
                    group.abort()
            self._changed.notify_all()

    def join_threads(self) -> None:
        """After all is closed: gloo must not call Python any more when Python ends."""
        for thread in self._builders:
            thread.join(THREADS_END_S)

    @property
    def followers(self) -> list[Donor]:
        """Those who send this worker's rounds to newcomers."""
        coming = self._coming
        return [] if coming is None else list(coming.donors)

    # --- inside ---

    def _leave(self) -> None:
        self.left = True
        self._drop_coming()
        if self._settled_version >= self._leave_version and self.current is not None:
            self.current.abort()

    @property
    def _is_member(self) -> bool:
        return self.current is not None and not self._outside

    def _may_stop_waiting(self, give_up: Callable[[], bool]) -> bool:
        knows = self._coming is not None and self._coming.follows and self._coming.ready
        return self.left or self._failure is not None or self._can_enter() or (knows and give_up())

    def _can_enter(self) -> bool:
        """Whether this worker, which is in no world that works, may go to the coming one."""
        coming = self._coming
        if coming is None or coming.group is None:
            return False
        if coming.follows:
            return coming.followed
        # Who was in a world when it broke goes on with those who were, and with nobody else before.
        return coming.go and (coming.recover or not self._is_member)

    def _enter_coming(self) -> Moved:
        coming = self._coming
        if coming is None or coming.group is None:
            raise AssertionError("a move to a world that is not there")
        self._coming = None
        if self.current is not None:
            self._retired.append(self.current)
        self.current = coming.group
        self._outside = False
        return Moved(coming.group, coming.sync, coming.over, coming.newcomers)

    def _drop_coming(self) -> None:
        if self._coming is not None:
            self._coming.drop()
            self._coming = None

    def _prepare(self, coming: _Coming) -> None:
        """In a thread of its own: build the coming world, and be ready for it."""
        try:
            if self._check_s is None:
                self._check_s = node_check.measure(self._replica.device)
            group = build(self._link, coming.place, self._replica.device, self._backend)
            with self._changed:
                if self._coming is not coming:
                    group.abort()
                    return
                coming.group = group
                member = self._is_member and not coming.recover
            everyone = group.exchange({"member": member, "check_s": self._check_s})
            members = [rank for rank, one in enumerate(everyone) if one["member"]]
            if not member and not coming.recover:
                others = [one["check_s"] for rank, one in enumerate(everyone) if rank != coming.place.rank]
                node_check.compare(self._check_s, others)
            coming.sync = not members
            coming.newcomers = tuple(rank for rank in range(coming.place.size) if rank not in members)
            if members and coming.newcomers:
                self._hand_over(coming, group, members, member=member)
            else:
                self._prepared(coming)
        except NodeUnfit as error:
            self.failed(error)
        except (WorldBroken, ElastaneError) as error:
            with self._changed:
                if self._coming is not coming:
                    return
            _log.info("world %s cannot be built: %s", coming.place.version, error)
            self._link.world_broken(coming.place.version)
        except Exception as error:  # noqa: BLE001  # whatever it is, somebody must hear of it
            # Of the optimizer, say, which is the user's. Who trains already can do so without the coming world.
            _log.exception("world %s cannot be prepared", coming.place.version)
            if self._is_member:
                self._link.world_broken(coming.place.version)
            else:
                self.failed(error)

    def _hand_over(self, coming: _Coming, group: Group, members: list[int], *, member: bool) -> None:
        """Some members of the coming world have the state, some need it: pair them."""
        reason = self._replica.why_not_followable
        coming.sync = reason is not None
        pairs = {newcomer: members[number % len(members)] for number, newcomer in enumerate(coming.newcomers)}
        if reason is not None and not self._said_full_copy:
            self._said_full_copy = True
            _log.warning("a new worker gets a full copy of the state while all wait: %s", reason)
        if not member:
            with self._changed:
                coming.follows = True
                # The training script may use its model until it waits for the world.
                self._changed.wait_for(lambda: self._waits or self._coming is not coming)
                if self._coming is not coming:
                    return
            Follower(group, pairs[coming.place.rank], self._replica, self._buckets).run(lambda: self._prepared(coming))
            with self._changed:
                coming.followed = True
                self._changed.notify_all()
            return
        for newcomer, donor in pairs.items():
            if donor == coming.place.rank:
                with self._changed:
                    if self._coming is coming:
                        coming.donors.append(Donor(group, newcomer, self._replica, coming.donors.remove))
                        coming.donors[-1].start()
        self._prepared(coming)

    def _prepared(self, coming: _Coming) -> None:
        with self._changed:
            coming.ready = True
            self._changed.notify_all()
            if self._coming is coming and (self._waits or self._is_member):
                self._link.world_ready(coming.place.version)

    def _say_ready(self) -> None:
        """The training thread waits for a world now: if one was only waiting for that, it is ready."""
        if self._coming is not None and self._coming.ready:
            self._link.world_ready(self._coming.place.version)
