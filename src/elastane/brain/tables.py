"""The tables, as the newest migration leaves them. Times of day are seconds since 1970, UTC."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", String(200), nullable=False, unique=True),
    Column("job", String(200), nullable=False),
    Column("user", String(200), nullable=False),
    Column("model", String(200), nullable=False, server_default=""),
    Column("kind", String(40), nullable=False),
    Column("code", String(200), nullable=False),
    Column("data", String(200), nullable=False),
    Column("config", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("exit_reason", String(200)),
    Index(None, "code", "data", "started_at"),
    Index(None, "user", "model", "started_at"),
    Index(None, "kind", "started_at"),
)
"""One life of one job each."""


def _size(prefix: str = "", *, nullable: bool = False) -> list[Column[Any]]:
    return [
        Column(f"{prefix}workers", Integer, nullable=nullable),
        Column(f"{prefix}ps", Integer, nullable=nullable),
        Column(f"{prefix}worker_cpu", Double),
        Column(f"{prefix}ps_cpu", Double),
    ]


windows = Table(
    "windows",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("sender", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("duration_s", Double, nullable=False),
    *_size(),
    Column("batch_size", Double, nullable=False),
    Column("samples_per_s", Double, nullable=False),
    Column("step_s", Double, nullable=False),
    Column("input_wait_s", Double, nullable=False),
    Column("pull_s", Double, nullable=False),
    Column("push_s", Double, nullable=False),
    Column("sync_s", Double, nullable=False),
    Column("hottest_share", Double, nullable=False),
    Column("worker_cpu_used", Double),
    Column("ps_cpu_used", Double),
    Column("worker_memory_bytes", BigInteger),
    Column("ps_memory_bytes", BigInteger),
    Column("step", BigInteger),
    Column("fixed_global_batch", Boolean, nullable=False, server_default=false()),
    Index(None, "run_id", "at_s"),
)
"""The raw rows: what each run measured, a stable stretch a row, as its master sent it."""

plans = Table(
    "plans",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False),
    Column("number", BigInteger),
    Column("by_brain", Boolean, nullable=False),
    Column("planned_at", Double, nullable=False),
    *_size("before_", nullable=True),
    *_size("after_"),
    Column("predicted_samples_per_s", Double, nullable=False),
    Column("predicted_low", Double, nullable=False),
    Column("predicted_high", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("made_at_s", Double),
    Column("cost_s", Double),
    Column("realised_samples_per_s", Double),
    Column("rolled_back", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("run_id", "number"),
)
"""Every change of size that was wanted, by the Brain or by the job itself, and what came of it.

`number` and `made_at_s` are set once the job has made the change; a plan that was never carried out has none.
"""

fits = Table(
    "fits",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("observations", Integer, primary_key=True, autoincrement=False),
    Column("fitted_at", Double, nullable=False),
    Column("parameters", Text, nullable=False),
)
"""The throughput model's parameters, as fitted from so many of a run's windows; a JSON object."""
