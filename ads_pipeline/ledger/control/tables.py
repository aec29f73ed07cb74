"""Names the control plane's tables: who works on what, what is wanted, and what becomes of failures.

They stand beside the state and never in it: a partition's row says only what its verdicts and acts made of it.
"""

import sqlalchemy as sa

from ads_pipeline.ledger.tables import Instant, key_columns, metadata

# One a run of the engine, renewed while the run lives. All that the run has claimed is claimed as long as this holds.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("opened_at", Instant),
    sa.Column("heartbeat_at", Instant),
    sa.Column("expires_at", Instant),
    sa.Column("ended_at", Instant),
)

# Which run a partition was given to last. The fence grows each time it goes to another one.
claims = sa.Table(
    "claims",
    metadata,
    *key_columns(),
    sa.Column("run_id", sa.Text),
    sa.Column("fence", sa.BigInteger),
    sa.Column("claimed_at", Instant),
)

# What is to be produced anew: open until a verdict follows, which is when the partition counts more attempts.
requests = sa.Table(
    "requests",
    metadata,
    *key_columns(),
    sa.Column("kind", sa.Text),
    sa.Column("action_id", sa.Text),
    sa.Column("attempt_no", sa.Integer),
    sa.Column("requested_at", Instant),
)

# Fetches that brought no run. Verdicts that reject one are in `attempts`.
failed_fetches = sa.Table(
    "failed_fetches",
    metadata,
    *key_columns(),
    sa.Column("failed_at", Instant, primary_key=True),
    sa.Column("engine_run_id", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("wait_until", Instant),
)

# What was made of a partition's last failure: derived, and planned anew when it fails again. No due_at: only an
# operator's order brings another attempt. Whether it is terminal is computed, and not kept.
retry_schedule = sa.Table(
    "retry_schedule",
    metadata,
    *key_columns(),
    sa.Column("attempt_no", sa.Integer),
    sa.Column("failures", sa.Integer),
    sa.Column("error_class", sa.Text),
    sa.Column("failed_at", Instant),
    sa.Column("wait_until", Instant),
    sa.Column("due_at", Instant),
    sa.Column("why", sa.Text),
    sa.Column("planned_at", Instant),
)

terminal_marks = sa.Table(
    "terminal_marks",
    metadata,
    *key_columns(),
    sa.Column("action_id", sa.Text),
    sa.Column("marked_at", Instant),
)

# Accounts and queries for which nothing is fetched until somebody has mended them.
parkings = sa.Table(
    "parkings",
    metadata,
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("error_class", sa.Text),
    sa.Column("why", sa.Text),
    sa.Column("parked_at", Instant),
)
