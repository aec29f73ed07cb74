"""Reads and writes ADR-026 status rows, one per asset partition, folded from its finished attempts.

The caller holds the partition's lock, which is its `partition_state` row. A row version encodes the instant of the
last write. Each write gets a later instant than the one before, even if the clock goes back. So the logs of attempts
are enough to rebuild the rows and their versions.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import (
    AssetPartition,
    AttemptOutcome,
    CodeVersion,
    FinishedAttempt,
    PartitionStatus,
    StaleReason,
    Tenancy,
    encode_digits,
    fold_attempt,
    make_asset_partition,
    new_row_version,
    partition_values,
    row_version_to_int,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Effect, Outcome, next_timestamp
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import (
    STATUS_KEY,
    code_versions,
    finished_attempts,
    instant_text,
    partition_status,
)
from ads_pipeline.ledger.sql.row_mapping import encode_key
from ads_pipeline.ledger.sql.statements import (
    KEY_COLUMNS,
    Call,
    Statement,
    Values,
    execute_in_order,
    insert,
    names,
    upsert,
)

# The columns that a fold reads: all but the key and the values of the partition.
FOLDED_COLUMNS: Final = tuple(
    column.name for column in partition_status.c if column.name not in {*STATUS_KEY, "partition_values"}
)
# The verdict effects that materialize a partition. Confirming the current run is not one: its data does not change.
MATERIALIZING_EFFECTS: Final = frozenset({Effect.PROMOTED})
ATTEMPT_OUTCOMES: Final[Mapping[Outcome, AttemptOutcome]] = {
    Outcome.ACCEPTED: AttemptOutcome.SUCCEEDED,
    Outcome.REJECTED: AttemptOutcome.FAILED,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# A row version is a ULID. Of its 80 random bits, the first 10 hold the microseconds, the other 70 a hash of the key.
_RANDOM_BITS, _ROW_BITS, _ROW_DIGITS = 80, 70, 14


# The status row of each given partition in one asset, or nulls, and the number of its attempts without a verdict.
_READ: Final = Statement(
    "read_statuses",
    {**KEY_COLUMNS, **dict.fromkeys(STATUS_KEY, "text"), "asset": "text", "position": "integer"},
    f"""
    SELECT {names(FOLDED_COLUMNS, prefix="partition_status.")}, (
        SELECT count(*) FROM finished_attempts
        WHERE (finished_attempts.source, finished_attempts.customer_id, finished_attempts.query_name,
            finished_attempts.logical_date, finished_attempts.asset) =
                (given.source, given.customer_id, given.query_name, given.logical_date, given.asset)
    ) AS attempt_count
    FROM given LEFT JOIN partition_status USING (tenant_id, workspace_id, asset_key, partition_key)
    ORDER BY given.position
    """,
)
_INSERT_ATTEMPTS: Final = insert(finished_attempts)
_UPSERT: Final = upsert(partition_status, newer="partition_status.row_version < excluded.row_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchError:
    """Why and when a fetch failed, and in which run of the engine."""

    failed_at: datetime
    engine_run_id: str
    error_class: str
    error_message: str
    wait_until: datetime | None
    request_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """The end of an attempt at an asset partition, other than by a verdict.

    `code_version` is set if the attempt materialized the partition. The recorded instant is later than `not_before`,
    even if the clock went back. For a load this is the instant when the loaded run was materialized. A failed fetch
    has an error. The `attempt_id` is the raw run, or the id of the failed fetch, which has no run.
    """

    key: PartitionKey
    attempt_id: str
    outcome: AttemptOutcome
    code_version: str | None = None
    not_before: datetime | None = None
    error: FetchError | None = None


class PartitionStatuses:
    """Reads and writes the rows of one tenancy, in the caller's transaction."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def asset_partition(self, asset: str, key: PartitionKey) -> AssetPartition:
        return make_asset_partition(asset, key, self._tenancy)

    def read(
        self, connection: sa.Connection, asset: str, keys: Sequence[PartitionKey]
    ) -> dict[PartitionKey, tuple[PartitionStatus | None, int]]:
        """Return each partition's status row, or None, and the number of its attempts without a verdict."""
        return dict(zip(keys, self._read(connection, asset, keys), strict=True))

    def _read(
        self, connection: sa.Connection, asset: str, keys: Iterable[PartitionKey]
    ) -> list[tuple[PartitionStatus | None, int]]:
        listed = list(keys)
        requested = [
            (*encode_key(key), *self.asset_partition(asset, key), asset, position)
            for position, key in enumerate(listed)
        ]
        rows = _READ.execute(connection, requested)
        return [(self.decode(row[:-1], asset, key), row[-1]) for key, row in zip(listed, rows, strict=True)]

    def decode(self, folded: Sequence[Any], asset: str, key: PartitionKey) -> PartitionStatus | None:
        """Return the status of a partition from its `FOLDED_COLUMNS`, or None when they are null."""
        return decode_status(self.asset_partition(asset, key), partition_values(key), folded)

    def record_attempts(
        self, connection: sa.Connection, asset: str, results: Sequence[AttemptResult], now: datetime
    ) -> list[int]:
        """Record attempts that ended without a verdict, one per partition, and fold them into the status rows.

        A failed fetch that was reported after a later attempt changes no status. Returns the number of each attempt
        within its asset partition.
        """
        if not results:
            return []
        before = self._read(connection, asset, (result.key for result in results))
        logged, statuses = list[Values](), list[PartitionStatus]()
        for result, (status, _count) in zip(results, before, strict=True):
            at = next_write_instant(status.row_version if status else None, next_timestamp(result.not_before, now))
            if result.error is not None and _is_late(result.error, status):
                at = result.error.failed_at
            else:
                statuses.append(
                    self.fold(
                        status,
                        asset,
                        result.key,
                        run_id=result.attempt_id,
                        at=at,
                        outcome=result.outcome,
                        code_version=result.code_version,
                    )
                )
            ended = instant_text(at), result.attempt_id, str(result.outcome), result.code_version
            logged.append((asset, *encode_key(result.key), *ended, *_encode_error(result.error)))
        self.write(connection, statuses, after=[Call(_INSERT_ATTEMPTS, logged)])
        return [count + 1 for _status, count in before]

    def write(
        self, connection: sa.Connection, statuses: Collection[PartitionStatus], *, after: Sequence[Call] = ()
    ) -> None:
        """Write the rows after these calls. ConcurrentWrite when a stored row is newer.

        A staleness sweep writes rows without the lock of their partition.
        """
        calls = [*after, Call(_UPSERT, list(map(encode_status, statuses)))] if statuses else after
        if calls and execute_in_order(connection, calls).rowcount < len(statuses):
            raise database.ConcurrentWrite("a status was written while an attempt was being folded into it")

    def fold(
        self,
        status: PartitionStatus | None,
        asset: str,
        key: PartitionKey,
        *,
        run_id: str,
        at: datetime,
        outcome: AttemptOutcome,
        code_version: str | None,
    ) -> PartitionStatus:
        """The row of a partition in one asset after an attempt that ended at this instant."""
        partition = self.asset_partition(asset, key)
        version = make_row_version(at, partition)
        attempt = FinishedAttempt(run_id=run_id, at=at, outcome=outcome, version=version, code_version=code_version)
        return fold_attempt(status, attempt, asset_partition=partition, values=partition_values(key))


def _is_late(error: FetchError, status: PartitionStatus | None) -> bool:
    """Return true when another attempt was recorded after the failure."""
    last = status.last_attempt_at if status else None
    return last is not None and last > error.failed_at


def _encode_error(error: FetchError | None) -> Values:
    if error is None:
        return (None,) * 6
    wait = error.wait_until and instant_text(error.wait_until)
    failed = instant_text(error.failed_at), error.engine_run_id, error.error_class, error.error_message
    return *failed, wait, error.request_id


def read_code_versions(connection: sa.Connection, tenancy: Tenancy, source: str) -> dict[str, CodeVersion]:
    """Return the current code version of each asset, by asset key."""
    workspace = {"tenant_id": tenancy.tenant_id, "workspace_id": tenancy.workspace_for(source)}
    rows = connection.execute(
        sa.select(code_versions).where(*(code_versions.c[name] == value for name, value in workspace.items()))
    )
    return {row.asset_key: CodeVersion(version=row.code_version, since=row.seen_since) for row in rows}


def next_write_instant(row_version: str | None, now: datetime) -> datetime:
    """Return `now`, or the instant after the row's last write if the clock went back."""
    # The first digits of versions are in the order of time, and reading the whole version takes longer.
    if row_version is None or row_version[:-_ROW_DIGITS] < _encode_write_instant((now - _EPOCH) // _MICROSECOND):
        return now
    return max(now, get_last_write_instant(row_version) + _MICROSECOND)


def make_row_version(at: datetime, partition: AssetPartition) -> str:
    """Return the version of a row that was last written at this instant."""
    return encode_row_version(at, *partition[1:])


def encode_row_version(at: datetime, *names: str) -> str:
    """Return the version of the row of this workspace, asset and partition."""
    row = int.from_bytes(hashlib.blake2b("|".join(names).encode(), digest_size=9).digest()) >> 2
    return _encode_write_instant((at - _EPOCH) // _MICROSECOND) + encode_digits(row, _ROW_DIGITS)


@lru_cache(maxsize=16)  # most rows of a transaction have the same time
def _encode_write_instant(micros: int) -> str:
    """Return the first digits of a row version, which hold the time."""
    at = _EPOCH + micros * _MICROSECOND
    version = new_row_version(at, after=None, randomness=micros % 1000 << _ROW_BITS)
    return version[:-_ROW_DIGITS]


def get_last_write_instant(version: str) -> datetime:
    """Return the instant of the row's last write. It is no earlier for a version that another program made."""
    number = row_version_to_int(version)
    micros = min(number >> _ROW_BITS & 1023, 999)
    return _EPOCH + timedelta(milliseconds=number >> _RANDOM_BITS, microseconds=micros)


def encode_status(status: PartitionStatus) -> Values:
    """The row of `partition_status`."""
    attempted_at = status.last_attempt_at and instant_text(status.last_attempt_at)
    materialized_at = attempted_at
    if status.last_materialization_at is not status.last_attempt_at:
        materialized_at = status.last_materialization_at and instant_text(status.last_materialization_at)
    return (
        status.tenant_id,
        status.workspace_id,
        status.asset_key,
        status.partition_key,
        status.last_materialization_run_id,
        materialized_at,
        status.last_materialization_code_version,
        status.last_attempt_run_id,
        attempted_at,
        status.last_attempt_outcome and str(status.last_attempt_outcome),
        status.stale_since and instant_text(status.stale_since),
        status.stale_reason_code and str(status.stale_reason_code),
        # Digits and a date need no escaping.
        f'{{"customer":"{status.partition_values["customer"]}","date":"{status.partition_values["date"]}"}}',
        status.row_version,
    )


def decode_status(
    partition: AssetPartition, values: Mapping[str, str], folded: Sequence[Any]
) -> PartitionStatus | None:
    """Return the status with these `FOLDED_COLUMNS`, or None when they are null: the empty side of an outer join."""
    run_id, at, version, attempt_id, attempted_at, outcome, stale_since, stale_reason, row_version = folded
    if row_version is None:
        return None
    return PartitionStatus(
        tenant_id=partition.tenant_id,
        workspace_id=partition.workspace_id,
        asset_key=partition.asset_key,
        partition_key=partition.partition_key,
        last_materialization_run_id=run_id,
        last_materialization_at=at,
        last_materialization_code_version=version,
        last_attempt_run_id=attempt_id,
        last_attempt_at=attempted_at,
        last_attempt_outcome=AttemptOutcome(outcome),
        stale_since=stale_since,
        stale_reason_code=None if stale_reason is None else StaleReason(stale_reason),
        partition_values=values,
        row_version=row_version,
    )
