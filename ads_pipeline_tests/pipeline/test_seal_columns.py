"""Every row has the currency and the extraction time of its run's seal, for every reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, Field

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.warehouse import columns
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline_tests.lake.warehouse.builders import connect_with_delta, table_uri
from ads_pipeline_tests.pipeline.builders import FACTS, QUERY, SOURCE, LocalDeployment, key, rows_for

EARLY, LATE = datetime(2026, 2, 4, 4, 30, tzinfo=UTC), datetime(2026, 2, 5, 4, 30, 0, 123456, tzinfo=UTC)
COLUMNS = ("customer_id", "currency_code", "extracted_at")
Found = set[tuple[str, str | None, datetime]]


def seal(deployment: LocalDeployment, partition: PartitionKey, run_id: str, **facts: Any) -> Run:
    run = Run(key=partition, run_id=run_id)
    deployment.raw.land(run, rows_for(partition, 2), replace(FACTS, **facts))
    return run


def _collect(rows: Sequence[Mapping[str, Any]]) -> Found:
    return {(row["customer_id"], row["currency_code"], row["extracted_at"].astimezone(UTC)) for row in rows}


def _read_with_delta_scan(deployment: LocalDeployment) -> Found:
    location = deployment.warehouse_location
    with connect_with_delta(location) as connection:
        query = f"SELECT {', '.join(COLUMNS)} FROM delta_scan(?)"
        return _collect(connection.execute(query, [table_uri(location)]).to_arrow_table().to_pylist())


def _read_with_session(deployment: LocalDeployment) -> Found:
    with deployment.readers.connect([QUERY]) as connection:
        query = f"SELECT {', '.join(COLUMNS)} FROM {QUERY} WHERE extracted_at > TIMESTAMPTZ '2026-02-04 00:00:00+00'"
        return _collect(connection.execute(query).to_arrow_table().to_pylist())


def _read_with_spark(deployment: LocalDeployment) -> Found:
    frame = deployment.readers.read_rows(deployment.spark, QUERY)
    assert frame is not None
    return _collect([row.asDict() for row in frame.select(*COLUMNS).collect()])


READERS: Mapping[str, Callable[[LocalDeployment], Found]] = {
    "delta-rs": lambda d: _collect(DeltaTable(table_uri(d.warehouse_location)).to_pyarrow_table().to_pylist()),
    "pandas": lambda d: _collect(DeltaTable(table_uri(d.warehouse_location)).to_pandas().to_dict("records")),
    "polars": lambda d: _collect(pl.read_delta(table_uri(d.warehouse_location)).to_dicts()),
    "delta_scan": _read_with_delta_scan,
    "warehouse query": _read_with_session,
    "Spark": _read_with_spark,
}


def read_everywhere(deployment: LocalDeployment) -> Found:
    """What every reader finds."""
    found = {name: read(deployment) for name, read in READERS.items()}
    expected = found["delta-rs"]
    assert found == dict.fromkeys(READERS, expected)
    return expected


@pytest.fixture
def loaded(deployment: LocalDeployment) -> LocalDeployment:
    """Two days of one file. The seal of the second states no currency."""
    runs = [
        seal(deployment, key(1), "r1", currency_code="EUR", extracted_at=EARLY),
        seal(deployment, key(2), "r1", extracted_at=EARLY),
    ]
    deployment.pipeline.judge_and_load(runs)
    return deployment


@pytest.mark.invariant("W13")
def test_every_reader_finds_the_facts_of_the_seal(loaded: LocalDeployment) -> None:
    """They are null where the seal has none, and rows that are carried over keep theirs."""
    assert read_everywhere(loaded) == {("1", "EUR", EARLY), ("2", None, EARLY)}
    loaded.pipeline.judge_and_load([seal(loaded, key(2), "r2", currency_code="JPY", extracted_at=LATE)])
    assert read_everywhere(loaded) == {("1", "EUR", EARLY), ("2", "JPY", LATE)}


def test_facts_of_the_seal_restate_nothing(loaded: LocalDeployment) -> None:
    """A run with the same rows, a currency and a later extraction time changes no figure."""
    loaded.pipeline.judge_and_load([seal(loaded, key(2), "r2", currency_code="JPY", extracted_at=LATE)])
    (found,) = loaded.ledger.restatements.find(DayWindow(source=SOURCE, query_name=QUERY))
    assert not found.before.differs(found.after)


def test_rejected_and_accepted_earlier_runs_are_staged_with_their_facts(deployment: LocalDeployment) -> None:
    """A run that was accepted in another process is read again from raw when it is loaded."""
    deployment.pipeline.validation.judge([seal(deployment, key(1), "r1", currency_code="GBP", extracted_at=LATE)])
    deployment.pipeline.loader.load([key(1)])
    assert read_everywhere(deployment) == {("1", "GBP", LATE)}


def test_columns_are_added_to_a_table_without_them(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of before have nulls there, and new rows have values."""
    with monkeypatch.context() as context:
        old = {name: each for name, each in columns._REQUIRED.items() if name not in COLUMNS[1:]}
        context.setattr(columns, "_REQUIRED", old)
        table = deployment.warehouse.table(SOURCE, QUERY)
        made = columns.make_columns(table, {"campaign_id": "long"})
        table.store.make_folder(table.folder)
        DeltaTable.create(table.uri, schema=columns.to_delta_schema(made), partition_by=["logical_date"])
    deployment.pipeline.judge_and_load([seal(deployment, key(1), "r1", currency_code="EUR", extracted_at=EARLY)])
    fields: list[Field] = DeltaTable(table.uri).schema().fields
    assert {each.name: each.nullable for each in fields if each.name in COLUMNS} == dict.fromkeys(COLUMNS, True)
    assert read_everywhere(deployment) == {("1", "EUR", EARLY)}
