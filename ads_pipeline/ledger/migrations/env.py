"""Alembic's entry point. It runs the revisions on the connection of `database.migrate`, in its transaction."""

from alembic import context

from ads_pipeline.ledger.sql.database import REVISION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    version_table=REVISION_TABLE,
)
context.run_migrations()
