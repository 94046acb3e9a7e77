"""The one error tree.

Every error that elastane raises on purpose is an `ElastaneError`. Its text is one line that names what was wrong, the
value, and what is allowed, so that a command line may print it as it is.
"""

from __future__ import annotations


class ElastaneError(Exception):
    """Root of every error that elastane raises on purpose."""


class InvalidInput(ElastaneError):
    """What a person wrote (a flag, a file, a quantity) cannot be used."""


class InvalidJobSpec(InvalidInput):
    """A job spec does not validate; `problems` holds one line for each field at fault."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RequestRefused(ElastaneError):
    """A well-formed request that the job's rules do not allow; nothing was changed."""


class IllegalTransition(ElastaneError):
    """A node was to move between two statuses that do not follow each other."""


class StaleLease(ElastaneError):
    """A worker spoke of a task that it does not hold (any more)."""


class MalformedMessage(ElastaneError):
    """Bytes from the network that are not a message of this protocol, or hold values out of bounds."""


class JobNotFound(ElastaneError):
    """No job of that name is known to this user."""


class JobExists(ElastaneError):
    """A job of that name is already known to this user."""


class NotInTime(ElastaneError, TimeoutError):
    """What was waited for did not come in the time that the caller gave it; nothing was changed."""


class MasterUnreachable(ElastaneError):
    """The job's master does not answer at its address."""


class BrainUnreachable(ElastaneError):
    """The Brain does not answer, or not in time, or has too much to do; a job goes on without it."""


class DatabaseUnavailable(ElastaneError):
    """The Brain's database does not answer, or cannot be used; nothing was stored."""


class NodeUnfit(ElastaneError):
    """This worker computes wrongly, or far more slowly than the others, and would spoil every step."""


class StateLost(ElastaneError):
    """The training state is gone with the workers that had it."""


class EvaluationFailed(ElastaneError):
    """The script's own evaluation code raised an error, and nobody else can try."""


class JournalDamaged(ElastaneError):
    """What the master before wrote down cannot be trusted."""


class JournalLost(ElastaneError):
    """What the master before wrote down is gone."""


class CheckpointMisfit(ElastaneError):
    """A checkpoint is of another model, or of other settings, than it is to be restored into; nothing was changed."""


class ClosureCancelled(ElastaneError):
    """A closure was not run to its end, because another one failed before it or the coordinator was closed."""


class ClosureFailed(ElastaneError):
    """A closure raised an error on its worker that cannot travel, or that is told as text here."""


class ClosureFailedWorkers(ElastaneError):
    """Every worker that ran one closure was lost with it; running it again would only cost another."""


class WorkerLost(ElastaneError):
    """A coordinator's worker does not answer any more; what it was doing is run again elsewhere."""


class WorkerUnreachable(ElastaneError):
    """No worker answers at the address that is to be added; nothing was changed."""


class UnsupportedVersion(ElastaneError):
    """An installed library is of a version whose insides elastane was not tested with."""


class DatasetMismatch(ElastaneError):
    """Two workers described one data set differently."""


class TableMismatch(ElastaneError):
    """A table of that name is there, and it is another one."""


class ServersUnreachable(ElastaneError):
    """Parameter servers did not answer for longer than the caller would wait; nothing is known to be lost."""


class TableUnknown(ElastaneError):
    """A request speaks of a table that was not defined here."""


class ServerFull(ElastaneError):
    """A parameter server would need more memory than it may have; nothing was changed."""


class PlatformError(ElastaneError):
    """The platform that hosts the nodes failed or went away."""
