"""Runs, their windows, and the plans that were made for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("job", sa.String(200), nullable=False),
        sa.Column("user", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("code", sa.String(200), nullable=False),
        sa.Column("data", sa.String(200), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("exit_reason", sa.String(200)),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("run", name="uq_runs_run"),
    )
    op.create_index("ix_runs_code_data_started_at", "runs", ["code", "data", "started_at"])
    op.create_index("ix_runs_kind_started_at", "runs", ["kind", "started_at"])
    op.create_table(
        "windows",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("sender", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("ps", sa.Integer(), nullable=False),
        sa.Column("worker_cpu", sa.Double()),
        sa.Column("ps_cpu", sa.Double()),
        sa.Column("batch_size", sa.Double(), nullable=False),
        sa.Column("samples_per_s", sa.Double(), nullable=False),
        sa.Column("step_s", sa.Double(), nullable=False),
        sa.Column("input_wait_s", sa.Double(), nullable=False),
        sa.Column("pull_s", sa.Double(), nullable=False),
        sa.Column("push_s", sa.Double(), nullable=False),
        sa.Column("sync_s", sa.Double(), nullable=False),
        sa.Column("hottest_share", sa.Double(), nullable=False),
        sa.Column("worker_cpu_used", sa.Double()),
        sa.Column("ps_cpu_used", sa.Double()),
        sa.Column("worker_memory_bytes", sa.BigInteger()),
        sa.Column("ps_memory_bytes", sa.BigInteger()),
        sa.Column("step", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_windows_run_id"),
        sa.PrimaryKeyConstraint("run_id", "sender", "number", name="pk_windows"),
    )
    op.create_index("ix_windows_run_id_at_s", "windows", ["run_id", "at_s"])
    op.create_table(
        "plans",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger()),
        sa.Column("by_brain", sa.Boolean(), nullable=False),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("before_workers", sa.Integer()),
        sa.Column("before_ps", sa.Integer()),
        sa.Column("before_worker_cpu", sa.Double()),
        sa.Column("before_ps_cpu", sa.Double()),
        sa.Column("after_workers", sa.Integer(), nullable=False),
        sa.Column("after_ps", sa.Integer(), nullable=False),
        sa.Column("after_worker_cpu", sa.Double()),
        sa.Column("after_ps_cpu", sa.Double()),
        sa.Column("predicted_samples_per_s", sa.Double(), nullable=False),
        sa.Column("predicted_low", sa.Double(), nullable=False),
        sa.Column("predicted_high", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_at_s", sa.Double()),
        sa.Column("cost_s", sa.Double()),
        sa.Column("realised_samples_per_s", sa.Double()),
        sa.Column("rolled_back", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_plans_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.UniqueConstraint("run_id", "number", name="uq_plans_run_id_number"),
    )
