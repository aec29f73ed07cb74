"""Keeps one ADR-026 row an asset partition, folded from every finished attempt in the transaction that records it.

Whoever writes here holds the partition's lock, which is its state row. A row's version tells the instant of its last
write, and each write is later than the one before whatever the clock says; so versions, like the rows, can be made
anew from the logs of attempts and finishes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ads_pipeline.domain.freshness import (
    AssetPartition,
    AttemptOutcome,
    CodeVersion,
    FinishedAttempt,
    PartitionStatus,
    StaleReason,
    Tenancy,
    asset_partition,
    fold,
    mint,
    partition_values,
    version_number,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Effect, Outcome, later
from ads_pipeline.ledger import database
from ads_pipeline.ledger.row_mapping import KEY_TYPES, insert_into, key_fields
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.tables import KEY, code_versions, finishes, instant_text, partition_status

PLACE: Final = ("tenant_id", "workspace_id", "asset_key", "partition_key")
STATUS_ROW: Final[Mapping[str, Any]] = {column.name: column.type for column in partition_status.c}
# The effects by which a run becomes what a partition is made of. A run that is confirmed is as old as it was, and the
# warehouse has it already.
MATERIALIZING: Final = frozenset({Effect.PROMOTED})
# A verdict is a finish; what it says is how the attempt ended.
OUTCOMES: Final[Mapping[Outcome, AttemptOutcome]] = {
    Outcome.ACCEPTED: AttemptOutcome.SUCCEEDED,
    Outcome.REJECTED: AttemptOutcome.FAILED,
}
_INSTANTS: Final = ("last_materialization_at", "last_attempt_at", "stale_since")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# A version's 80 random bits begin with the microseconds within its millisecond, and end with what tells rows apart.
_RANDOM_BITS, _ROW_BITS = 80, 70


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinish:
    """How an attempt at a partition's asset ended. A code version is given exactly when something was made.

    `after` is when that of which it was made was there: it ended later, also when the clock went back.
    """

    key: PartitionKey
    run_id: str
    outcome: AttemptOutcome
    code_version: str | None = None
    after: datetime | None = None


class Statuses:
    """Reads and writes the rows of one space, in the caller's transaction."""

    def __init__(self, dialect: str, space: Tenancy) -> None:
        self._space = space
        self._read = RowStatement("read_statuses", dialect, _read)
        self._insert_finishes = RowStatement("insert_finishes", dialect, _insert_finishes)
        self._upsert = RowStatement("upsert_statuses", dialect, lambda rowset: upsert(dialect, rowset(STATUS_ROW)))

    def place(self, asset: str, key: PartitionKey) -> AssetPartition:
        return asset_partition(asset, key, self._space)

    def read(
        self, connection: sa.Connection, asset: str, keys: Sequence[PartitionKey]
    ) -> dict[PartitionKey, tuple[PartitionStatus | None, int]]:
        """The row of each partition in an asset, if it has one, and how many finishes beside verdicts it counts."""
        asked = [
            key_fields(key) | place_fields(self.place(asset, key)) | {"place": number, "asset": asset}
            for number, key in enumerate(keys)
        ]
        rows = self._read.run(connection, asked)
        return {key: (status_of(row), row.finishes) for key, row in zip(keys, rows, strict=True)}

    def finish(
        self, connection: sa.Connection, asset: str, finished: Sequence[AttemptFinish], now: datetime
    ) -> dict[PartitionKey, int]:
        """Record finishes that are no verdicts, one a partition, and fold them in; the number of each."""
        if not finished:
            return {}
        before = self.read(connection, asset, [each.key for each in finished])
        logged, folded = list[dict[str, Any]](), list[PartitionStatus]()
        for each in finished:
            status, _count = before[each.key]
            at = next_instant(status.row_version if status else None, later(each.after, now))
            folded.append(self.folded(status, asset, each, at))
            logged.append(
                key_fields(each.key)
                | {
                    "asset": asset,
                    "finished_at": instant_text(at),
                    "run_id": each.run_id,
                    "outcome": each.outcome,
                    "code_version": each.code_version,
                }
            )
        self._insert_finishes.run(connection, logged)
        if self.keep(connection, folded) < len(folded):  # a sweep holds no partition's lock
            raise database.Overtaken("a status was written while an attempt was being folded into it")
        return {each.key: before[each.key][1] + 1 for each in finished}

    def folded(
        self, status: PartitionStatus | None, asset: str, each: AttemptFinish, at: datetime
    ) -> PartitionStatus:
        """The row after a finish at that instant."""
        place = self.place(asset, each.key)
        finish = FinishedAttempt(
            run_id=each.run_id,
            at=at,
            outcome=each.outcome,
            version=version_at(at, place),
            code_version=each.code_version,
        )
        return fold(status, finish, place=place, values=partition_values(each.key))

    def keep(self, connection: sa.Connection, statuses: Iterable[PartitionStatus]) -> int:
        """Write rows where they are newer than what stands there; how many were."""
        return self._upsert.run(connection, map(status_fields, statuses)).rowcount


def read_code_versions(connection: sa.Connection, space: Tenancy, source: str) -> dict[str, CodeVersion]:
    """The version of each asset's definition that runs now, by the asset's key."""
    here = {"tenant_id": space.tenant_id, "workspace_id": space.workspace_of(source)}
    rows = connection.execute(sa.select(code_versions).where(*(code_versions.c[name] == here[name] for name in here)))
    return {row.asset_key: CodeVersion(version=row.code_version, since=row.seen_since) for row in rows}


def next_instant(row_version: str | None, now: datetime) -> datetime:
    """Now, or the instant after the row's last write where the clock went back."""
    return now if row_version is None else max(now, instant_of(row_version) + _MICROSECOND)


def version_at(at: datetime, place: AssetPartition) -> str:
    """The version of a row that was last written then."""
    micros = (at - _EPOCH) // _MICROSECOND % 1000
    name = f"{place.workspace_id}|{place.asset_key}|{place.partition_key}"
    row = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=9).digest()) >> 2
    return mint(at, after=None, randomness=micros << _ROW_BITS | row)


def instant_of(version: str) -> datetime:
    """When a row of that version was last written; no earlier, for one that was minted in another way."""
    number = version_number(version)
    micros = min(number >> _ROW_BITS & 1023, 999)
    return _EPOCH + timedelta(milliseconds=number >> _RANDOM_BITS, microseconds=micros)


def values_text(key: PartitionKey) -> str:
    """The dimensions as JSON: digits and a date, which need no escaping."""
    return f'{{"customer":"{key.customer_id}","date":"{key.logical_date.isoformat()}"}}'


def place_fields(place: AssetPartition) -> dict[str, Any]:
    return {
        "tenant_id": place.tenant_id,
        "workspace_id": place.workspace_id,
        "asset_key": place.asset_key,
        "partition_key": place.partition_key,
    }


def status_fields(status: PartitionStatus) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(status, name) for name in STATUS_ROW}
    row |= {name: instant_text(row[name]) for name in _INSTANTS if row[name] is not None}
    return row | {"partition_values": json.dumps(dict(status.partition_values), separators=(",", ":"))}


def status_of(row: sa.Row[Any]) -> PartitionStatus | None:
    """The status in a row, which may stand beside nothing."""
    if row.row_version is None:
        return None
    told = {name: getattr(row, name) for name in STATUS_ROW}
    return PartitionStatus(
        **told
        | {
            "last_attempt_outcome": AttemptOutcome(row.last_attempt_outcome),
            "stale_reason_code": row.stale_reason_code and StaleReason(row.stale_reason_code),
            "partition_values": json.loads(row.partition_values),
        }
    )


def upsert(dialect: str, asked: sa.FromClause) -> postgresql.Insert | sqlite.Insert:
    """Puts rows of statuses in, or in the place of those of an earlier version."""
    names = tuple(STATUS_ROW)
    rows = sa.select(*(asked.c[name] for name in names)).where(sa.true())  # else SQLite takes ON for a join's
    insert = insert_into(dialect, partition_status)
    insert = insert.from_select(names, rows)
    changed = {name: insert.excluded[name] for name in names if name not in PLACE}
    return insert.on_conflict_do_update(
        index_elements=list(PLACE),
        set_=changed,
        where=partition_status.c.row_version < insert.excluded.row_version,
    )


def joined(asked: sa.FromClause) -> sa.ColumnElement[bool]:
    """Where a status is of what is asked for."""
    return sa.and_(*(partition_status.c[name] == asked.c[name] for name in PLACE))


def _read(rowset: Rowset) -> sa.Select[Any]:
    words: dict[str, Any] = dict.fromkeys((*PLACE, "asset"), sa.Text()) | {"place": sa.Integer()}
    asked = rowset(dict(KEY_TYPES) | words)
    same = [finishes.c[name] == asked.c[name] for name in (*KEY, "asset")]
    count = sa.select(sa.func.count()).select_from(finishes).where(*same).scalar_subquery()
    return (
        sa.select(partition_status, count.label("finishes"))
        .select_from(asked)
        .outerjoin(partition_status, joined(asked))
        .order_by(asked.c.place)
    )


def _insert_finishes(rowset: Rowset) -> sa.Insert:
    columns = {column.name: column.type for column in finishes.c}
    asked = rowset(columns)
    return sa.insert(finishes).from_select(tuple(columns), sa.select(*(asked.c[name] for name in columns)))
