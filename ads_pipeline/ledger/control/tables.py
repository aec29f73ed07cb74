"""The tables of leases, claims, requests, the retry queue and parkings.

A partition's state never depends on them: it follows from verdicts and control actions alone.
"""

import sqlalchemy as sa

from ads_pipeline.ledger.tables import Instant, key_columns, metadata

# One for each engine run, extended by its heartbeats. The claims of the run are valid while its lease is.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("opened_at", Instant),
    sa.Column("heartbeat_at", Instant),
    sa.Column("expires_at", Instant),
    sa.Column("ended_at", Instant),
)

# The run that last claimed a partition. The fence grows whenever another run claims it.
claims = sa.Table(
    "claims",
    metadata,
    *key_columns(),
    sa.Column("run_id", sa.Text),
    sa.Column("fence", sa.BigInteger),
    sa.Column("claimed_at", Instant),
)

# Requested partitions. A request is open until the next verdict, when attempt_count exceeds attempt_no.
requests = sa.Table(
    "requests",
    metadata,
    *key_columns(),
    sa.Column("kind", sa.Text),
    sa.Column("action_id", sa.Text),
    sa.Column("attempt_no", sa.Integer),
    sa.Column("requested_at", Instant),
)

# Fetches that produced no run. Rejected runs are in `attempts`.
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

# The retry planned after a partition's last failure; the next failure replaces it. Without due_at there is no
# automatic retry. Whether a partition is terminal is computed, not stored.
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

# Customers and queries that are not fetched until an operator releases them.
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
