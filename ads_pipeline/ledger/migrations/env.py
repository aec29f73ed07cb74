"""Alembic's entry: runs the revisions on the connection that `database.migrate` hands over, in its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    version_table="ledger_revision",
)
context.run_migrations()
