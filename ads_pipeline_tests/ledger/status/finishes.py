"""Every finish that a ledger has a record of, read past the product's own statements."""

from collections import defaultdict

import sqlalchemy as sa

from ads_pipeline.domain.freshness import (
    RAW,
    AssetPartition,
    AttemptOutcome,
    FinishedAttempt,
    PartitionStatus,
    make_asset_partition,
    fold_attempt,
    partition_values,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger import database
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.row_mapping import key_in
from ads_pipeline.ledger.status.partition_status import make_row_version
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.tables import Day, Instant

Finishes = dict[tuple[str, PartitionKey], list[FinishedAttempt]]

VERDICTS = """
    SELECT 'raw' AS asset, source, customer_id, query_name, logical_date, run_id, judged_at AS at,
        CASE outcome WHEN 'accepted' THEN 'SUCCEEDED' ELSE 'FAILED' END AS outcome,
        CASE effect WHEN 'promoted' THEN schema_version END AS code_version
    FROM attempts JOIN runs USING (source, customer_id, query_name, logical_date, run_id)
    ORDER BY attempt_no
"""
OTHERS = """
    SELECT asset, source, customer_id, query_name, logical_date, run_id, finished_at AS at, outcome, code_version
    FROM finished_attempts ORDER BY finished_at
"""


def all_finishes(engine: sa.Engine) -> Finishes:
    """The finishes of each asset partition: verdicts in the order of their numbers, then the others by time."""
    found: Finishes = defaultdict(list)
    for row in [row for text in (VERDICTS, OTHERS) for row in _rows(engine, text)]:
        key = key_in(row)
        finish = FinishedAttempt(
            run_id=row.run_id,
            at=row.at,
            outcome=AttemptOutcome(row.outcome),
            version=make_row_version(row.at, make_asset_partition(row.asset, key)),
            code_version=row.code_version,
        )
        found[row.asset, key].append(finish)
    return found


def folded(asset: str, key: PartitionKey, finishes: list[FinishedAttempt]) -> PartitionStatus:
    status = None
    for finish in finishes:
        status = fold_attempt(status, finish, asset_partition=make_asset_partition(asset, key), values=partition_values(key))
    assert status is not None
    return status


def listed(book: StatusTable) -> dict[AssetPartition, PartitionStatus]:
    return {status.asset_partition: status for status in book.read_all()}


def raw_rows(book: StatusTable) -> list[PartitionStatus]:
    return [status for status in book.read_all() if status.asset_key.startswith(RAW)]


def status(ledger: LedgerReader, partition: PartitionKey, asset: str = RAW) -> PartitionStatus:
    found = ledger.partition_statuses(asset, [partition])[partition]
    assert found is not None
    return found


def made(row: PartitionStatus) -> tuple[str | None, str | None]:
    """The run and the code version of the last materialization, which has a time exactly when it has them."""
    assert (row.last_materialization_at is None) == (row.last_materialization_run_id is None)
    return row.last_materialization_run_id, row.last_materialization_code_version


def tried(row: PartitionStatus) -> tuple[str | None, AttemptOutcome | None]:
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
