from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("run", "job", "user", "model", "kind", "code", "data", "config_json", "age_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    job: str
    user: str
    model: str
    kind: str
    code: str
    data: str
    config_json: str
    age_s: float
    def __init__(self, run: _Optional[str] = ..., job: _Optional[str] = ..., user: _Optional[str] = ..., model: _Optional[str] = ..., kind: _Optional[str] = ..., code: _Optional[str] = ..., data: _Optional[str] = ..., config_json: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Size(_message.Message):
    __slots__ = ("workers", "ps", "worker_cpu", "ps_cpu")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    WORKER_CPU_FIELD_NUMBER: _ClassVar[int]
    PS_CPU_FIELD_NUMBER: _ClassVar[int]
    workers: int
    ps: int
    worker_cpu: float
    ps_cpu: float
    def __init__(self, workers: _Optional[int] = ..., ps: _Optional[int] = ..., worker_cpu: _Optional[float] = ..., ps_cpu: _Optional[float] = ...) -> None: ...

class WindowRow(_message.Message):
    __slots__ = ("number", "at_s", "duration_s", "size", "batch_size", "samples_per_s", "step_s", "input_wait_s", "pull_s", "push_s", "sync_s", "hottest_share", "worker_cpu_used", "ps_cpu_used", "worker_memory_bytes", "ps_memory_bytes", "step", "fixed_global_batch")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_S_FIELD_NUMBER: _ClassVar[int]
    HOTTEST_SHARE_FIELD_NUMBER: _ClassVar[int]
    WORKER_CPU_USED_FIELD_NUMBER: _ClassVar[int]
    PS_CPU_USED_FIELD_NUMBER: _ClassVar[int]
    WORKER_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PS_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FIXED_GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    duration_s: float
    size: Size
    batch_size: float
    samples_per_s: float
    step_s: float
    input_wait_s: float
    pull_s: float
    push_s: float
    sync_s: float
    hottest_share: float
    worker_cpu_used: float
    ps_cpu_used: float
    worker_memory_bytes: int
    ps_memory_bytes: int
    step: int
    fixed_global_batch: bool
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., size: _Optional[_Union[Size, _Mapping]] = ..., batch_size: _Optional[float] = ..., samples_per_s: _Optional[float] = ..., step_s: _Optional[float] = ..., input_wait_s: _Optional[float] = ..., pull_s: _Optional[float] = ..., push_s: _Optional[float] = ..., sync_s: _Optional[float] = ..., hottest_share: _Optional[float] = ..., worker_cpu_used: _Optional[float] = ..., ps_cpu_used: _Optional[float] = ..., worker_memory_bytes: _Optional[int] = ..., ps_memory_bytes: _Optional[int] = ..., step: _Optional[int] = ..., fixed_global_batch: _Optional[bool] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("run", "sender", "row")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    run: str
    sender: int
    row: _containers.RepeatedCompositeFieldContainer[WindowRow]
    def __init__(self, run: _Optional[str] = ..., sender: _Optional[int] = ..., row: _Optional[_Iterable[_Union[WindowRow, _Mapping]]] = ...) -> None: ...

class Reported(_message.Message):
    __slots__ = ("stored",)
    STORED_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    def __init__(self, stored: _Optional[bool] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("min_workers", "max_workers", "min_ps", "max_ps", "cpu", "worker_cpus", "ps_cpus")
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MIN_PS_FIELD_NUMBER: _ClassVar[int]
    MAX_PS_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    WORKER_CPUS_FIELD_NUMBER: _ClassVar[int]
    PS_CPUS_FIELD_NUMBER: _ClassVar[int]
    min_workers: int
    max_workers: int
    min_ps: int
    max_ps: int
    cpu: float
    worker_cpus: _containers.RepeatedScalarFieldContainer[float]
    ps_cpus: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ..., min_ps: _Optional[int] = ..., max_ps: _Optional[int] = ..., cpu: _Optional[float] = ..., worker_cpus: _Optional[_Iterable[float]] = ..., ps_cpus: _Optional[_Iterable[float]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("run", "now_s", "limits", "remaining_samples", "with_history", "assumed_cost_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WITH_HISTORY_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_COST_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    now_s: float
    limits: Limits
    remaining_samples: float
    with_history: bool
    assumed_cost_s: float
    def __init__(self, run: _Optional[str] = ..., now_s: _Optional[float] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., remaining_samples: _Optional[float] = ..., with_history: _Optional[bool] = ..., assumed_cost_s: _Optional[float] = ...) -> None: ...

class PriorWindow(_message.Message):
    __slots__ = ("window", "weight")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    window: WindowRow
    weight: float
    def __init__(self, window: _Optional[_Union[WindowRow, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("samples_per_s", "low", "high")
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    samples_per_s: float
    low: float
    high: float
    def __init__(self, samples_per_s: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class Planned(_message.Message):
    __slots__ = ("plan", "reason", "size", "before", "forecast", "present_samples_per_s", "pays_back_s", "observations", "rollback", "like", "prior")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    PRESENT_SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PAYS_BACK_S_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    plan: int
    reason: str
    size: Size
    before: Size
    forecast: Forecast
    present_samples_per_s: float
    pays_back_s: float
    observations: int
    rollback: bool
    like: LikeRuns
    prior: _containers.RepeatedCompositeFieldContainer[PriorWindow]
    def __init__(self, plan: _Optional[int] = ..., reason: _Optional[str] = ..., size: _Optional[_Union[Size, _Mapping]] = ..., before: _Optional[_Union[Size, _Mapping]] = ..., forecast: _Optional[_Union[Forecast, _Mapping]] = ..., present_samples_per_s: _Optional[float] = ..., pays_back_s: _Optional[float] = ..., observations: _Optional[int] = ..., rollback: _Optional[bool] = ..., like: _Optional[_Union[LikeRuns, _Mapping]] = ..., prior: _Optional[_Iterable[_Union[PriorWindow, _Mapping]]] = ...) -> None: ...

class LikeRuns(_message.Message):
    __slots__ = ("how", "runs", "worker_memory_bytes", "ps_memory_bytes", "last_size")
    HOW_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    WORKER_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PS_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_SIZE_FIELD_NUMBER: _ClassVar[int]
    how: str
    runs: int
    worker_memory_bytes: int
    ps_memory_bytes: int
    last_size: Size
    def __init__(self, how: _Optional[str] = ..., runs: _Optional[int] = ..., worker_memory_bytes: _Optional[int] = ..., ps_memory_bytes: _Optional[int] = ..., last_size: _Optional[_Union[Size, _Mapping]] = ...) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("run", "number", "plan", "at_s", "before", "after", "forecast", "cost_s", "realised_samples_per_s", "rolled_back", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    REALISED_SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    number: int
    plan: int
    at_s: float
    before: Size
    after: Size
    forecast: Forecast
    cost_s: float
    realised_samples_per_s: float
    rolled_back: bool
    reason: str
    def __init__(self, run: _Optional[str] = ..., number: _Optional[int] = ..., plan: _Optional[int] = ..., at_s: _Optional[float] = ..., before: _Optional[_Union[Size, _Mapping]] = ..., after: _Optional[_Union[Size, _Mapping]] = ..., forecast: _Optional[_Union[Forecast, _Mapping]] = ..., cost_s: _Optional[float] = ..., realised_samples_per_s: _Optional[float] = ..., rolled_back: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class OutcomeStored(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("run", "exit_reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EXIT_REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    exit_reason: str
    def __init__(self, run: _Optional[str] = ..., exit_reason: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
