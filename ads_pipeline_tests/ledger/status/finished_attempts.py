"""Reads finished attempts and status rows, with SQL that is independent of the product."""

from collections import defaultdict

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import (
    RAW,
    AssetPartition,
    AttemptOutcome,
    FinishedAttempt,
    PartitionStatus,
    fold_attempt,
    make_asset_partition,
    partition_values,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Day, Instant
from ads_pipeline.ledger.sql.row_mapping import decode_key
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.write_steps.partition_status import make_row_version

AttemptsByPartition = dict[tuple[str, PartitionKey], list[FinishedAttempt]]

VERDICT_ATTEMPTS = """
    SELECT 'raw' AS asset, source, customer_id, query_name, logical_date, run_id, judged_at AS at,
        CASE outcome WHEN 'accepted' THEN 'SUCCEEDED' ELSE 'FAILED' END AS outcome,
        CASE effect WHEN 'promoted' THEN schema_version END AS code_version
    FROM attempts JOIN runs USING (source, customer_id, query_name, logical_date, run_id)
    ORDER BY attempt_no
"""
OTHER_ATTEMPTS = """
    SELECT asset, source, customer_id, query_name, logical_date, attempt_id AS run_id,
        finished_at AS at, outcome, code_version
    FROM finished_attempts ORDER BY finished_at
"""


def read_attempts(engine: sa.Engine) -> AttemptsByPartition:
    """Return the attempts of each asset partition: verdicts by number, then the others by time."""
    found: AttemptsByPartition = defaultdict(list)
    for row in [row for text in (VERDICT_ATTEMPTS, OTHER_ATTEMPTS) for row in _rows(engine, text)]:
        key = decode_key(row)
        attempt = FinishedAttempt(
            run_id=row.run_id,
            at=row.at,
            outcome=AttemptOutcome(row.outcome),
            version=make_row_version(row.at, make_asset_partition(row.asset, key)),
            code_version=row.code_version,
        )
        found[row.asset, key].append(attempt)
    return found


def fold_all(asset: str, key: PartitionKey, attempts: list[FinishedAttempt]) -> PartitionStatus:
    status = None
    for attempt in attempts:
        status = fold_attempt(
            status, attempt, asset_partition=make_asset_partition(asset, key), values=partition_values(key)
        )
    assert status is not None
    return status


def read_statuses(table: StatusTable) -> dict[AssetPartition, PartitionStatus]:
    return {status.asset_partition: status for status in table.read_all()}


def raw_rows(table: StatusTable) -> list[PartitionStatus]:
    return [status for status in table.read_all() if status.asset_key.startswith(RAW)]


def read_status(ledger: LedgerReader, partition: PartitionKey, asset: str = RAW) -> PartitionStatus:
    found = ledger.statuses.get_many(asset, [partition])[partition]
    assert found is not None
    return found


def materialization(row: PartitionStatus) -> tuple[str | None, str | None]:
    """Return the run and the code version of the last materialization. Both are set if its time is set."""
    assert (row.last_materialization_at is None) == (row.last_materialization_run_id is None)
    return row.last_materialization_run_id, row.last_materialization_code_version


def last_attempt(row: PartitionStatus) -> tuple[str | None, AttemptOutcome | None]:
    return row.last_attempt_run_id, row.last_attempt_outcome


def _rows(engine: sa.Engine, text: str) -> list[sa.Row[tuple[object, ...]]]:
    statement = sa.text(text).columns(
        asset=sa.Text,
        source=sa.Text,
        customer_id=sa.Text,
        query_name=sa.Text,
        logical_date=Day,
        run_id=sa.Text,
        at=Instant,
        outcome=sa.Text,
        code_version=sa.Text,
    )
    return database.transact(engine, lambda connection: list(connection.execute(statement)))
