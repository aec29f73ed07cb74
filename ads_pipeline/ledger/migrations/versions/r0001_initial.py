"""Creates the ledger's schema: every table, index and trigger."""

from alembic import op

from ads_pipeline.ledger.schema.texts import read_statements

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    for statement in read_statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
