"""Lists all ADR-026 status rows, stores the staleness that a sweep found, and rebuilds the rows from the logs.

`partition_status` writes the row of one partition when an attempt finishes. This module cannot change the state of a
partition.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.materialization_status import (
    DEFAULT_TENANCY,
    RAW,
    AssetPartition,
    AttemptOutcome,
    CodeVersion,
    PartitionStatus,
    Staleness,
    Tenancy,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import (
    STATUS_KEY,
    code_versions,
    instant_text,
    partition_status,
)
from ads_pipeline.ledger.sql.row_mapping import decode_key, read_clock
from ads_pipeline.ledger.sql.statements import Statement, Values, columns_of, query, upsert
from ads_pipeline.ledger.write_steps.partition_status import (
    ATTEMPT_OUTCOMES,
    FOLDED_COLUMNS,
    MATERIALIZING_EFFECTS,
    PartitionStatuses,
    decode_status,
    make_row_version,
    next_write_instant,
    read_code_versions,
)

ROWS_PER_BATCH: Final = 5_000
_MATERIALIZING: Final = ", ".join(f"'{effect}'" for effect in sorted(MATERIALIZING_EFFECTS))
# All finished attempts by asset and partition: the verdicts, and the attempts without one.
_FINISHED_ATTEMPTS: Final = query(
    f"""
    SELECT '{RAW}' AS asset, attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date,
        judged_at AS finished_at, attempts.run_id AS attempt_id, outcome,
        CASE WHEN effect IN ({_MATERIALIZING}) THEN runs.schema_version END AS code_version
    FROM attempts
    JOIN runs
        ON (runs.source, runs.customer_id, runs.query_name, runs.logical_date, runs.run_id) =
            (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date, attempts.run_id)
    UNION ALL
    SELECT asset, source, customer_id, query_name, logical_date, finished_at, attempt_id, outcome, code_version
    FROM finished_attempts
    ORDER BY asset, source, customer_id, query_name, logical_date
    """
)
_UPSERT_CODE_VERSIONS: Final = upsert(code_versions, newer="code_versions.code_version <> excluded.code_version")
# Update the rows whose version is still the one that the sweep read. On Postgres the statement skips locked rows:
# they are about to change, and other writers lock rows in another order, so waiting could deadlock.
_UPDATE_STALENESS: Final = Statement(
    "update_staleness",
    {**columns_of(partition_status, *STATUS_KEY, "stale_since", "stale_reason_code", "row_version"), "seen": "text"},
    """
    UPDATE partition_status
    SET stale_since = given.stale_since, stale_reason_code = given.stale_reason_code, row_version = given.row_version
    FROM given
    WHERE (partition_status.tenant_id, partition_status.workspace_id, partition_status.asset_key,
        partition_status.partition_key) = (given.tenant_id, given.workspace_id, given.asset_key, given.partition_key)
        AND partition_status.row_version = given.seen
        AND (partition_status.tenant_id, partition_status.workspace_id, partition_status.asset_key,
            partition_status.partition_key) IN (
            SELECT tenant_id, workspace_id, asset_key, partition_key FROM partition_status
            WHERE (tenant_id, workspace_id, asset_key, partition_key, row_version) IN (SELECT tenant_id,
                workspace_id, asset_key, partition_key, seen FROM given) FOR UPDATE SKIP LOCKED)
    """,
)


class StatusTable:
    """The status rows of one tenancy."""

    def __init__(self, engine: database.Reading, *, tenancy: Tenancy = DEFAULT_TENANCY) -> None:
        self._engine, self._tenancy = engine, tenancy
        self._statuses = PartitionStatuses(tenancy)

    def read_all(self) -> Iterator[PartitionStatus]:
        """Yield every row in the order of its key, as of one moment. The rows are streamed from the database."""
        columns = [partition_status.c[name] for name in ("partition_values", *STATUS_KEY, *FOLDED_COLUMNS)]
        rows = sa.select(*columns).order_by(*columns[1:5])
        with database.open_snapshot(self._engine) as connection:
            for values, *row in connection.execute(rows, execution_options={"yield_per": ROWS_PER_BATCH}):
                status = decode_status(AssetPartition(*row[:4]), json.loads(values), row[4:])
                if status is not None:
                    yield status

    def get_many(self, asset: str, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionStatus | None]:
        """Return the status of each partition in one asset of its query, or None without an attempt."""
        unique_keys = list(dict.fromkeys(keys))
        statuses = database.transact(self._engine, lambda c: self._statuses.read(c, asset, unique_keys))
        return {key: status for key, (status, _attempt_count) in statuses.items()}

    def get_code_versions(self, source: str) -> dict[str, CodeVersion]:
        """Return the current code version of each asset, by asset key."""
        return database.transact(self._engine, lambda c: read_code_versions(c, self._tenancy, source))

    def record_code_versions(self, source: str, versions: Mapping[str, str]) -> None:
        """Record the current code version of each asset. A changed version is dated with the present time."""
        workspace = {"tenant_id": self._tenancy.tenant_id, "workspace_id": self._tenancy.workspace_for(source)}

        def work(connection: sa.Connection) -> None:
            seen = workspace | {"seen_since": instant_text(read_clock(connection))}
            rows = (seen | {"asset_key": asset_key, "code_version": code} for asset_key, code in versions.items())
            _UPSERT_CODE_VERSIONS.write(connection, rows)

        known = {asset_key: code.version for asset_key, code in self.get_code_versions(source).items()}
        if any(known.get(asset_key) != version for asset_key, version in versions.items()):
            database.transact(self._engine, work)

    def store_staleness(self, found: Sequence[tuple[PartitionStatus, Staleness | None]]) -> int:
        """Store the staleness that a sweep found, and return the number of written rows.

        Rows that changed since the sweep read them, or that are locked, are skipped.
        """

        def work(connection: sa.Connection) -> int:
            now = read_clock(connection)
            rows = (_encode_staleness(status, stale, now) for status, stale in found)
            return _UPDATE_STALENESS.execute(connection, rows).rowcount

        return database.transact(self._engine, work)

    def rebuild(self) -> int:
        """Rebuild every row from the logs of attempts, and return the number of rows.

        Other writers wait. Stored staleness is lost until the next sweep.
        """
        return database.transact(self._engine, self._rebuild)

    def _rebuild(self, connection: sa.Connection) -> int:
        self._lock_table(connection)
        connection.execute(sa.delete(partition_status))
        # They are streamed: there may be millions.
        rows = connection.execute(_FINISHED_ATTEMPTS, execution_options={"yield_per": ROWS_PER_BATCH})
        groups = groupby(rows, key=lambda row: (row.asset, decode_key(row)))
        statuses = (self._fold(asset, key, group) for (asset, key), group in groups)
        written = 0
        for batch in split_batches(statuses, ROWS_PER_BATCH):
            self._statuses.write(connection, batch)
            written += len(batch)
        return written

    def _lock_table(self, connection: sa.Connection) -> None:
        """Block other writers on Postgres. On SQLite the transaction already locks the whole database."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE partition_status IN EXCLUSIVE MODE")

    def _fold(self, asset: str, key: PartitionKey, rows: Iterable[sa.Row[Any]]) -> PartitionStatus:
        status = None
        for row in rows:
            status = self._statuses.fold(
                status,
                asset,
                key,
                run_id=row.attempt_id,
                at=row.finished_at,
                outcome=ATTEMPT_OUTCOMES.get(row.outcome) or AttemptOutcome(row.outcome),
                code_version=row.code_version,
            )
        if status is None:
            raise ValueError(f"{key}: no finished attempts")
        return status


def _encode_staleness(status: PartitionStatus, stale: Staleness | None, now: datetime) -> Values:
    key = status.tenant_id, status.workspace_id, status.asset_key, status.partition_key
    found = (instant_text(stale.since), str(stale.reason)) if stale else (None, None)
    row_version = make_row_version(next_write_instant(status.row_version, now), status.asset_partition)
    return *key, *found, row_version, status.row_version
