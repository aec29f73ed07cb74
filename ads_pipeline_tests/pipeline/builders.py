"""A deployment in one directory, and functions to fill it and to read what readers see."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.day_ranges import expand
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealFacts
from ads_pipeline.domain.transitions import Status
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.days import day_conditions
from ads_pipeline.pipeline.loading import LoadResult
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.pipeline.progress import ProgressReporter, no_progress
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.pipeline.reconciliation import Reconciliation, Repair
from ads_pipeline.pipeline.validation import JudgingResult
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.validation.contract_registry import SHIPPED, Contracts
from ads_pipeline_tests.lake.warehouse.builders import list_log_versions
from ads_pipeline_tests.validation.builders import row

SOURCE, QUERY = "google_ads", "campaign_daily"
FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 4, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)
UNKNOWN_VERSION = "9"  # no contract judges it
V2: dict[str, Any] = {"all_conversions": 2.0, "search_impression_share": 0.5}


class LocalPipeline(Pipeline):
    """A pipeline that judges and loads in one call what a Dagster run does in two steps."""

    def judge_and_load(self, runs: Sequence[Run]) -> tuple[JudgingResult, LoadResult]:
        judged = self.validation.judge(runs)
        succeeded = [result.state.key for result in judged.recorded if result.state.status is Status.SUCCESS]
        return judged, self.loader.load(succeeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDeployment:
    """Raw runs, a ledger and a warehouse in one home. `lake` is a location in a bucket, if not the home."""

    home: Path
    spark: SparkSession
    ledger: Ledger
    lake: str | None = None
    report_progress: ProgressReporter = no_progress
    contracts: Contracts = SHIPPED

    @property
    def raw(self) -> RawRuns:
        return RawRuns(f"{self.lake or self.home}/raw")

    @property
    def warehouse_location(self) -> str:
        return f"{self.lake or self.home}/warehouse"

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.warehouse_location)

    @property
    def pipeline(self) -> LocalPipeline:
        return LocalPipeline(
            start_spark=lambda: self.spark,
            raw=self.raw,
            ledger=self.ledger,
            warehouse=self.warehouse,
            contracts=self.contracts,
            tables=self.tables,
            report_progress=self.report_progress,
        )

    @property
    def settings(self) -> Settings:
        settings = read_settings({"ADS_PIPELINE_HOME": str(self.home)})
        return replace(settings, lake=self.lake or settings.lake)  # a bucket would need a ledger in Postgres

    @property
    def tables(self) -> CompletenessTables:
        return CompletenessTables(ledger=self.ledger, settings=self.settings)

    @property
    def readers(self) -> Readers:
        return Readers(
            publications=self.ledger.publications,
            warehouse_location=self.warehouse_location,
            source=SOURCE,
        )

    @property
    def reconciliation(self) -> Reconciliation:
        return Reconciliation(
            publications=self.ledger.publications, warehouse=self.warehouse, open_pipeline=lambda: self.pipeline
        )

    def differences(self) -> list[Repair]:
        return list(self.reconciliation.plan(DayWindow(source=SOURCE, query_name=QUERY)).repairs)


@contextmanager
def open_deployment(
    home: Path, spark: SparkSession, url: str, *, lake: str | None = None
) -> Iterator[LocalDeployment]:
    with Ledger.opened(url) as ledger:
        yield LocalDeployment(home=home, spark=spark, ledger=ledger, lake=lake)


def find_gaps(
    deployment: LocalDeployment,
    query_name: str,
    *,
    since: date,
    until: date,
    customers: Sequence[str] | None = None,
) -> dict[PartitionKey, DayCondition]:
    """The days that readers do not see, long after they were due."""
    window = DayWindow(source=SOURCE, query_name=query_name, since=since, until=until, customers=customers)
    first_days = deployment.ledger.days.first_days(SOURCE, customers)
    now = datetime.combine(until, time.min, UTC) + timedelta(days=30)
    rules = day_conditions.DayRules(due_after={query_name: timedelta(hours=12)}, now=now)
    found = day_conditions.find_gaps(deployment.ledger, window, first_days=first_days, rules=rules)
    return dict(expand(found.ranges))


def key(customer: int = 1, day: int = 1, query_name: str = QUERY) -> PartitionKey:
    return PartitionKey(
        source=SOURCE, customer_id=str(customer), query_name=query_name, logical_date=date(2026, 1, day)
    )


def rows_for(partition: PartitionKey, count: int, **changes: Any) -> list[dict[str, Any]]:
    key_columns = {"customer_id": partition.customer_id, "date": partition.logical_date.isoformat()}
    return [row(number, **(key_columns | changes)) for number in range(1, count + 1)]


def seal_run(
    deployment: LocalDeployment, partition: PartitionKey, run_id: str = "r1", *, count: int = 2, **changes: Any
) -> Run:
    """Seal a run with this many valid rows; `changes` replace columns in every row."""
    run = Run(key=partition, run_id=run_id)
    facts = replace(FACTS, schema_version="2") if changes.keys() & V2.keys() else FACTS
    deployment.raw.land(run, rows_for(partition, count, **changes), facts)
    return run


def seal_invalid_run(deployment: LocalDeployment, partition: PartitionKey, run_id: str = "r1") -> Run:
    return seal_run(deployment, partition, run_id, cost_micros=-1)


def seal_unknown_version(deployment: LocalDeployment, partition: PartitionKey, run_id: str = "r9") -> Run:
    """Seal a run whose schema version has no contract."""
    run = Run(key=partition, run_id=run_id)
    deployment.raw.land(run, rows_for(partition, 2), replace(FACTS, schema_version=UNKNOWN_VERSION))
    return run


def corrupt_payload(deployment: LocalDeployment, run: Run) -> None:
    """Change a sealed payload without changing its size."""
    store, name = open_store(deployment.raw.location), f"{run.path}/{PAYLOAD}"
    store.replace(name, store.read(name).replace(b"Spring", b"Autumn"))


def table_version_count(deployment: LocalDeployment) -> int:
    return len(list_log_versions(deployment.warehouse_location))


def visible_runs(deployment: LocalDeployment, view: str = QUERY) -> dict[PartitionKey, str]:
    """Map each partition to the run that readers see through DuckDB."""
    with deployment.readers.connect([QUERY]) as connection:
        if (QUERY,) not in connection.execute("SHOW TABLES").fetchall():
            return {}
        return _runs(connection, f"SELECT DISTINCT customer_id, logical_date, run_id FROM {view}")


def visible_runs_in_spark(deployment: LocalDeployment) -> dict[PartitionKey, str]:
    frame = deployment.readers.read_rows(deployment.spark, QUERY)
    assert frame is not None
    rows = frame.select("customer_id", "logical_date", "run_id").distinct().collect()
    assert len({(each.customer_id, each.logical_date) for each in rows}) == len(rows)
    return {key_of(each.customer_id, each.logical_date): each.run_id for each in rows}


def key_of(customer_id: str, day: date) -> PartitionKey:
    return PartitionKey(source=SOURCE, customer_id=customer_id, query_name=QUERY, logical_date=day)


def error_classes(judged: Any) -> dict[Run, str | None]:
    """Map each judged run to its error class, or to None if it was accepted."""
    return {each.verdict.run: each.verdict.error_class for each in judged.judgements}


def hostile_payloads(partition: PartitionKey) -> dict[str, bytes]:
    """Payloads that could exhaust memory or the stack, or that belong to another query."""
    (valid,) = rows_for(partition, 1)
    line = json.dumps(valid).encode() + b"\n"
    return {
        "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
        "long_number": b'{"campaign_id": ' + b"9" * 100_000 + b"}\n",
        "long_line": line[:-2] + b', "note": "' + b"x" * (20 << 20) + b'"}\n',
        "other_query": json.dumps({"ad_group_id": 1, "date": "2026-01-01"}).encode() + b"\n",
        "two_objects": line.rstrip() + line,
    }


def _runs(connection: duckdb.DuckDBPyConnection, query: str) -> dict[PartitionKey, str]:
    rows: Sequence[tuple[str, date, str]] = connection.execute(query).fetchall()
    assert len({row[:2] for row in rows}) == len(rows), "two runs of one partition are visible"
    return {key_of(customer, day): run_id for customer, day, run_id in rows}
