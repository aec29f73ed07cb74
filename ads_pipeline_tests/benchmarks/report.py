"""Measures the report of 200 customers, 400 days and 10 queries: its size, and the time to write and to show it.

The limits are absolute, because the requirements are. The time to show it needs Playwright and Chromium.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import yaml
from deltalake import Schema, write_deltalake

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.lake.warehouse.columns import read_delta_columns
from ads_pipeline.lake.warehouse.delta_commits import create_table
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, WarehouseTable
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.operations.report.writing import ReportWriter, report_path
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline_tests.benchmarks.ratios import Figure, measure_time
from ads_pipeline_tests.ledger.large_ledgers import (
    FIRST_DAY,
    KINDS,
    QUERIES,
    ROWS_PER_RUN,
    SOURCE,
    VERSION,
    GeneratedPartition,
    LedgerShape,
    fill_ledger,
)

SHAPE: Final = LedgerShape(queries=10, customers=200, days=400)
NOW: Final = datetime.combine(FIRST_DAY + timedelta(days=SHAPE.days), datetime.min.time(), UTC) + timedelta(hours=13)
ROUNDS: Final = 3
MAX_MB, WRITE_S, PAINT_S = 5, 120, 1
FIRST_PAINT: Final = """
new Promise((done) => new PerformanceObserver((list) =>
  list.getEntriesByName("first-contentful-paint").forEach((each) => done(each.startTime))
).observe({type: "paint", buffered: true}))"""


def measure() -> Iterator[Figure]:
    home = Path(tempfile.mkdtemp(prefix="report"))
    try:
        settings = _fill_deployment(home)
        title = f"report of {SHAPE.queries * SHAPE.customers * SHAPE.days:,} days"
        with LedgerReader.opened(settings.database_url) as ledger:
            writer = ReportWriter.of_deployment(settings, ledger)
            path = report_path(settings)
            yield measure_time(
                f"{title}: writing it", lambda _number: writer.write(path, now=NOW), rounds=1, limit=WRITE_S
            )
        yield Figure(name=f"{title}: its size", value=path.stat().st_size / 1e6, unit="MB", limit=MAX_MB)
        with suppress(ModuleNotFoundError):  # Playwright is in the dependency group `browser`
            yield from measure_page(path, title)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure_page(path: Path, title: str) -> Iterator[Figure]:
    """The first paint of the page, and the time until its maps are there, in Chromium."""
    from ads_pipeline_tests.browser.pages import open_browser  # noqa: PLC0415 - Playwright may be missing

    paints, complete = [], []
    with open_browser() as page:
        for _round in range(ROUNDS):
            page.goto("about:blank")
            started = time.perf_counter()
            page.goto(path.as_uri(), wait_until="commit")
            page.locator("#maps canvas").first.wait_for()  # a function to wait for is against the page's policy
            complete.append(time.perf_counter() - started)
            paints.append(page.evaluate(FIRST_PAINT) / 1_000)
        if picture := os.environ.get("REPORT_PICTURE"):
            page.screenshot(path=picture)
    yield Figure(name=f"{title}: first paint in Chromium", value=max(paints), unit="s", limit=PAINT_S)
    yield Figure(name=f"{title}: its maps are there", value=max(complete), unit="s", limit=3 * PAINT_S)


def _fill_deployment(home: Path) -> Settings:
    """A home with a query file, a ledger and tables. The tables have the rows of the ledger's pointers."""
    document = yaml.safe_load(DEFAULT_QUERIES_FILE.read_text())
    query = document["queries"]["campaign_daily"]
    document |= {"queries": dict.fromkeys(QUERIES, query), "start_date": str(FIRST_DAY)}
    (home / DEFAULT_QUERIES_FILE.name).write_text(json.dumps(document, default=str))  # YAML would have aliases
    settings = read_settings({"ADS_PIPELINE_HOME": str(home)})
    engine = database.open_engine(settings.database_url)
    database.migrate(engine)
    engine.dispose()
    fill_ledger(settings.database_url, SHAPE)
    _fill_tables(settings)
    return settings


def _fill_tables(settings: Settings) -> None:
    rows: dict[str, list[GeneratedPartition]] = {name: [] for name in QUERIES}
    for partition in SHAPE.partitions():
        if KINDS[partition.kind].loaded:
            rows[partition.query_name].append(partition)
    for name, loaded in rows.items():
        table = WarehouseTable(location=settings.warehouse_location, source=SOURCE, query_name=name)
        rows_of_table = _create_rows(loaded)
        create_table(table, read_delta_columns(Schema.from_arrow(rows_of_table.schema)))
        write_deltalake(table.uri, rows_of_table, mode="append")  # version 1, as in the ledger's pointers


def _create_rows(loaded: Sequence[GeneratedPartition]) -> pa.Table:
    """The rows of these partitions. Their cost differs by customer, weekday and day."""
    repeated = [partition for partition in loaded for _row in range(ROWS_PER_RUN)]
    return pa.table(
        {
            "customer_id": [each.customer_id for each in repeated],
            "run_id": [each.run_id(KINDS[each.kind].loaded or 1) for each in repeated],
            "schema_version": [VERSION] * len(repeated),
            "cost_micros": [_cost(each.key) for each in repeated],
            DATE_COLUMN: [each.logical_date for each in repeated],
        }
    )


def _cost(key: PartitionKey) -> int:
    size = int(key.customer_id) % 9_973
    return (size * (7 + key.logical_date.weekday()) + key.logical_date.toordinal() * 7_919 % 10_007) * 10_000
