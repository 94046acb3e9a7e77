"""A worker: the thread that feeds closures to one remote server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from elastane.coordinator.closure_queue import Cancellable, ClosureQueue
from elastane.core.closures import WorkerState
from elastane.model.errors import WorkerLost


class Closure(Cancellable, Protocol):
    def failed(self, error: BaseException) -> None:
        """It raised this error."""


C = TypeVar("C", bound=Closure)
C_contra = TypeVar("C_contra", contravariant=True)


class Interrupted(Exception):
    """A closure did not come to its end, through no fault of its own or of its worker: it may be run again."""


class Remote(Protocol[C_contra]):
    """One remote server, as its worker's thread uses it."""

    def run(self, closure: C_contra) -> None:
        """Run a closure and keep its result. Raises WorkerLost, Interrupted, or the closure's own error."""

    def answers(self) -> bool:
        """Whether the server is there, and is still the one that was connected."""

    def close(self) -> None:
        """Let go of the connection."""


class Worker(Generic[C]):
    """Running, its thread takes closures from the queue; stopped, the thread has ended and the connection stays."""

    def __init__(
        self,
        index: int,
        address: str,
        remote: Remote[C],
        queue: ClosureQueue[C],
        on_lost: Callable[[Worker[C], str], None],
    ) -> None:
        self.index = index
        self.address = address
        self.remote = remote
        self._queue = queue
        self._on_lost = on_lost
        queue.admit(index)
        self._thread = self._started()

    @property
    def state(self) -> WorkerState | None:
        return self._queue.state(self.index)

    def stop(self) -> None:
        """Finish the closure in hand, take no more, and end the thread. A stopped worker stays stopped."""
        self._queue.stop(self.index)
        self._thread.join()

    def restart(self) -> None:
        """Take closures again. Raises IllegalTransition if it is not stopped."""
        self._queue.restart(self.index)
        self._thread = self._started()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._feed, name=f"coordinator-worker-{self.index}", daemon=True)
        thread.start()
        return thread

    def _feed(self) -> None:
        queue, remote, index = self._queue, self.remote, self.index
        finished = False
        while (closure := queue.take(index, finished=finished)) is not None:
            finished = False
            try:
                remote.run(closure)
                finished = True
            except Interrupted:
                queue.give_back(index, begun=True)
            except WorkerLost as loss:
                remote.close()
                queue.lose(index, str(loss))
                self._on_lost(self, str(loss))
                return
            except BaseException as error:  # noqa: BLE001  # whatever the user's function raises is told in `join`
                closure.failed(error)
                queue.fail(index, error)
            del closure  # While this thread waits for the next one, nobody should be kept alive by the last.
