"""What a client answers: a job, its nodes, its data, and what is known of its model. All of it is of one moment."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane.client.cluster import ClusterJob
    from elastane.rpc.protos import control_pb2 as pb


class JobState(enum.StrEnum):
    """Where a job is in its life. The last three are ends."""

    STARTING = "starting"
    """Its master does not serve yet, or in a cluster: it does not train yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Somebody has ended it, and its nodes are leaving."""
    SUSPENDED = "suspended"
    """It has no pods for now; only in a cluster."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """Somebody has ended it."""

    @property
    def ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True)
class NodeView:
    """A node of a job: a process, or a pod."""

    name: str
    """Its full name, such as `first-worker-0`."""
    role: str
    """`worker`, `ps` or `evaluator`; in a cluster also `master`."""
    id: int
    status: str
    """`initial`, `pending`, `running`, `succeeded`, `failed` or `deleted`; of a pod that is being deleted `leaving`."""
    reason: str = ""
    """Why it ended; of a pod, why it does not run. Empty if there is nothing to say."""
    restarts: int = 0
    """What its slot has used of the relaunches that it may have."""
    leaving: bool = False
    """Whether it was told to leave, and still lives."""
    rank: int | None = None
    """Its place in the current world, for a member. This and what follows is known of local jobs."""
    slot: int = 0
    pid: int | None = None
    """Its process, while it runs."""
    attending: bool = False
    """Whether its stream to the master is open."""
    committed_samples: int = 0
    cpu: float = 0.0
    """Cores that it uses; 0 if it says nothing."""
    memory_bytes: int = 0
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class DatasetView:
    """How far a job is with one data set."""

    name: str
    endless: bool
    epoch_size: int
    epochs: int
    epoch: int
    """The first that is not wholly committed."""
    epoch_committed: int
    """Samples that are committed of that one."""
    committed: int
    """Samples that are committed in all."""
    leased_shards: int
    retried_shards: int
    """Tries that failed."""
    finished: bool


@dataclass(frozen=True)
class VersionView:
    """A version of the model, by the step after which it was kept, and how good it is."""

    step: int
    metrics: Mapping[str, float | None]
    """Values by name; None where there is no number."""


@dataclass(frozen=True)
class EvaluationView:
    """What is known of the model's quality."""

    running: int | None
    """The version that is evaluated now, by its step."""
    committed: int
    """Samples of it that are evaluated."""
    size: int
    last: VersionView | None
    best: VersionView | None
    goal: str
    """What the best is the best by, such as `auc:max`; empty without one."""


@dataclass(frozen=True)
class ServerView:
    """A parameter server."""

    node: str
    buckets: int
    backups: int
    memory_bytes: int
    rows_per_s: float
    leaving: bool


@dataclass(frozen=True)
class TableView:
    """A table on the parameter servers; backups count too."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class ServersView:
    """The parameter servers of a job."""

    wanted: int
    version: int
    settled: bool
    """Whether every bucket is where it should be."""
    buckets: int
    moving: int
    """Buckets that are on their way."""
    checkpoint: str | None
    """The folder of the last whole one."""
    nodes: tuple[ServerView, ...]
    tables: tuple[TableView, ...]


@dataclass(frozen=True)
class JobView:
    """A job. What stands after `nodes` is known of local jobs, but for `cluster`."""

    name: str
    state: JobState
    reason: str = ""
    """Why it failed; in a cluster, why it is in its state."""
    elapsed_s: float = 0.0
    """Seconds that its master has lived, or since it was created in the cluster."""
    nodes: tuple[NodeView, ...] = ()
    """All that there were, the ended ones too. A list of a cluster's jobs leaves them out."""
    workers_wanted: int = 0
    world_version: int = 0
    """The current world's, from 1; 0 before the first."""
    world_size: int = 0
    steps: int = 0
    """Steps that the workers have made together; 0 without a trainer."""
    loss: float | None = None
    """The mean of what the workers said last of their losses."""
    samples_per_s: float = 0.0
    """Committed samples per second, over the last ten seconds."""
    datasets: tuple[DatasetView, ...] = ()
    evaluation: EvaluationView | None = None
    servers: ServersView | None = None
    cluster: ClusterJob | None = field(default=None, repr=False)
    """What the cluster says of it: namespace, phase, conditions, counts. None for a local job."""
    message: pb.JobStatus | None = field(default=None, repr=False, compare=False)
    """The master's own words, which all of the above is made of. None in a cluster."""

    @property
    def ended(self) -> bool:
        return self.state.ended

    @property
    def committed(self) -> int:
        """Samples that are committed, of all data sets."""
        return sum(dataset.committed for dataset in self.datasets)

    def running(self, role: str = "worker") -> tuple[NodeView, ...]:
        """The nodes of a role that run, and those of them that are leaving."""
        return tuple(node for node in self.nodes if node.role == role and node.status in ("running", "leaving"))
