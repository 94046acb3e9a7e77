from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HistoryView(_message.Message):
    __slots__ = ("series",)
    SERIES_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedCompositeFieldContainer[SeriesView]
    def __init__(self, series: _Optional[_Iterable[_Union[SeriesView, _Mapping]]] = ...) -> None: ...

class SeriesView(_message.Message):
    __slots__ = ("name", "at", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    at: _containers.RepeatedScalarFieldContainer[float]
    value: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., at: _Optional[_Iterable[float]] = ..., value: _Optional[_Iterable[float]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("status_interval_s",)
    STATUS_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    status_interval_s: float
    def __init__(self, status_interval_s: _Optional[float] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("workers", "servers")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    workers: int
    servers: int
    def __init__(self, workers: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("group", "node", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: _containers.RepeatedCompositeFieldContainer[GroupResource]
    node: _containers.RepeatedCompositeFieldContainer[NodeResourceChange]
    reason: str
    def __init__(self, group: _Optional[_Iterable[_Union[GroupResource, _Mapping]]] = ..., node: _Optional[_Iterable[_Union[NodeResourceChange, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class GroupResource(_message.Message):
    __slots__ = ("role", "count", "cpu", "memory_bytes", "disk_bytes", "gpu")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    role: str
    count: int
    cpu: float
    memory_bytes: int
    disk_bytes: int
    gpu: int
    def __init__(self, role: _Optional[str] = ..., count: _Optional[int] = ..., cpu: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., gpu: _Optional[int] = ...) -> None: ...

class NodeResourceChange(_message.Message):
    __slots__ = ("node", "cpu", "memory_bytes", "disk_bytes", "gpu")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    node: str
    cpu: float
    memory_bytes: int
    disk_bytes: int
    gpu: int
    def __init__(self, node: _Optional[str] = ..., cpu: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., gpu: _Optional[int] = ...) -> None: ...

class MigrateRequest(_message.Message):
    __slots__ = ("node", "memory_bytes", "cpu")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    node: str
    memory_bytes: int
    cpu: float
    def __init__(self, node: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., cpu: _Optional[float] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("workers", "servers")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    workers: int
    servers: int
    def __init__(self, workers: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...

class PauseAutoscalingRequest(_message.Message):
    __slots__ = ("paused",)
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    def __init__(self, paused: _Optional[bool] = ...) -> None: ...

class SizingView(_message.Message):
    __slots__ = ("job", "stage", "autoscaled", "workers", "servers", "samples_per_s", "window", "line", "curve", "model", "limit", "next", "node", "change")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    AUTOSCALED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    job: str
    stage: str
    autoscaled: bool
    workers: int
    servers: int
    samples_per_s: float
    window: _containers.RepeatedCompositeFieldContainer[WindowView]
    line: _containers.RepeatedCompositeFieldContainer[SizingLine]
    curve: _containers.RepeatedCompositeFieldContainer[SizePoint]
    model: str
    limit: str
    next: str
    node: _containers.RepeatedCompositeFieldContainer[NodeUseView]
    change: _containers.RepeatedCompositeFieldContainer[ChangeView]
    def __init__(self, job: _Optional[str] = ..., stage: _Optional[str] = ..., autoscaled: _Optional[bool] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ..., samples_per_s: _Optional[float] = ..., window: _Optional[_Iterable[_Union[WindowView, _Mapping]]] = ..., line: _Optional[_Iterable[_Union[SizingLine, _Mapping]]] = ..., curve: _Optional[_Iterable[_Union[SizePoint, _Mapping]]] = ..., model: _Optional[str] = ..., limit: _Optional[str] = ..., next: _Optional[str] = ..., node: _Optional[_Iterable[_Union[NodeUseView, _Mapping]]] = ..., change: _Optional[_Iterable[_Union[ChangeView, _Mapping]]] = ...) -> None: ...

class ChangeView(_message.Message):
    __slots__ = ("at_s", "workers_before", "servers_before", "workers", "servers", "predicted", "realised", "cost_s", "rolled_back", "reason")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    REALISED_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    workers_before: int
    servers_before: int
    workers: int
    servers: int
    predicted: float
    realised: float
    cost_s: float
    rolled_back: bool
    reason: str
    def __init__(self, at_s: _Optional[float] = ..., workers_before: _Optional[int] = ..., servers_before: _Optional[int] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ..., predicted: _Optional[float] = ..., realised: _Optional[float] = ..., cost_s: _Optional[float] = ..., rolled_back: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class WindowView(_message.Message):
    __slots__ = ("at_s", "workers", "servers", "samples_per_s", "step_s", "input_wait_s", "pull_s", "push_s", "sync_s")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_S_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    workers: int
    servers: int
    samples_per_s: float
    step_s: float
    input_wait_s: float
    pull_s: float
    push_s: float
    sync_s: float
    def __init__(self, at_s: _Optional[float] = ..., workers: _Optional[int] = ..., servers: _Optional[int] = ..., samples_per_s: _Optional[float] = ..., step_s: _Optional[float] = ..., input_wait_s: _Optional[float] = ..., pull_s: _Optional[float] = ..., push_s: _Optional[float] = ..., sync_s: _Optional[float] = ...) -> None: ...

class SizingLine(_message.Message):
    __slots__ = ("at_s", "text")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    text: str
    def __init__(self, at_s: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class SizePoint(_message.Message):
    __slots__ = ("workers", "servers", "samples_per_s", "low", "high", "observed", "reason")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    workers: int
    servers: int
    samples_per_s: float
    low: float
    high: float
    observed: float
    reason: str
    def __init__(self, workers: _Optional[int] = ..., servers: _Optional[int] = ..., samples_per_s: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., observed: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeUseView(_message.Message):
    __slots__ = ("node", "cpu", "memory_bytes", "gpu_memory_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    cpu: float
    memory_bytes: int
    gpu_memory_bytes: int
    def __init__(self, node: _Optional[str] = ..., cpu: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("at_once",)
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    at_once: bool
    def __init__(self, at_once: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchUpdate(_message.Message):
    __slots__ = ("status", "event")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    status: JobStatus
    event: _containers.RepeatedCompositeFieldContainer[EventRecord]
    def __init__(self, status: _Optional[_Union[JobStatus, _Mapping]] = ..., event: _Optional[_Iterable[_Union[EventRecord, _Mapping]]] = ...) -> None: ...

class EventRecord(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "state", "reason", "elapsed_s", "workers_wanted", "node", "dataset", "samples_per_s", "world_version", "world_size", "steps", "evaluation", "servers", "loss", "autoscaled", "autoscaling_paused")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    WORLD_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    AUTOSCALED_FIELD_NUMBER: _ClassVar[int]
    AUTOSCALING_PAUSED_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: str
    reason: str
    elapsed_s: float
    workers_wanted: int
    node: _containers.RepeatedCompositeFieldContainer[NodeView]
    dataset: _containers.RepeatedCompositeFieldContainer[DatasetView]
    samples_per_s: float
    world_version: int
    world_size: int
    steps: int
    evaluation: EvaluationView
    servers: ServersView
    loss: float
    autoscaled: bool
    autoscaling_paused: bool
    def __init__(self, job: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., elapsed_s: _Optional[float] = ..., workers_wanted: _Optional[int] = ..., node: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ..., dataset: _Optional[_Iterable[_Union[DatasetView, _Mapping]]] = ..., samples_per_s: _Optional[float] = ..., world_version: _Optional[int] = ..., world_size: _Optional[int] = ..., steps: _Optional[int] = ..., evaluation: _Optional[_Union[EvaluationView, _Mapping]] = ..., servers: _Optional[_Union[ServersView, _Mapping]] = ..., loss: _Optional[float] = ..., autoscaled: _Optional[bool] = ..., autoscaling_paused: _Optional[bool] = ...) -> None: ...

class ServersView(_message.Message):
    __slots__ = ("wanted", "version", "settled", "buckets", "moving", "server", "table", "checkpoint")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    wanted: int
    version: int
    settled: bool
    buckets: int
    moving: int
    server: _containers.RepeatedCompositeFieldContainer[ServerView]
    table: _containers.RepeatedCompositeFieldContainer[TableView]
    checkpoint: str
    def __init__(self, wanted: _Optional[int] = ..., version: _Optional[int] = ..., settled: _Optional[bool] = ..., buckets: _Optional[int] = ..., moving: _Optional[int] = ..., server: _Optional[_Iterable[_Union[ServerView, _Mapping]]] = ..., table: _Optional[_Iterable[_Union[TableView, _Mapping]]] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class ServerView(_message.Message):
    __slots__ = ("node", "buckets", "backups", "memory_bytes", "rows_per_s", "leaving")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    node: str
    buckets: int
    backups: int
    memory_bytes: int
    rows_per_s: float
    leaving: bool
    def __init__(self, node: _Optional[str] = ..., buckets: _Optional[int] = ..., backups: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., rows_per_s: _Optional[float] = ..., leaving: _Optional[bool] = ...) -> None: ...

class TableView(_message.Message):
    __slots__ = ("name", "rows", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class EvaluationView(_message.Message):
    __slots__ = ("running", "committed", "size", "last", "best", "goal")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    running: int
    committed: int
    size: int
    last: VersionResult
    best: VersionResult
    goal: str
    def __init__(self, running: _Optional[int] = ..., committed: _Optional[int] = ..., size: _Optional[int] = ..., last: _Optional[_Union[VersionResult, _Mapping]] = ..., best: _Optional[_Union[VersionResult, _Mapping]] = ..., goal: _Optional[str] = ...) -> None: ...

class VersionResult(_message.Message):
    __slots__ = ("step", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    step: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("name", "type", "id", "slot", "status", "pid", "restarts", "attending", "leaving", "exit_reason", "committed_samples", "rank", "cpu", "memory_bytes", "cpu_limit", "memory_limit_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ATTENDING_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    EXIT_REASON_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    id: int
    slot: int
    status: str
    pid: int
    restarts: int
    attending: bool
    leaving: bool
    exit_reason: str
    committed_samples: int
    rank: int
    cpu: float
    memory_bytes: int
    cpu_limit: float
    memory_limit_bytes: int
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., id: _Optional[int] = ..., slot: _Optional[int] = ..., status: _Optional[str] = ..., pid: _Optional[int] = ..., restarts: _Optional[int] = ..., attending: _Optional[bool] = ..., leaving: _Optional[bool] = ..., exit_reason: _Optional[str] = ..., committed_samples: _Optional[int] = ..., rank: _Optional[int] = ..., cpu: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., cpu_limit: _Optional[float] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...

class DatasetView(_message.Message):
    __slots__ = ("name", "endless", "epoch_size", "epochs", "epoch", "epoch_committed", "committed", "leased_shards", "finished", "retried_shards")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDLESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LEASED_SHARDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_SHARDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    endless: bool
    epoch_size: int
    epochs: int
    epoch: int
    epoch_committed: int
    committed: int
    leased_shards: int
    finished: bool
    retried_shards: int
    def __init__(self, name: _Optional[str] = ..., endless: _Optional[bool] = ..., epoch_size: _Optional[int] = ..., epochs: _Optional[int] = ..., epoch: _Optional[int] = ..., epoch_committed: _Optional[int] = ..., committed: _Optional[int] = ..., leased_shards: _Optional[int] = ..., finished: _Optional[bool] = ..., retried_shards: _Optional[int] = ...) -> None: ...
