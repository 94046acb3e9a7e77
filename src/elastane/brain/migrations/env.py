"""What Alembic runs to migrate: over the connection, and inside the transaction, of `store.migrate`."""

from __future__ import annotations

from alembic import context

from elastane.brain.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter most things about a table; Alembic then makes a new one and copies.
    render_as_batch=True,
)
context.run_migrations()
