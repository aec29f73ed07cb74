"""Fills an empty ledger with very many partitions, for tests and benchmarks of large ledgers.

`LedgerShape` decides the kind of each partition. The rows are inserted by INSERT … SELECT, with all constraints and
triggers active. A test checks that verdicts, loads and control actions could have written them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import new_row_version
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Day, Instant

SOURCE: Final = "google_ads"
QUERIES: Final = (
    "ad_group_daily",
    "campaign_daily",
    "keyword_daily",
    "search_term_daily",
    *(f"query_{number}" for number in range(5, 11)),
)
FIRST_DAY: Final = date(2024, 7, 1)
ROWS_PER_RUN: Final = 5
VERSION: Final = "1"
NEVER: Final = datetime(2999, 1, 1, tzinfo=UTC)  # due time of the retries that are not due
ROWS_PER_INSERT: Final = 20_000


class PartitionKind(NamedTuple):
    """One kind of partition: its runs with their verdicts, and the number of the loaded run."""

    share: int  # per thousand partitions
    status: str
    first: str | None = None
    second: str | None = None
    runs: int = 1
    loaded: int | None = None
    demoting: int = 0
    due: str | None = None

    @property
    def differs(self) -> bool:
        """Whether the Delta tables differ from the ledger."""
        current = None if self.status != "success" else self.runs
        return current != self.loaded or bool(self.demoting)


KINDS: Final[Mapping[str, PartitionKind]] = {
    "plain": PartitionKind(829, "success", "accepted", loaded=1),
    "retried": PartitionKind(100, "success", "rejected", "accepted", runs=2, loaded=2),
    "behind": PartitionKind(5, "success", "accepted", "accepted", runs=2, loaded=1),
    "unloaded": PartitionKind(5, "success", "accepted"),
    "demoting": PartitionKind(1, "success", "accepted", loaded=1, demoting=1),
    "due": PartitionKind(10, "failed", "rejected", due="now"),
    "waiting": PartitionKind(10, "failed", "rejected", due="later"),
    "terminal": PartitionKind(10, "failed", "rejected", "rejected", runs=2),
    "landed": PartitionKind(20, "pending"),
    "fetch_failed": PartitionKind(10, "pending", runs=0),
}
_KIND_NAMES: Final = [name for name, kind in KINDS.items() for _ in range(kind.share)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPartition:
    """One generated partition and its kind."""

    number: int
    query_name: str
    customer_id: str
    logical_date: date
    kind: str

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(
            source=SOURCE,
            customer_id=self.customer_id,
            query_name=self.query_name,
            logical_date=self.logical_date,
        )

    def run_id(self, ordinal: int) -> str:
        return f"{self.logical_date:%Y%m%d}T04000{ordinal}000Z-{self.number:08d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerShape:
    """The size of a ledger. Every query has every customer on every day."""

    queries: int = 4
    customers: int = 500
    days: int = 500

    def partitions(self) -> Iterator[GeneratedPartition]:
        """All partitions, day by day, as in production."""
        number = 0
        for day in range(self.days):
            for query in range(self.queries):
                for customer in range(self.customers):
                    number += 1
                    yield GeneratedPartition(
                        number=number,
                        query_name=QUERIES[query],
                        customer_id=str(1_000_000_000 + 7 * customer),
                        logical_date=FIRST_DAY + timedelta(days=day),
                        # The factors are coprime to 1,000, so every customer and day gets every kind in its share.
                        kind=_KIND_NAMES[(day * 919 + query * 729 + customer * 953) % len(_KIND_NAMES)],
                    )


def fill_ledger(url: str, shape: LedgerShape) -> None:
    """Insert the partitions into an empty ledger. Only Postgres gets statistics, as autovacuum would gather them."""
    engine = database.open_engine(url)
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA cache_size = -1000000")
            _stage(connection, shape)
            for statement in _INSERTS:
                connection.execute(sa.text(statement))
                connection.commit()
        if engine.dialect.name == "postgresql":
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
    finally:
        engine.dispose()


_metadata: Final = sa.MetaData()
_partitions: Final = sa.Table(
    "generated_partitions",
    _metadata,
    sa.Column("number", sa.BigInteger),
    sa.Column("query_name", sa.Text),
    sa.Column("customer_id", sa.Text),
    sa.Column("logical_date", Day()),
    sa.Column("kind", sa.Text),
    prefixes=["TEMPORARY"],
)
_kinds: Final = sa.Table(
    "generated_kinds",
    _metadata,
    sa.Column("kind", sa.Text),
    *(sa.Column(name, sa.Text) for name in ("status", "first", "second", "due")),
    *(sa.Column(name, sa.Integer) for name in ("runs", "loaded", "demoting")),
    prefixes=["TEMPORARY"],
)
_MOMENTS: Final = {
    "landed_1": timedelta(hours=4),
    "judged_1": timedelta(hours=5),
    "loaded_1": timedelta(hours=6),
    "landed_2": timedelta(hours=7),
    "judged_2": timedelta(hours=8),
    "loaded_2": timedelta(hours=9),
    "action_at": timedelta(hours=10),
}
_days: Final = sa.Table(
    "generated_days",
    _metadata,
    sa.Column("logical_date", Day()),
    sa.Column("day_text", sa.Text),
    sa.Column("stamp", sa.Text),
    *(sa.Column(name, Instant()) for name in (*_MOMENTS, "never")),
    *(sa.Column(f"version_{name}", sa.Text) for name in _MOMENTS),
    prefixes=["TEMPORARY"],
)


def _stage(connection: sa.Connection, shape: LedgerShape) -> None:
    """Insert the partitions, kinds and days into temporary tables, and join them in a view."""
    _metadata.create_all(connection, checkfirst=False)
    names = [column.name for column in _kinds.c]
    kinds = [{"kind": name} | kind._asdict() for name, kind in KINDS.items()]
    connection.execute(sa.insert(_kinds), [{name: row[name] for name in names} for row in kinds])
    connection.execute(sa.insert(_days), [_day(FIRST_DAY + timedelta(days=number)) for number in range(shape.days)])
    columns, rows = _partitions.c.keys(), list[dict[str, Any]]()
    for each in shape.partitions():
        rows.append({name: getattr(each, name) for name in columns})
        if len(rows) == ROWS_PER_INSERT:
            connection.execute(sa.insert(_partitions), rows)
            rows.clear()
    if rows:
        connection.execute(sa.insert(_partitions), rows)
    connection.exec_driver_sql(_VIEW)
    connection.commit()


def _day(day: date) -> dict[str, Any]:
    """The row of one day: the times of its events, and the prefixes of row versions written at those times."""
    start = datetime.combine(day, time.min, UTC) + timedelta(days=1)
    at = {name: start + after for name, after in _MOMENTS.items()}
    versions = {
        f"version_{name}": new_row_version(moment, after=None, randomness=0)[:12] for name, moment in at.items()
    }
    named = {"logical_date": day, "day_text": day.isoformat(), "stamp": f"{day:%Y%m%d}", "never": NEVER}
    return named | at | versions


_KEY: Final = "source, customer_id, query_name, logical_date"
# A row version ends in fourteen digits that make it unique: here the number of the partition.
_VIEW: Final = f"""
CREATE TEMPORARY VIEW seeds AS
SELECT '{SOURCE}' AS source, p.customer_id, p.query_name, p.logical_date, p.number,
    k.kind, k.status, k.first, k.second, k.runs, k.loaded, k.demoting, k.due,
    {", ".join(f"d.{column.name}" for column in _days.c if column.name != "logical_date")},
    d.stamp || 'T040001000Z-' || substr(CAST(100000000 + p.number AS TEXT), 2) AS run_1,
    d.stamp || 'T040002000Z-' || substr(CAST(100000000 + p.number AS TEXT), 2) AS run_2,
    substr(CAST(100000000000000 + p.number AS TEXT), 2) AS digits
FROM generated_partitions AS p
JOIN generated_days AS d ON d.logical_date = p.logical_date
JOIN generated_kinds AS k ON k.kind = p.kind
"""


def _run(ordinal: int) -> str:
    return f"""
    INSERT INTO runs ({_KEY}, run_id, ordinal, schema_version, record_count, payload_sha256, registered_at)
    SELECT {_KEY}, run_{ordinal}, {ordinal}, '{VERSION}', {ROWS_PER_RUN}, '{"0" * 64}', landed_{ordinal} FROM seeds
    WHERE runs >= {ordinal}
    """


_PROBLEM: Final = "cost_micros must be at least 0 in 1 row"


def _reason(run: str) -> str:
    """SQL of the JSON of a rejection's reason."""
    problem = Problem(error_class="row_contract", rule="must be at least 0", fields=("cost_micros",), rows=1)
    text = Reason(run_id="RUN", problems=(problem,)).json.replace(":", r"\:")  # a colon would start a parameter
    before, after = text.split("RUN")
    return f"'{before}' || {run} || '{after}'"


def _verdict(ordinal: int, verdict: str, effect: str, *, current: str, message: str) -> str:
    rejected = verdict == "rejected"
    return f"""
    INSERT INTO attempts ({_KEY}, attempt_no, run_id, validation_id, ordinal, outcome, effect, error_class,
        reason, rows_read, rows_failed, payload_bytes, payload_sha256, judged_at, current_ordinal, message_ordinal)
    SELECT {_KEY}, {ordinal}, run_{ordinal}, '', {ordinal}, '{verdict}', '{effect}',
        {f"'row_contract', {_reason(f'run_{ordinal}')}" if rejected else "NULL, NULL"}, {ROWS_PER_RUN},
        {int(rejected)}, 100, '{"0" * 64}', judged_{ordinal}, {current}, {message}
    FROM seeds WHERE {("first", "second")[ordinal - 1]} = '{verdict}'
    """


_RETRIED: Final = "second IS NOT NULL"
_CURRENT: Final = "CASE WHEN status = 'success' THEN CASE WHEN second = 'accepted' THEN run_2 ELSE run_1 END END"
_JUDGED: Final = f"CASE WHEN {_RETRIED} THEN judged_2 ELSE judged_1 END"
_STATES: Final = f"""
INSERT INTO partition_state ({_KEY}, status, current_run_id, schema_version, record_count, updated_at, error_message,
    attempt_count)
SELECT {_KEY}, status, {_CURRENT}, CASE WHEN status = 'success' THEN '{VERSION}' END,
    CASE WHEN status = 'success' THEN {ROWS_PER_RUN} END, CASE WHEN first IS NULL THEN landed_1 ELSE {_JUDGED} END,
    CASE WHEN status = 'failed' THEN CASE WHEN {_RETRIED} THEN run_2 ELSE run_1 END || ': {_PROBLEM}' END,
    CASE WHEN {_RETRIED} THEN 2 WHEN first IS NOT NULL THEN 1 ELSE 0 END
FROM seeds
"""
_LOADED: Final = "CASE loaded WHEN 1 THEN run_1 WHEN 2 THEN run_2 END"
_LOADED_AT: Final = "CASE loaded WHEN 1 THEN loaded_1 WHEN 2 THEN loaded_2 END"
_LOADS: Final = (
    f"""INSERT INTO load_records ({_KEY}, run_id, schema_version, record_count, table_version, loaded_at)
    SELECT {_KEY}, {_LOADED}, '{VERSION}', {ROWS_PER_RUN}, 1, {_LOADED_AT} FROM seeds WHERE loaded IS NOT NULL""",
    f"""INSERT INTO warehouse_pointer ({_KEY}, run_id, schema_version, record_count, table_version, availability,
        changed_at)
    SELECT {_KEY}, {_LOADED}, '{VERSION}', {ROWS_PER_RUN}, 1, 'published', {_LOADED_AT} FROM seeds
    WHERE loaded IS NOT NULL""",
    f"""INSERT INTO finished_attempts (asset, {_KEY}, finished_at, attempt_id, outcome, code_version)
    SELECT 'warehouse', {_KEY}, {_LOADED_AT}, {_LOADED}, 'SUCCEEDED', '{VERSION}' FROM seeds
    WHERE loaded IS NOT NULL""",
    f"""INSERT INTO demotions ({_KEY}, run_id, validation_id, reason, rows_read, started_at)
    SELECT {_KEY}, {_CURRENT}, 'again', {_reason(_CURRENT)}, {ROWS_PER_RUN}, action_at
    FROM seeds WHERE demoting = 1""",
)
_ASSET: Final = "'default', source, '{asset}/' || query_name, customer_id || '|' || day_text"
_VALUES: Final = """'{"customer":"' || customer_id || '","date":"' || day_text || '"}'"""
_STATUS: Final = """
INSERT INTO partition_status (tenant_id, workspace_id, asset_key, partition_key, last_materialization_run_id,
    last_materialization_at, last_materialization_code_version, last_attempt_run_id, last_attempt_at,
    last_attempt_outcome, partition_values, row_version)
"""
_LAST: Final = "CASE WHEN second IS NULL THEN first ELSE second END"
_STATUSES: Final = (
    f"""{_STATUS}
    SELECT {_ASSET.format(asset="raw")}, {_CURRENT}, CASE WHEN status = 'success' THEN {_JUDGED} END,
        CASE WHEN status = 'success' THEN '{VERSION}' END, CASE WHEN {_RETRIED} THEN run_2 ELSE run_1 END, {_JUDGED},
        CASE {_LAST} WHEN 'accepted' THEN 'SUCCEEDED' ELSE 'FAILED' END, {_VALUES},
        CASE WHEN {_RETRIED} THEN version_judged_2 ELSE version_judged_1 END || digits
    FROM seeds WHERE first IS NOT NULL""",
    f"""{_STATUS}
    SELECT {_ASSET.format(asset="warehouse")}, {_LOADED}, {_LOADED_AT}, '{VERSION}', {_LOADED}, {_LOADED_AT},
        'SUCCEEDED', {_VALUES}, CASE loaded WHEN 1 THEN version_loaded_1 ELSE version_loaded_2 END || digits
    FROM seeds WHERE loaded IS NOT NULL""",
    f"""{_STATUS}
    SELECT {_ASSET.format(asset="raw")}, NULL, NULL, NULL, 'fetch-1', landed_1, 'FAILED', {_VALUES},
        version_landed_1 || digits
    FROM seeds WHERE runs = 0""",
)
# Every partition with a run was claimed once; one in a hundred is claimed now.
_CONTROL: Final = (
    """INSERT INTO leases (engine_run_id, opened_at, heartbeat_at, expires_at, ended_at)
    SELECT 'produced-' || stamp, landed_1, action_at, action_at, action_at FROM generated_days""",
    """INSERT INTO leases (engine_run_id, opened_at, heartbeat_at, expires_at)
    SELECT 'producing', min(landed_1), max(action_at), max(never) FROM generated_days""",
    f"""INSERT INTO claims ({_KEY}, engine_run_id, fence, claimed_at)
    SELECT {_KEY}, CASE WHEN number % 100 = 7 THEN 'producing' ELSE 'produced-' || stamp END, 1, landed_1 FROM seeds
    WHERE runs >= 1""",
    f"""INSERT INTO retry_queue ({_KEY}, attempt_no, failures, error_class, failed_at, due_at, why, planned_at)
    SELECT {_KEY}, CASE WHEN {_RETRIED} THEN 2 ELSE 1 END, CASE WHEN {_RETRIED} THEN 2 ELSE 1 END, 'row_contract',
        {_JUDGED}, CASE due WHEN 'now' THEN action_at WHEN 'later' THEN never END, 'tried once', {_JUDGED}
    FROM seeds WHERE status = 'failed'""",
    f"""INSERT INTO finished_attempts (asset, {_KEY}, finished_at, attempt_id, outcome, failed_at, engine_run_id,
        error_class, error_message)
    SELECT 'raw', {_KEY}, landed_1, 'fetch-1', 'FAILED', landed_1, 'producing', 'transport',
        'the connection was reset'
    FROM seeds WHERE runs = 0""",
    """INSERT INTO control_actions
        (action_id, action, operator, command, filters, reason, partitions_changed, performed_at)
    SELECT 'action-1', 'reprocess', 'ada', 'state reprocess', '', 'on request', count(*), max(action_at) FROM seeds
    WHERE kind = 'plain' AND number % 1000 = 0""",
    f"""INSERT INTO control_action_partitions (action_id, {_KEY}, status_before, attempt_no)
    SELECT 'action-1', {_KEY}, status, 1 FROM seeds WHERE kind = 'plain' AND number % 1000 = 0""",
    f"""INSERT INTO retry_queue ({_KEY}, kind, action_id, requested_no, requested_at)
    SELECT {_KEY}, 'reprocess', 'action-1', 1, action_at FROM seeds WHERE kind = 'plain' AND number % 1000 = 0""",
    """INSERT INTO control_actions
        (action_id, action, operator, command, filters, reason, partitions_changed, performed_at)
    SELECT 'mark-1', 'mark_terminal', 'ada', 'state terminal', '', 'given up', count(*), max(action_at)
    FROM seeds WHERE kind = 'due' AND number % 10 = 0""",
    f"""INSERT INTO control_action_partitions (action_id, {_KEY}, status_before, attempt_no)
    SELECT 'mark-1', {_KEY}, status, 1 FROM seeds WHERE kind = 'due' AND number % 10 = 0""",
    f"""INSERT INTO parkings (source, scope, name, error_class, why, parked_at)
    SELECT '{SOURCE}', 'customer', min(customer_id), 'account_access', 'access was withdrawn', max(action_at)
    FROM seeds""",
)
_INSERTS: Final = (
    _run(1),
    _run(2),
    _verdict(1, "accepted", "promoted", current="1", message="NULL"),
    _verdict(1, "rejected", "failed", current="NULL", message="1"),
    _verdict(2, "accepted", "promoted", current="2", message="NULL"),
    _verdict(2, "rejected", "failed", current="NULL", message="2"),
    _STATES,
    *_LOADS,
    *_STATUSES,
    *_CONTROL,
)
