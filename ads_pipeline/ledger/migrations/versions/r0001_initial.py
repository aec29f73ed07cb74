"""Creates the ledger's schema: every table, index and trigger."""

from alembic import op

from ads_pipeline.ledger.migrations import (
    dialects,
    schema_control,
    schema_events,
    schema_extraction,
    schema_state,
    schema_status,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in dialects.functions(dialect):
        op.execute(statement)
    for schema in (schema_state, schema_control, schema_events, schema_status, schema_extraction):
        for statement in schema.TABLES.split(";"):
            op.execute(dialects.render(dialect, statement))
        for statement in schema.triggers(dialect):
            op.execute(statement)
        for table in schema.NEVER_REPLACED:
            for statement in dialects.refuse_replace(connection, table):
                op.execute(statement)
