"""BrainClient: a job's line to the Brain, which never makes the job wait.

What is to be told is put into a bounded buffer and sent behind the caller's back, oldest first, until the Brain has
acknowledged it; rows have numbers, so that one that is sent twice is stored once. A question is given up in a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog
from google.protobuf.message import Message

from elastane.core.backoff import delays
from elastane.model.brain import Advice, ReportedWindow, RunIdentity
from elastane.model.errors import BrainUnreachable, ElastaneError, InvalidInput, MalformedMessage, RequestRefused
from elastane.model.sizing import Budget, Change
from elastane.rpc import brain_wire
from elastane.rpc.channel import BrainChannel
from elastane.rpc.protos import brain_pb2 as pb

PLAN_TIMEOUT_S = 1.0
MOST_BUFFERED = 2000
"""Rows that wait for a Brain that is away; at one every ten seconds, those of five hours. Then the oldest go."""

_BATCH = 500
_CALL_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.2, 30.0
_SERVICE = pb.DESCRIPTOR.services_by_name["Brain"]

R = TypeVar("R", bound=Message)
_log = structlog.get_logger("elastane.brain_client")

OnReachable = Callable[[bool, str], None]
"""Called when the Brain goes away (False, why) and when it is back (True), not again while that stays so."""


def _pauses() -> Iterator[float]:
    return delays(_FIRST_PAUSE_S, _MOST_PAUSE_S, random.Random())  # noqa: S311  # jitter, not a secret


class BrainClient:
    """Tells the Brain of one run, and asks it. One asyncio loop owns it; `report` and `outcome` return at once."""

    def __init__(
        self,
        address: str,
        token: str,
        run: RunIdentity,
        clock: Callable[[], float],
        on_reachable: OnReachable = lambda _reachable, _why: None,
        *,
        most_buffered: int = MOST_BUFFERED,
    ) -> None:
        """`clock` is seconds since the run began, also for a master after another. Raises InvalidInput."""
        self._run = brain_wire.checked_run(run)
        self._clock = clock
        self._on_reachable = on_reachable
        self._address, self._token = address, token
        self._channel: BrainChannel | None = None
        self._sending: asyncio.Task[None] | None = None
        self._sender = secrets.randbelow(2**63 - 1) + 1
        self._numbered = 0
        self._rows: deque[pb.WindowRow] = deque(maxlen=most_buffered)
        self._outcomes: dict[int, pb.OutcomeRequest] = {}
        self._registered = False
        self._reachable = True
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failed = asyncio.Event()
        """Set whenever an attempt to send has failed, for those who wait for it."""
        self.acknowledged = 0
        """Rows that the Brain has stored."""
        self.dropped = 0
        """Rows that were lost because the Brain was away for too long, or that it refused."""

    def start(self) -> None:
        """Begin to send."""
        self._channel = BrainChannel(self._address, self._token)
        self._work.set()  # To be registered does not wait for the first row: a plan may be asked for before.
        self._sending = asyncio.create_task(self._send_forever())

    def report(self, reported: ReportedWindow) -> None:
        """Tell of a window, without waiting. Raises InvalidInput for one that cannot be true; it is not told."""
        brain_wire.checked_report(reported, self._clock())
        if len(self._rows) == self._rows.maxlen:
            self.dropped += 1
        self._numbered += 1
        self._rows.append(brain_wire.row_to_wire(self._numbered, reported))
        self._begin()

    def outcome(self, number: int, change: Change, plan: int = 0) -> None:
        """Tell of the run's change of this number, without waiting, and again whenever more is known of it.

        `plan` is the number of the advice that it follows, 0 if it follows none. Raises InvalidInput.
        """
        brain_wire.checked_change(change, self._clock())
        self._outcomes[number] = brain_wire.change_to_wire(self._run, number, change, plan)
        self._begin()

    async def plan(
        self,
        budget: Budget,
        remaining_samples: float | None,
        *,
        with_history: bool = False,
        assumed_cost_s: float | None = None,
        timeout_s: float = PLAN_TIMEOUT_S,
    ) -> Advice:
        """What to do next, after the Brain has all that was told before. Raises BrainUnreachable, InvalidInput."""
        request = brain_wire.plan_request(
            self._run,
            self._clock(),
            budget,
            remaining_samples,
            with_history=with_history,
            assumed_cost_s=assumed_cost_s,
        )
        brain_wire.checked_plan_request(request)
        try:
            async with asyncio.timeout(timeout_s):
                await self._flushed()
                answer = await self._call("Plan", request, pb.Planned, timeout_s)
                return brain_wire.advice_from_wire(answer)
        except TimeoutError:
            raise BrainUnreachable(
                f"the Brain at {self._address} does not answer within {timeout_s:g} seconds"
            ) from None
        except (RequestRefused, MalformedMessage, InvalidInput) as error:
            if isinstance(error, RequestRefused):
                self._register_again()  # It may have another database by now.
            raise BrainUnreachable(f"the Brain at {self._address} cannot be used: {error}") from None

    async def finish(self, exit_reason: str, timeout_s: float = 2.0) -> bool:
        """Tell how the run ended, after all that was told before; False if the Brain did not hear it in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._flushed()
                await self._call("Finish", pb.FinishRequest(run=self._run.run, exit_reason=exit_reason), pb.Finished)
        except (TimeoutError, ElastaneError):
            return False
        return True

    async def close(self) -> None:
        """Stop to send; what was not acknowledged by now is lost."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    @property
    def waiting(self) -> int:
        """How many rows are not acknowledged yet."""
        return len(self._rows)

    def _register_again(self) -> None:
        self._registered = False
        self._begin()

    def _begin(self) -> None:
        self._idle.clear()
        self._work.set()

    async def _flushed(self) -> None:
        """Wait until all is acknowledged. Raises BrainUnreachable if an attempt fails meanwhile."""
        self._failed.clear()
        self._hurry.set()
        while not self._idle.is_set():
            waits = [asyncio.ensure_future(event.wait()) for event in (self._idle, self._failed)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if self._failed.is_set():
                raise BrainUnreachable(f"the Brain at {self._address} does not take what it is told")

    async def _send_forever(self) -> None:
        pauses = _pauses()
        while True:
            await self._work.wait()
            try:
                await self._send_all()
            except (BrainUnreachable, RequestRefused, MalformedMessage) as error:
                self._failed.set()
                self._say(reachable=False, why=str(error))
                self._hurry.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), next(pauses))
            else:
                pauses = _pauses()
                self._say(reachable=True)

    def _say(self, *, reachable: bool, why: str = "") -> None:
        if reachable is not self._reachable:
            self._reachable = reachable
            self._on_reachable(reachable, why)

    async def _send_all(self) -> None:
        """Send all that waits. Raises BrainUnreachable, RequestRefused, MalformedMessage; what is left stays."""
        if not self._registered:
            await self._call("Register", brain_wire.run_to_wire(self._run, self._clock()), pb.Registered)
            self._registered = True
        try:
            while self._rows:
                await self._send_rows([row for row, _ in zip(self._rows, range(_BATCH), strict=False)])
            while self._outcomes:
                number, outcome = next(iter(self._outcomes.items()))
                try:
                    await self._call("Outcome", outcome, pb.OutcomeStored)
                except MalformedMessage as error:
                    _log.warning("brain_refused_an_outcome", reason=str(error))
                if self._outcomes.get(number) is outcome:  # Nothing newer came meanwhile.
                    del self._outcomes[number]
        except RequestRefused:
            self._register_again()
            raise
        if not self._rows and not self._outcomes:
            self._work.clear()
            self._idle.set()

    async def _send_rows(self, rows: list[pb.WindowRow]) -> None:
        try:
            request = pb.ReportRequest(run=self._run.run, sender=self._sender, row=rows)
            if not (await self._call("Report", request, pb.Reported)).stored:
                raise BrainUnreachable(f"the Brain at {self._address} has too much to do")
            self.acknowledged += len(rows)
            self._say(reachable=True)
        except MalformedMessage as error:
            if len(rows) > 1:
                # One row must not take the others with it.
                for row in rows:
                    await self._send_rows([row])
                return
            self.dropped += 1
            _log.warning("brain_refused_a_row", reason=str(error))
        while self._rows and self._rows[0].number <= rows[-1].number:
            self._rows.popleft()

    async def _call(self, method: str, request: Message, answer: type[R], timeout_s: float = _CALL_TIMEOUT_S) -> R:
        if self._channel is None:
            raise BrainUnreachable("the Brain was not called yet: the client has not been started")
        return await self._channel.call(_SERVICE, method, request, answer, timeout_s)
