from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "define_dataset", "lease_request", "commit", "give_back", "goodbye", "join_world", "leave_world", "world_ready", "world_moved", "world_broken", "store_set", "store_get", "data_position", "resume_leases", "define_evaluation", "version_written", "task_done", "training_done", "journal_copy", "step_figures", "server_holds", "buckets_changed", "orders_failed", "link_lost", "server_load", "part_saved", "join_servers", "server_map_learned", "handover_word", "serve_closures", "coordinate")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DEFINE_DATASET_FIELD_NUMBER: _ClassVar[int]
    LEASE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    JOIN_WORLD_FIELD_NUMBER: _ClassVar[int]
    LEAVE_WORLD_FIELD_NUMBER: _ClassVar[int]
    WORLD_READY_FIELD_NUMBER: _ClassVar[int]
    WORLD_MOVED_FIELD_NUMBER: _ClassVar[int]
    WORLD_BROKEN_FIELD_NUMBER: _ClassVar[int]
    STORE_SET_FIELD_NUMBER: _ClassVar[int]
    STORE_GET_FIELD_NUMBER: _ClassVar[int]
    DATA_POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_LEASES_FIELD_NUMBER: _ClassVar[int]
    DEFINE_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    TASK_DONE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_DONE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_COPY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIGURES_FIELD_NUMBER: _ClassVar[int]
    SERVER_HOLDS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FAILED_FIELD_NUMBER: _ClassVar[int]
    LINK_LOST_FIELD_NUMBER: _ClassVar[int]
    SERVER_LOAD_FIELD_NUMBER: _ClassVar[int]
    PART_SAVED_FIELD_NUMBER: _ClassVar[int]
    JOIN_SERVERS_FIELD_NUMBER: _ClassVar[int]
    SERVER_MAP_LEARNED_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_WORD_FIELD_NUMBER: _ClassVar[int]
    SERVE_CLOSURES_FIELD_NUMBER: _ClassVar[int]
    COORDINATE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    define_dataset: DefineDataset
    lease_request: LeaseRequest
    commit: Commit
    give_back: GiveBack
    goodbye: Goodbye
    join_world: JoinWorld
    leave_world: LeaveWorld
    world_ready: WorldReady
    world_moved: WorldMoved
    world_broken: WorldBroken
    store_set: StoreSet
    store_get: StoreGet
    data_position: DataPosition
    resume_leases: ResumeLeases
    define_evaluation: DefineEvaluation
    version_written: VersionWritten
    task_done: TaskDone
    training_done: TrainingDone
    journal_copy: JournalCopy
    step_figures: StepFigures
    server_holds: ServerHolds
    buckets_changed: BucketsChanged
    orders_failed: OrdersFailed
    link_lost: LinkLost
    server_load: ServerLoad
    part_saved: PartSaved
    join_servers: JoinServers
    server_map_learned: ServerMapLearned
    handover_word: HandoverWord
    serve_closures: ServeClosures
    coordinate: Coordinate
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., define_dataset: _Optional[_Union[DefineDataset, _Mapping]] = ..., lease_request: _Optional[_Union[LeaseRequest, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., give_back: _Optional[_Union[GiveBack, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., join_world: _Optional[_Union[JoinWorld, _Mapping]] = ..., leave_world: _Optional[_Union[LeaveWorld, _Mapping]] = ..., world_ready: _Optional[_Union[WorldReady, _Mapping]] = ..., world_moved: _Optional[_Union[WorldMoved, _Mapping]] = ..., world_broken: _Optional[_Union[WorldBroken, _Mapping]] = ..., store_set: _Optional[_Union[StoreSet, _Mapping]] = ..., store_get: _Optional[_Union[StoreGet, _Mapping]] = ..., data_position: _Optional[_Union[DataPosition, _Mapping]] = ..., resume_leases: _Optional[_Union[ResumeLeases, _Mapping]] = ..., define_evaluation: _Optional[_Union[DefineEvaluation, _Mapping]] = ..., version_written: _Optional[_Union[VersionWritten, _Mapping]] = ..., task_done: _Optional[_Union[TaskDone, _Mapping]] = ..., training_done: _Optional[_Union[TrainingDone, _Mapping]] = ..., journal_copy: _Optional[_Union[JournalCopy, _Mapping]] = ..., step_figures: _Optional[_Union[StepFigures, _Mapping]] = ..., server_holds: _Optional[_Union[ServerHolds, _Mapping]] = ..., buckets_changed: _Optional[_Union[BucketsChanged, _Mapping]] = ..., orders_failed: _Optional[_Union[OrdersFailed, _Mapping]] = ..., link_lost: _Optional[_Union[LinkLost, _Mapping]] = ..., server_load: _Optional[_Union[ServerLoad, _Mapping]] = ..., part_saved: _Optional[_Union[PartSaved, _Mapping]] = ..., join_servers: _Optional[_Union[JoinServers, _Mapping]] = ..., server_map_learned: _Optional[_Union[ServerMapLearned, _Mapping]] = ..., handover_word: _Optional[_Union[HandoverWord, _Mapping]] = ..., serve_closures: _Optional[_Union[ServeClosures, _Mapping]] = ..., coordinate: _Optional[_Union[Coordinate, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "node", "resumes")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    node: str
    resumes: bool
    def __init__(self, protocol: _Optional[int] = ..., node: _Optional[str] = ..., resumes: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DefineDataset(_message.Message):
    __slots__ = ("name", "shard_size", "size", "indices", "endless", "epochs", "shuffle", "seed", "lockstep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    ENDLESS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOCKSTEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    shard_size: int
    size: int
    indices: IndexList
    endless: Endless
    epochs: int
    shuffle: bool
    seed: int
    lockstep: bool
    def __init__(self, name: _Optional[str] = ..., shard_size: _Optional[int] = ..., size: _Optional[int] = ..., indices: _Optional[_Union[IndexList, _Mapping]] = ..., endless: _Optional[_Union[Endless, _Mapping]] = ..., epochs: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., lockstep: _Optional[bool] = ...) -> None: ...

class IndexList(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[_Iterable[int]] = ...) -> None: ...

class Endless(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StepFigures(_message.Message):
    __slots__ = ("span_s", "steps", "samples", "input_wait_s", "pull_s", "push_s", "sync_s", "cpu_s", "memory_bytes", "gpu_memory_bytes", "fixed_global_batch", "longest_step_s", "loss")
    SPAN_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    INPUT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIXED_GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    LONGEST_STEP_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    span_s: float
    steps: int
    samples: int
    input_wait_s: float
    pull_s: float
    push_s: float
    sync_s: float
    cpu_s: float
    memory_bytes: int
    gpu_memory_bytes: int
    fixed_global_batch: bool
    longest_step_s: float
    loss: float
    def __init__(self, span_s: _Optional[float] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., input_wait_s: _Optional[float] = ..., pull_s: _Optional[float] = ..., push_s: _Optional[float] = ..., sync_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ..., fixed_global_batch: _Optional[bool] = ..., longest_step_s: _Optional[float] = ..., loss: _Optional[float] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("dataset", "count")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    count: int
    def __init__(self, dataset: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("task", "upto")
    TASK_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    task: int
    upto: int
    def __init__(self, task: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("dataset", "progress")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, dataset: _Optional[str] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class ResumeLeases(_message.Message):
    __slots__ = ("dataset", "held", "progress")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    held: _containers.RepeatedScalarFieldContainer[int]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, dataset: _Optional[str] = ..., held: _Optional[_Iterable[int]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class GiveBack(_message.Message):
    __slots__ = ("dataset", "task", "error")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    task: _containers.RepeatedScalarFieldContainer[int]
    error: str
    def __init__(self, dataset: _Optional[str] = ..., task: _Optional[_Iterable[int]] = ..., error: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("preempted", "over")
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    preempted: bool
    over: bool
    def __init__(self, preempted: _Optional[bool] = ..., over: _Optional[bool] = ...) -> None: ...

class JoinWorld(_message.Message):
    __slots__ = ("min_size", "max_size")
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    min_size: int
    max_size: int
    def __init__(self, min_size: _Optional[int] = ..., max_size: _Optional[int] = ...) -> None: ...

class LeaveWorld(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorldReady(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class WorldMoved(_message.Message):
    __slots__ = ("version", "rounds", "checksum")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    rounds: int
    checksum: str
    def __init__(self, version: _Optional[int] = ..., rounds: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class WorldBroken(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class StoreSet(_message.Message):
    __slots__ = ("version", "key", "value")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    key: str
    value: bytes
    def __init__(self, version: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class StoreGet(_message.Message):
    __slots__ = ("version", "key")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    version: int
    key: str
    def __init__(self, version: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class DataPosition(_message.Message):
    __slots__ = ("dataset", "start", "left", "step", "restored", "world")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    start: int
    left: _containers.RepeatedCompositeFieldContainer[Span]
    step: int
    restored: bool
    world: int
    def __init__(self, dataset: _Optional[str] = ..., start: _Optional[int] = ..., left: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., step: _Optional[int] = ..., restored: _Optional[bool] = ..., world: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class DefineEvaluation(_message.Message):
    __slots__ = ("size", "shard_size", "metric", "every_steps", "every_s", "at_end", "best", "early_stop", "export_folder")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOP_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    size: int
    shard_size: int
    metric: _containers.RepeatedScalarFieldContainer[str]
    every_steps: int
    every_s: float
    at_end: bool
    best: str
    early_stop: int
    export_folder: str
    def __init__(self, size: _Optional[int] = ..., shard_size: _Optional[int] = ..., metric: _Optional[_Iterable[str]] = ..., every_steps: _Optional[int] = ..., every_s: _Optional[float] = ..., at_end: _Optional[bool] = ..., best: _Optional[str] = ..., early_stop: _Optional[int] = ..., export_folder: _Optional[str] = ...) -> None: ...

class VersionWritten(_message.Message):
    __slots__ = ("step", "error")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    step: int
    error: str
    def __init__(self, step: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class TaskDone(_message.Message):
    __slots__ = ("dataset", "task", "state", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    task: int
    state: str
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, dataset: _Optional[str] = ..., task: _Optional[int] = ..., state: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TrainingDone(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class JournalCopy(_message.Message):
    __slots__ = ("lines", "last")
    LINES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    lines: bytes
    last: bool
    def __init__(self, lines: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class ServerHolds(_message.Message):
    __slots__ = ("owner_map", "buried")
    OWNER_MAP_FIELD_NUMBER: _ClassVar[int]
    BURIED_FIELD_NUMBER: _ClassVar[int]
    owner_map: bytes
    buried: int
    def __init__(self, owner_map: _Optional[bytes] = ..., buried: _Optional[int] = ...) -> None: ...

class BucketsChanged(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: _containers.RepeatedCompositeFieldContainer[BucketEntry]
    def __init__(self, entry: _Optional[_Iterable[_Union[BucketEntry, _Mapping]]] = ...) -> None: ...

class BucketEntry(_message.Message):
    __slots__ = ("bucket", "epoch", "owner", "backup")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    epoch: int
    owner: int
    backup: int
    def __init__(self, bucket: _Optional[int] = ..., epoch: _Optional[int] = ..., owner: _Optional[int] = ..., backup: _Optional[int] = ...) -> None: ...

class OrdersFailed(_message.Message):
    __slots__ = ("bucket", "reason", "fatal")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    bucket: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    fatal: bool
    def __init__(self, bucket: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., fatal: _Optional[bool] = ...) -> None: ...

class LinkLost(_message.Message):
    __slots__ = ("peer", "reason")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    peer: int
    reason: str
    def __init__(self, peer: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ServerLoad(_message.Message):
    __slots__ = ("bucket", "table", "memory_bytes", "step", "cpu")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    bucket: _containers.RepeatedScalarFieldContainer[float]
    table: _containers.RepeatedCompositeFieldContainer[TableLoad]
    memory_bytes: int
    step: int
    cpu: float
    def __init__(self, bucket: _Optional[_Iterable[float]] = ..., table: _Optional[_Iterable[_Union[TableLoad, _Mapping]]] = ..., memory_bytes: _Optional[int] = ..., step: _Optional[int] = ..., cpu: _Optional[float] = ...) -> None: ...

class TableLoad(_message.Message):
    __slots__ = ("name", "rows", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PartSaved(_message.Message):
    __slots__ = ("folder", "committed", "error")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    folder: str
    committed: bool
    error: str
    def __init__(self, folder: _Optional[str] = ..., committed: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class JoinServers(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client: _Optional[_Iterable[int]] = ...) -> None: ...

class ServerMapLearned(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class HandoverWord(_message.Message):
    __slots__ = ("join", "set_servers", "reached", "saved", "restored")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    SET_SERVERS_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    join: bool
    set_servers: ServerSet
    reached: int
    saved: int
    restored: int
    def __init__(self, join: _Optional[bool] = ..., set_servers: _Optional[_Union[ServerSet, _Mapping]] = ..., reached: _Optional[int] = ..., saved: _Optional[int] = ..., restored: _Optional[int] = ...) -> None: ...

class ServerSet(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[_Iterable[str]] = ...) -> None: ...

class ServeClosures(_message.Message):
    __slots__ = ("address", "leaving")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    address: str
    leaving: bool
    def __init__(self, address: _Optional[str] = ..., leaving: _Optional[bool] = ...) -> None: ...

class Coordinate(_message.Message):
    __slots__ = ("using", "over")
    USING_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    using: _containers.RepeatedScalarFieldContainer[str]
    over: bool
    def __init__(self, using: _Optional[_Iterable[str]] = ..., over: _Optional[bool] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("welcome", "dataset_defined", "leases", "refused", "farewell", "next_world", "go_to_world", "world_settled", "store_value", "take_version", "run_task", "stop_training", "evaluation_over", "keep_journal", "give_journal", "server_orders", "bury_server", "ask_server", "server_map", "forget_clients", "save_part", "commit_checkpoint", "handover_state", "closure_workers", "closures_over")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DATASET_DEFINED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    NEXT_WORLD_FIELD_NUMBER: _ClassVar[int]
    GO_TO_WORLD_FIELD_NUMBER: _ClassVar[int]
    WORLD_SETTLED_FIELD_NUMBER: _ClassVar[int]
    STORE_VALUE_FIELD_NUMBER: _ClassVar[int]
    TAKE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_TASK_FIELD_NUMBER: _ClassVar[int]
    STOP_TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_OVER_FIELD_NUMBER: _ClassVar[int]
    KEEP_JOURNAL_FIELD_NUMBER: _ClassVar[int]
    GIVE_JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ORDERS_FIELD_NUMBER: _ClassVar[int]
    BURY_SERVER_FIELD_NUMBER: _ClassVar[int]
    ASK_SERVER_FIELD_NUMBER: _ClassVar[int]
    SERVER_MAP_FIELD_NUMBER: _ClassVar[int]
    FORGET_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SAVE_PART_FIELD_NUMBER: _ClassVar[int]
    COMMIT_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_STATE_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_OVER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    dataset_defined: DatasetDefined
    leases: Leases
    refused: Refused
    farewell: Farewell
    next_world: NextWorld
    go_to_world: GoToWorld
    world_settled: WorldSettled
    store_value: StoreValue
    take_version: TakeVersion
    run_task: RunTask
    stop_training: StopTraining
    evaluation_over: EvaluationOver
    keep_journal: KeepJournal
    give_journal: GiveJournal
    server_orders: ServerOrders
    bury_server: BuryServer
    ask_server: AskServer
    server_map: ServerMap
    forget_clients: ForgetClients
    save_part: SavePart
    commit_checkpoint: CommitCheckpoint
    handover_state: HandoverState
    closure_workers: ClosureWorkers
    closures_over: ClosuresOver
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., dataset_defined: _Optional[_Union[DatasetDefined, _Mapping]] = ..., leases: _Optional[_Union[Leases, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ..., next_world: _Optional[_Union[NextWorld, _Mapping]] = ..., go_to_world: _Optional[_Union[GoToWorld, _Mapping]] = ..., world_settled: _Optional[_Union[WorldSettled, _Mapping]] = ..., store_value: _Optional[_Union[StoreValue, _Mapping]] = ..., take_version: _Optional[_Union[TakeVersion, _Mapping]] = ..., run_task: _Optional[_Union[RunTask, _Mapping]] = ..., stop_training: _Optional[_Union[StopTraining, _Mapping]] = ..., evaluation_over: _Optional[_Union[EvaluationOver, _Mapping]] = ..., keep_journal: _Optional[_Union[KeepJournal, _Mapping]] = ..., give_journal: _Optional[_Union[GiveJournal, _Mapping]] = ..., server_orders: _Optional[_Union[ServerOrders, _Mapping]] = ..., bury_server: _Optional[_Union[BuryServer, _Mapping]] = ..., ask_server: _Optional[_Union[AskServer, _Mapping]] = ..., server_map: _Optional[_Union[ServerMap, _Mapping]] = ..., forget_clients: _Optional[_Union[ForgetClients, _Mapping]] = ..., save_part: _Optional[_Union[SavePart, _Mapping]] = ..., commit_checkpoint: _Optional[_Union[CommitCheckpoint, _Mapping]] = ..., handover_state: _Optional[_Union[HandoverState, _Mapping]] = ..., closure_workers: _Optional[_Union[ClosureWorkers, _Mapping]] = ..., closures_over: _Optional[_Union[ClosuresOver, _Mapping]] = ...) -> None: ...

class ClosureWorkers(_message.Message):
    __slots__ = ("serving", "leaving")
    SERVING_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    serving: _containers.RepeatedScalarFieldContainer[str]
    leaving: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, serving: _Optional[_Iterable[str]] = ..., leaving: _Optional[_Iterable[str]] = ...) -> None: ...

class ClosuresOver(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NextWorld(_message.Message):
    __slots__ = ("version", "size", "rank", "recover", "over")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RECOVER_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    version: int
    size: int
    rank: int
    recover: bool
    over: bool
    def __init__(self, version: _Optional[int] = ..., size: _Optional[int] = ..., rank: _Optional[int] = ..., recover: _Optional[bool] = ..., over: _Optional[bool] = ...) -> None: ...

class GoToWorld(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class WorldSettled(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class StoreValue(_message.Message):
    __slots__ = ("version", "key", "value")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    key: str
    value: bytes
    def __init__(self, version: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("heartbeat_interval_s", "check_replicas", "resumed", "evaluator", "has_evaluators", "servers", "chief")
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CHECK_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    HAS_EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_s: float
    check_replicas: bool
    resumed: bool
    evaluator: bool
    has_evaluators: bool
    servers: ServerSettings
    chief: bool
    def __init__(self, heartbeat_interval_s: _Optional[float] = ..., check_replicas: _Optional[bool] = ..., resumed: _Optional[bool] = ..., evaluator: _Optional[bool] = ..., has_evaluators: _Optional[bool] = ..., servers: _Optional[_Union[ServerSettings, _Mapping]] = ..., chief: _Optional[bool] = ...) -> None: ...

class ServerSettings(_message.Message):
    __slots__ = ("buckets", "staleness", "backups", "server")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    buckets: int
    staleness: int
    backups: bool
    server: int
    def __init__(self, buckets: _Optional[int] = ..., staleness: _Optional[int] = ..., backups: _Optional[bool] = ..., server: _Optional[int] = ...) -> None: ...

class ServerOrders(_message.Message):
    __slots__ = ("order", "checkpoint")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    order: _containers.RepeatedCompositeFieldContainer[BucketOrder]
    checkpoint: str
    def __init__(self, order: _Optional[_Iterable[_Union[BucketOrder, _Mapping]]] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class BucketOrder(_message.Message):
    __slots__ = ("kind", "bucket", "value")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[BucketOrder.Kind]
        OWN: _ClassVar[BucketOrder.Kind]
        RESTORE: _ClassVar[BucketOrder.Kind]
        PROMOTE: _ClassVar[BucketOrder.Kind]
        HAND_OVER: _ClassVar[BucketOrder.Kind]
        REPLICATE: _ClassVar[BucketOrder.Kind]
    KIND_UNSPECIFIED: BucketOrder.Kind
    OWN: BucketOrder.Kind
    RESTORE: BucketOrder.Kind
    PROMOTE: BucketOrder.Kind
    HAND_OVER: BucketOrder.Kind
    REPLICATE: BucketOrder.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    kind: BucketOrder.Kind
    bucket: int
    value: int
    def __init__(self, kind: _Optional[_Union[BucketOrder.Kind, str]] = ..., bucket: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...

class BuryServer(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: int
    def __init__(self, server: _Optional[int] = ...) -> None: ...

class AskServer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerMap(_message.Message):
    __slots__ = ("version", "owner_map")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_MAP_FIELD_NUMBER: _ClassVar[int]
    version: int
    owner_map: bytes
    def __init__(self, version: _Optional[int] = ..., owner_map: _Optional[bytes] = ...) -> None: ...

class ForgetClients(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client: _Optional[_Iterable[int]] = ...) -> None: ...

class SavePart(_message.Message):
    __slots__ = ("folder",)
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    folder: str
    def __init__(self, folder: _Optional[str] = ...) -> None: ...

class CommitCheckpoint(_message.Message):
    __slots__ = ("folder", "steps", "position", "keep")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    folder: str
    steps: int
    position: str
    keep: int
    def __init__(self, folder: _Optional[str] = ..., steps: _Optional[int] = ..., position: _Optional[str] = ..., keep: _Optional[int] = ...) -> None: ...

class HandoverState(_message.Message):
    __slots__ = ("version", "server", "local", "passed", "saves", "saved", "needed")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    version: int
    server: _containers.RepeatedScalarFieldContainer[str]
    local: int
    passed: int
    saves: bool
    saved: bool
    needed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., server: _Optional[_Iterable[str]] = ..., local: _Optional[int] = ..., passed: _Optional[int] = ..., saves: _Optional[bool] = ..., saved: _Optional[bool] = ..., needed: _Optional[_Iterable[str]] = ...) -> None: ...

class DatasetDefined(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Leases(_message.Message):
    __slots__ = ("dataset", "state", "lease")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Leases.State]
        GRANTED: _ClassVar[Leases.State]
        WAIT: _ClassVar[Leases.State]
        FINISHED: _ClassVar[Leases.State]
    STATE_UNSPECIFIED: Leases.State
    GRANTED: Leases.State
    WAIT: Leases.State
    FINISHED: Leases.State
    DATASET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    state: Leases.State
    lease: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, dataset: _Optional[str] = ..., state: _Optional[_Union[Leases.State, str]] = ..., lease: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("task", "epoch", "start", "end")
    TASK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    task: int
    epoch: int
    start: int
    end: int
    def __init__(self, task: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "dataset", "evaluation", "world", "servers", "handover")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    dataset: str
    evaluation: bool
    world: bool
    servers: bool
    handover: bool
    def __init__(self, reason: _Optional[str] = ..., dataset: _Optional[str] = ..., evaluation: _Optional[bool] = ..., world: _Optional[bool] = ..., servers: _Optional[bool] = ..., handover: _Optional[bool] = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeVersion(_message.Message):
    __slots__ = ("multiple_of", "folder")
    MULTIPLE_OF_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    multiple_of: int
    folder: str
    def __init__(self, multiple_of: _Optional[int] = ..., folder: _Optional[str] = ...) -> None: ...

class RunTask(_message.Message):
    __slots__ = ("dataset", "task", "evaluate", "merge", "export")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    task: int
    evaluate: EvaluateShard
    merge: MergeStates
    export: ExportVersion
    def __init__(self, dataset: _Optional[str] = ..., task: _Optional[int] = ..., evaluate: _Optional[_Union[EvaluateShard, _Mapping]] = ..., merge: _Optional[_Union[MergeStates, _Mapping]] = ..., export: _Optional[_Union[ExportVersion, _Mapping]] = ...) -> None: ...

class EvaluateShard(_message.Message):
    __slots__ = ("file", "start", "end")
    FILE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    file: str
    start: int
    end: int
    def __init__(self, file: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class MergeStates(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Iterable[str]] = ...) -> None: ...

class ExportVersion(_message.Message):
    __slots__ = ("file", "folder", "json")
    FILE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    file: str
    folder: str
    json: str
    def __init__(self, file: _Optional[str] = ..., folder: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class StopTraining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EvaluationOver(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeepJournal(_message.Message):
    __slots__ = ("lines", "whole_bytes")
    LINES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    lines: bytes
    whole_bytes: int
    def __init__(self, lines: _Optional[bytes] = ..., whole_bytes: _Optional[int] = ...) -> None: ...

class GiveJournal(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
