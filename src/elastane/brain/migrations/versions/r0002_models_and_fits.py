"""What a run trains, so that runs of one user and model are found; whether a batch is shared; fitted parameters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    # Of the runs that are there nobody knows the model, nor that the batch is shared: they are as if it was not said.
    op.add_column("runs", sa.Column("model", sa.String(200), server_default="", nullable=False))
    op.create_index("ix_runs_user_model_started_at", "runs", ["user", "model", "started_at"])
    op.add_column("windows", sa.Column("fixed_global_batch", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "fits",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("observations", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fitted_at", sa.Double(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_fits_run_id"),
        sa.PrimaryKeyConstraint("run_id", "observations", name="pk_fits"),
    )
