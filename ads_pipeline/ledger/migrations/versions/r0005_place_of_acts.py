"""Where an act stands among a partition's verdicts, so that the two logs together have one order.

Clocks cannot say it: an act is dated before it waits for its locks. Acts of earlier releases keep no place.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE acted_partitions ADD COLUMN attempt_no INTEGER CHECK (attempt_no >= 0)")
