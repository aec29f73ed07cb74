"""The rows of the table `days`: what `state inspect` says of each expected day, as columns."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa

from ads_pipeline.domain.days.conditions import READABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.days.materialization_status import RAW
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.lake.completeness.keyed_rows import AS_OF, Partition, RowLayout
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.state.first_days import FirstDays
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days, find_days
from ads_pipeline.settings.query_file import GoogleApis

_EXPECTED: Final = frozenset(Condition) - {Condition.NOT_EXPECTED}
_TIME: Final = pa.timestamp("us", "UTC")
LAYOUT: Final = RowLayout(
    schema=pa.schema(
        [
            ("source", pa.string()),
            ("customer_id", pa.string()),
            ("customer_name", pa.string()),
            ("logical_date", pa.date32()),
            ("condition", pa.string()),
            ("is_readable", pa.bool_()),
            ("reason", pa.string()),
            ("since", _TIME),
            ("provisional", pa.bool_()),
            ("final_from", _TIME),
            ("run_id", pa.string()),
            ("schema_version", pa.string()),
            ("extracted_at", _TIME),
            ("loaded_at", _TIME),
            ("rows", pa.int64()),
            ("cost_micros", pa.int64()),
            ("currency_code", pa.string()),
            ("acknowledged_by", pa.string()),
            ("attempts", pa.int64()),
            ("last_attempt_outcome", pa.string()),
            (AS_OF, _TIME),
        ]
    ),
    key=("logical_date", "customer_id"),
)


def partition_of(key: PartitionKey) -> Partition:
    """The partition of the table that holds a day: its query and its month."""
    return key.query_name, f"{key.logical_date:%Y-%m}"


def row_key(key: PartitionKey) -> tuple[str, ...]:
    """The values of the columns that identify the row of a day in its partition."""
    return key.logical_date.isoformat(), key.customer_id


def read_day_rows(
    ledger: LedgerReader, keys: Collection[PartitionKey], rules: DayRules, first_days: FirstDays
) -> pa.Table:
    """The rows of those of these days that are expected, as of the moment of the rules."""
    return _make_rows(ledger, describe_days(ledger, keys, rules, first_days=first_days), rules)


def read_window_rows(
    ledger: LedgerReader, window: DayWindow, first_days: Mapping[str, ExpectedDays], rules: DayRules
) -> pa.Table:
    """The rows of every expected day of a window. `first_days` has the expected days of each customer."""
    return _make_rows(ledger, find_days(ledger, window, _EXPECTED, first_days=first_days, rules=rules), rules)


def list_expected(
    apis: GoogleApis, customers: Collection[str], first_days: FirstDays, rules: DayRules
) -> set[PartitionKey]:
    """Every day of these customers that is expected and due, from the query file's start_date on."""
    keys = set[PartitionKey]()
    for name in apis.queries:
        for customer, expected in first_days.of_query(name).items():
            if customer not in customers:
                continue
            last = rules.expect(customer, name, expected).last_due_day(rules.now)
            days = {*expected.single, *days_between(max(expected.first, apis.start_date), last)}
            keys.update(
                PartitionKey(source=apis.source, customer_id=customer, query_name=name, logical_date=day)
                for day in days
                if day >= apis.start_date
            )
    return keys


def _make_rows(ledger: LedgerReader, days: Mapping[PartitionKey, DayCondition], rules: DayRules) -> pa.Table:
    expected = {key: day for key, day in days.items() if day.condition is not Condition.NOT_EXPECTED}
    readable = [key for key, day in expected.items() if day.condition in READABLE_CONDITIONS]
    published = ledger.publications.published_runs(readable)
    statuses = ledger.statuses.get_many(RAW, expected)
    accounts = rules.accounts.accounts if rules.accounts else {}
    rows = list[dict[str, Any]]()
    for key, day in expected.items():
        account, run, status = accounts.get(key.customer_id), published.get(key), statuses[key]
        rows.append(
            {
                "source": key.source,
                "customer_id": key.customer_id,
                "customer_name": account and account.name,
                "logical_date": key.logical_date,
                "condition": day.condition.value,
                "is_readable": day.condition in READABLE_CONDITIONS,
                "reason": day.reason,
                "since": day.since,
                "provisional": None if day.report is None else day.report is ReportState.PROVISIONAL,
                "final_from": day.settles_at,
                "run_id": run and run.run.run_id,
                "schema_version": run and run.schema_version,
                "extracted_at": run and run.extracted_at,
                "loaded_at": run and run.loaded_at,
                "rows": run and run.record_count,
                "cost_micros": run and run.cost_micros,
                "currency_code": account and account.currency_code,
                "acknowledged_by": day.acknowledged and day.acknowledged.operator,
                "attempts": day.attempts,
                "last_attempt_outcome": status and status.last_attempt_outcome,
                AS_OF: rules.now,
            }
        )
    return pa.Table.from_pylist(rows, schema=LAYOUT.schema)
